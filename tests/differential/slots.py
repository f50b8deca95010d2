"""Contents of calls over a cache of slots or pages, for domains: which slot, position, length and page each token has, and what
of the cache nothing may read."""
import numpy as np

from tests.differential.domain import counts_that_sum, entries


def places_of(d, cache_l="L"):
    """Places of a slot."""
    return d.dims[cache_l] * (d.dims["P"] if d.has("page_table") else 1)


def slot_count(d, blocks="B"):
    return d.dims["R"] - 1 if d.has("k_offsets") else d.dims["S"] if d.has("page_table") else d.dims[blocks]


def pages(d, rng):
    """A page table: pages of one owner, or shared by slots, or some that do not exist."""
    S, P, B = d.dims["S"], d.dims["P"], d.dims["B"]
    kind = rng.integers(0, 4)
    if kind == 0 and B >= S * P:
        table = rng.permutation(B)[: S * P].reshape(S, P)
    elif kind == 1:  # the first pages are of a shared beginning
        table = rng.integers(0, B, (S, P))
        shared = rng.integers(0, P + 1)
        table[:, :shared] = table[:1, :shared]
    else:
        table = rng.integers(0, B, (S, P))
    if kind == 3:
        table = np.where(rng.random((S, P)) < 0.2, rng.choice([-1, B], (S, P)), table)
    return table.astype(np.int64)


def tokens(d, rng, held, S):
    """(slot, pos) of T tokens of `S` slots, of which slot s holds `held[s]` places: a decode step, prompts one after the
    other, a chunk of one, or anything."""
    T = d.dims["T"]
    kind = rng.integers(0, 5) if T else 4
    most = int(held.max(initial=0))
    if kind in (0, 1) and S:  # decode: a token a slot, in any order
        slot = rng.permutation(S)[:T] if T <= S and kind == 0 else rng.permutation(T) % S
        pos = held[slot] - 1
    elif kind == 2 and S:  # the last tokens of prompts
        counts = np.minimum(counts_that_sum(rng, S, T), 1 << 30)
        order = rng.permutation(S)
        slot = np.repeat(order, counts[order])
        pos = np.concatenate([held[s] - counts[s] + np.arange(counts[s]) for s in order]) if T else np.zeros(0, int)
    elif kind == 3 and S:  # a chunk of one slot
        slot = np.full(T, rng.integers(0, S))
        pos = held[slot] - T + np.arange(T)
    else:
        slot = entries(rng, T, 0, max(S, 1))
        pos = rng.integers(0, max(most, 1), T)
    if rng.random() < 0.15 and T:
        slot = np.where(rng.random(T) < 0.15, rng.choice([-1, S]), slot)
    return slot.astype(np.int64), pos.astype(np.int64)


def lengths(rng, S, places):
    """Full, empty and any."""
    kind = rng.integers(0, 3)
    if kind == 0:
        return np.full(S, places, np.int64)
    n = rng.integers(0, places + 1, S)
    return np.where(rng.random(S) < 0.2, rng.choice([0, places], S), n).astype(np.int64)


def contents(d, rng, cache_l="L"):
    """Values of the integer ports that ops over slots share, of those that the op has."""
    out, S = {}, slot_count(d)
    if d.has("k_offsets"):
        L = d.dims[cache_l]
        rows = counts_that_sum(rng, S, int(rng.integers(0, L + 1)))
        first = int(rng.integers(0, L - rows.sum() + 1))
        out["k_offsets"] = first + np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        held = rows.astype(np.int64)
    else:
        held = np.full(S, places_of(d, cache_l), np.int64)
    if d.has("length"):
        out["length"] = np.minimum(lengths(rng, S, int(held.max(initial=0))), held)
        held = out["length"]
    if d.has("page_table"):
        out["page_table"] = pages(d, rng)
    slot, pos = tokens(d, rng, held, S)
    if d.has("slot"):
        out["slot"] = slot
    elif S:
        pos = np.full(d.dims["T"], held[0]) - d.dims["T"] + np.arange(d.dims["T"]) if rng.random() < 0.7 else rng.integers(0, int(held[0]) + 1, d.dims["T"])
    if d.has("pos"):
        out["pos"] = pos if rng.random() < 0.9 else pos + rng.integers(-2, 3, len(pos))
    if d.has("prefix"):
        out["prefix"] = np.array([rng.integers(0, h + 1) for h in held], np.int64)
        if d.attr("mask") == "state" and d.dims["T"] and d.has("pos") and rng.random() < 0.5:
            out["prefix"][:] = np.clip(np.median(out["pos"]), 0, None)
    return out


def seen(d, values, cache_l="L"):
    """[S, places]: whether some token of the call sees the place by mask, window and length; bits hide nothing here."""
    S, places, T = slot_count(d), places_of(d, cache_l), d.valid
    out = np.zeros((S, places), bool)
    slot = values["slot"][:T] if d.has("slot") else np.zeros(T, int)
    pos = values["pos"][:T] if d.has("pos") else np.arange(T)
    mask = next((d.attr(a["name"]) for a in d.row["attrs"] if a["name"] == "mask"), "causal")
    window = next((d.attr(a["name"]) for a in d.row["attrs"] if a["name"] == "window"), 0)
    j = np.arange(places)
    held = np.full(S, places)
    if d.has("k_offsets"):
        held = np.diff(values["k_offsets"])
    if d.has("length"):
        held = np.minimum(held, values["length"])
    for s in range(S):
        p = np.unique(pos[slot == s])
        if not len(p):
            continue
        first = int(values["prefix"][s]) if d.has("prefix") else 0
        for q in p if len(p) < 64 and (window > 0 or mask == "state") else [p.max()] if window <= 0 and mask != "state" else p:
            see = j <= q
            if mask == "full":
                see = np.ones(places, bool)
            elif mask == "prefix":
                see = see | (j < first)
            elif mask == "state":
                see = j < first if q < first else j <= q if q == first else np.ones(places, bool)
            if window > 0:
                see = see & (j > q - window)
            out[s] |= see
        out[s] &= j < held[s]
    return out


def unseen_rows(d, values, blocks="B", cache_l="L"):
    """[B, L]: rows of the cache that no token sees."""
    sees = seen(d, values, cache_l)
    B, L = d.dims[blocks], d.dims[cache_l]
    out = np.ones((B, L), bool)
    if d.has("k_offsets"):
        for s, first in enumerate(values["k_offsets"][:-1]):
            at = first + np.flatnonzero(sees[s])
            out[0, at[(at >= 0) & (at < L)]] = False
    elif d.has("page_table"):
        table = values["page_table"]
        by_page = sees.reshape(*table.shape, L)
        for page, see in zip(table.reshape(-1), by_page.reshape(-1, L)):
            if 0 <= page < B:
                out[page] &= ~see
    else:
        out[: len(sees)] = ~sees[:B]
    return out


def fit(d, ragged=True, cache_l="L"):
    """Relations of slots, pages and ragged keys."""
    if ragged:
        d.at_most_one("page_table", "k_offsets")
    if d.has("k_offsets"):
        d.dims["B"] = 1
        d.dims["S"] = d.dims["R"] - 1
        d.dims[cache_l] = d.dims[cache_l] * d.pick((1, 4, 16))
    elif d.has("page_table"):
        d.dims["B"] = max(1, round(d.dims["S"] * d.dims["P"] * d.pick((0.5, 1, 1.3))))
    else:
        d.dims["B"] = d.dims["S"]
        d.dims[cache_l] = d.dims[cache_l] * d.pick((1, 1, 4, 8, 16, 40))
    if not d.has("slot") and d.chance(0.8 if d.typical else 0.5) and d.dims["S"] > 1:
        d.add("slot")
