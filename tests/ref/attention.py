"""Reference of `attention`: float64, the formula of vivace/ops/attention.h, one query and head at a time."""
from itertools import product

import numpy as np

from tests.differential import slots
from tests.differential.domain import Domain, entries, nearest
from tests.ref.common import FLOATS, Case, rounding, round_to


SCRATCH = ("words",)  # counts that end as they began, and sums that mean nothing


def words_of(T, Hq, Hkv, Dv):
    """As AttentionArgs::words_of() of vivace/kernels/attention/attention.h."""
    return 4096 + 32 * (min(T, 16) * (Hq // Hkv) + 16) * (-(-Dv // 128) * 128)


def least_words(S, places, T, Hq, Hkv, D, Dv):
    """What the op asks for."""
    return words_of(T, Hq, Hkv, Dv) if S == 1 and places > 8192 and Hkv <= 4 and D > 64 else 0


def slots_of(k, v, page_table, k_offsets=None, layout="nhd"):
    """Keys and values by slot and place: with a page table each slot's pages in a row, zeros where there is none; with
    offsets each slot's rows, and zeros, which are not there, behind them."""
    if layout == "hnd":
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    if k_offsets is not None:
        held = held_rows(k_offsets, k.shape[1])

        def by_slot(x):
            rows = np.zeros((len(held), *x.shape[1:]))
            for s, n in enumerate(held):
                rows[s, :n] = x[0, max(k_offsets[s], 0) :][:n]
            return rows

        return by_slot(k), by_slot(v)
    if page_table is None:
        return k, v
    held = (page_table >= 0) & (page_table < len(k))
    S, P = page_table.shape

    def by_place(x):
        pages = np.where(held[:, :, None, None, None], x[np.where(held, page_table, 0)], 0.0)
        return pages.reshape(S, P * x.shape[1], *x.shape[2:])

    return by_place(k), by_place(v)


def held_rows(k_offsets, L):
    """Rows that each slot of ragged keys has; those outside of k are not there."""
    first, past = k_offsets[:-1], np.minimum(k_offsets[1:], L)
    return np.where(first < 0, 0, np.maximum(past - first, 0))


def visible(t, L, pos, slot, length, prefix, S, mask, window, bits=None, bits_from=None):
    s = 0 if slot is None else slot[t]
    if not 0 <= s < S:
        return 0, np.zeros(L, bool)
    j, p = np.arange(L), t if pos is None else pos[t]
    see = j < (L if length is None else length[s])
    if mask == "causal":
        see &= j <= p
    elif mask == "prefix":
        see &= (j <= p) | (j < prefix[s])
    elif mask == "state" and p <= prefix[s]:
        see &= j < prefix[s] + (p == prefix[s])
    if window > 0:
        see &= j > p - window
    if bits is not None:
        first = 0 if bits_from is None else bits_from[s]
        row = np.unpackbits(bits[t].astype("<i4").view(np.uint8), bitorder="little").astype(bool)
        place = j - first
        see &= (place < 0) | ((place < len(row)) & row[np.clip(place, 0, len(row) - 1)])
    return s, see


def each_head(q, k, pos, slot, length, prefix, mask, window, softcap, scale, head_scale=None, slopes=None, bits=None, bits_from=None):
    """(t, h, slot, kv head, seen places, their scores) of every query and head."""
    (T, Hq, D), (S, L, Hkv, _) = q.shape, k.shape
    scale = float(np.float32(scale if scale else 1 / np.sqrt(D)))
    for t in range(T):
        s, see = visible(t, L, pos, slot, length, prefix, S, mask, window, bits, bits_from)
        for h in range(Hq):
            g = h // (Hq // Hkv)
            if not see.any():
                continue
            score = scale * (1 if head_scale is None else head_scale[h]) * (k[s, see, g] @ q[t, h])
            if slopes is not None:
                score = score + slopes[h] * (np.flatnonzero(see) - max(t if pos is None else int(pos[t]), -(2**30)))
            score = softcap * np.tanh(score / softcap) if softcap > 0 else score
            yield t, h, s, g, see, np.where(np.abs(score) > FLOATS["f32"][2], np.copysign(np.inf, score), score)  # scores are f32


def ref(q, k, v, pos=None, slot=None, length=None, prefix=None, page_table=None, k_offsets=None, sinks=None,
        head_scale=None, slopes=None, bits=None, bits_from=None, out_scale=None, words=None, *, mask="causal", layout="nhd", window=0, softcap=0.0, scale=0.0, dtypes):
    if k_offsets is not None:
        held = held_rows(k_offsets, k.shape[2 if layout == "hnd" else 1])
        length = held if length is None else np.minimum(length, held)
    k, v = slots_of(k, v, page_table, k_offsets, layout)
    T, Hq, _ = q.shape
    out, lse = np.zeros((T, Hq, v.shape[-1])), np.full((T, Hq), -np.inf)
    for t, h, s, g, see, score in each_head(q, k, pos, slot, length, prefix, mask, window, softcap, scale, head_scale, slopes, bits, bits_from):
        m = score.max(initial=-np.inf)
        if m == -np.inf:
            continue
        p = np.exp(score - m)
        lse[t, h] = m + np.log(p.sum())
        top = m if sinks is None else max(m, sinks[h])
        total = p.sum() * np.exp(m - top) + (0 if sinks is None else np.exp(sinks[h] - top))
        out[t, h] = p @ v[s, see, g] * (np.exp(m - top) / total)
    written = {"out": round_to(out if out_scale is None else out / out_scale[0], dtypes["out"])}  # q's type between, which the bound counts
    if "lse" in dtypes:
        written["lse"] = round_to(lse, dtypes["lse"])
    return written


def bound(port, value, dtype, inputs):
    """A score is off by (D/16 + 8) half-units of the sum of its terms' sizes, which changes p by the same
    factor: with twice that error e, out moves by at most 2 e max|v|. Softmax and the sum over keys add a
    few half-units a key block, of max|v| too. Weights that the formula lets round to a 16-bit type move out
    by half a unit of theirs, of max|v|."""
    q, k, v, attrs = inputs["q"], inputs["k"], inputs["v"], inputs.attrs
    if not q.size:
        return rounding(value, dtype)
    k, v = (np.nan_to_num(x) for x in slots_of(k, v, inputs.get("page_table"), inputs.get("k_offsets"), attrs.get("layout", "nhd")))  # NaN: beyond a length
    D, L = q.shape[-1], k.shape[1]
    scale = attrs.get("scale", 0.0) or 1 / np.sqrt(D)
    size = abs(scale) * np.abs(q).sum(-1, keepdims=True) * np.abs(k).max(initial=0)  # of a score's terms
    if "head_scale" in inputs:
        size = size * np.abs(inputs["head_scale"])[:, None]
    if "slopes" in inputs:  # distances are below L + |pos|, whatever pos says; a factor 4 for the product and the sum
        far = np.abs(np.asarray(inputs["pos"], np.float64) if "pos" in inputs else np.full(len(q), float(L)))
        size = size + np.abs(inputs["slopes"])[:, None] * 4 * (L + far[:, None, None])
    capped = attrs.get("softcap", 0.0)
    error = (D / 16 + 10) * 2.0**-24 * size + (2.0**-22 * capped if capped else 0) + 2.0**-22 * np.minimum(size, 1e4)
    if port == "lse":
        return (error + 2.0**-22 * (1 + L / 16))[..., 0] + 2.0**-22 * np.abs(np.where(np.isfinite(value), value, 0)) + rounding(value, dtype)
    dtypes = inputs.case.dtypes
    rounds = dtypes["q"] != "f32" and dtypes["k"] in (dtypes["q"], "e4m3")
    weights = {"bf16": 2.0**-9, "f16": 2.0**-12 + 2.0**-25 * L}[dtypes["q"]] if rounds else 0.0
    off = (2 * np.minimum(error, 1) + 2.0**-24 * (L / 8 + 32) + weights) * np.abs(v).max(initial=0) + 1e-38
    if dtype == "e4m3":  # what out is off by, and half a unit of q's type, before it is divided
        off = (off + rounding(value * inputs["out_scale"][0], dtypes["q"]) / 2) / inputs["out_scale"][0]
    return off + rounding(value, dtype)


def shape(T, L, Hq, Hkv, D, Dv, S=1, B=None, P=None, W=None, R=None):
    """S slots of L places; with P of P pages of L places each, B in all; with R ragged, L rows for R - 1 slots. The sizes
    are named after layout=nhd: for hnd give Hkv as L and L as Hkv."""
    return {**({} if R is None else {"R": R}), "T": T, "S": S, "B": S if B is None else B, **({} if P is None else {"P": P}), **({} if W is None else {"W": W}), "L": L, "Hq": Hq, "Hkv": Hkv, "D": D, "Dv": Dv}


def ports(q, kv, **more):
    return {"q": q, "k": kv, "v": kv, "out": q, **more}


def codes(q, kv, **more):
    return ports(q, kv, **more) | {"out": "e4m3", "out_scale": "f32"}


def first_rows(*rows):
    return np.cumsum([0, *rows])


def stale(*lengths):
    """Keys or values that are NaN from each slot's length on."""
    def given(rng, shape):
        x = rng.standard_normal(shape)
        for s, n in enumerate(lengths):
            x[s, n:] = np.nan
        return x
    return given


def beyond(T, L, Hq, Hkv, D, q, kv, slot, *lengths, **more):
    S = len(lengths)
    return Case(shape(T, L, Hq, Hkv, D, D, S=S), ports(q, kv, slot="i32", length="i32", lse="f32"), {"mask": "full"}, distributions=("normal",), note="what lies beyond the length is no number",
                values={"k": stale(*lengths), "v": stale(*lengths), "slot": np.array(slot), "length": np.array(lengths)}, **more)


BEYOND = [
    beyond(4, 300, 8, 2, 128, "bf16", "bf16", [0, 1, 2, 1], 130, 64, 259),
    beyond(8, 1000, 8, 2, 64, "bf16", "bf16", [0, 1, 2, 3, 4, 5, 6, 7], 1000, 900, 513, 512, 511, 65, 1, 3),
    beyond(3, 300, 4, 1, 128, "f16", "e4m3", [0, 2, 1], 190, 7, 256),
    beyond(40, 300, 8, 1, 256, "bf16", "bf16", [0] * 40, 250),
    beyond(90, 200, 4, 2, 128, "bf16", "bf16", [1] * 30 + [0] * 60, 77, 130),
    beyond(90, 250, 4, 2, 256, "bf16", "bf16", [1] * 30 + [0] * 60, 77, 170),
]

def windowed(T, L, Hq, Hkv, D, q, kv, window, pos, slot=None, S=1, mask="causal", length=None, prefix=None, page=None, **attrs):
    """A call with a window whose tokens leave gaps. What none of them sees is no number, in the gaps, below every window and beyond; what some
    token sees is a number, and others of its tile must not lose it. page: places of a page; L is a slot's places in all."""
    given = {"pos": np.array(pos), **{n: np.array(x) for n, x in (("slot", slot), ("length", length), ("prefix", prefix)) if x is not None}}
    seen = np.zeros((S, L), bool)
    for t in range(T):
        s, see = visible(t, L, given["pos"], given.get("slot"), given.get("length"), given.get("prefix"), S, mask, window)
        seen[s] |= see
    if page is not None:
        P = L // page
        given["page_table"] = np.random.default_rng(L).permutation(S * P).reshape(S, P)
        by_page = np.zeros((S * P, page), bool)
        by_page[given["page_table"].reshape(-1)] = seen.reshape(S * P, page)
        seen = by_page

    def rows(rng, shape):
        return np.where(seen[:, :, None, None], rng.standard_normal(shape), np.nan)

    sizes = shape(T, L, Hq, Hkv, D, D, S=S) if page is None else shape(T, page, Hq, Hkv, D, D, S=S, B=S * (L // page), P=L // page)
    return Case(sizes, ports(q, kv, **{n: "i32" for n in given}, lse="f32"), {"window": window, **({} if mask == "causal" else {"mask": mask}), **attrs},
                values={"k": rows, "v": rows, **given}, distributions=("normal",), note="what no window reaches is no number")


APART = [*range(45), *range(230, 275)]  # positions of two chunks
WINDOWED = [
    *(windowed(3, 300, 8, 2, 128, q, kv, 16, [20, 290, 150]) for q, kv in (("bf16", "bf16"), ("f16", "e4m3"), ("f32", "f32"))),
    windowed(4, 304, 16, 2, 64, "bf16", "bf16", 1, [0, 300, 77, 300], page=16),
    windowed(5, 130, 4, 1, 128, "bf16", "bf16", 2, [90, 3, 40, 60, 125], length=[70]),  # two tokens whose windows begin beyond the length see nothing
    windowed(6, 130, 8, 2, 80, "f16", "f16", 9, [100, 30, 129, 20, 64, 101], slot=[0, 0, 0, 1, 1, 1], S=2),
    windowed(5, 90, 4, 1, 64, "bf16", "bf16", 3, [5, 40, 41, 80, 60], mask="prefix", prefix=[30]),
    windowed(5, 90, 4, 1, 64, "bf16", "e4m3", 2, [5, 40, 41, 80, 60], mask="state", prefix=[41]),
    windowed(4, 90, 4, 1, 64, "bf16", "bf16", 4, [5, 80, 40, 60], softcap=4.0),
    *(windowed(90, 300, Hq, Hkv, D, q, kv, 8, APART) for Hq, Hkv, D, q, kv in ((4, 2, 128, "bf16", "bf16"), (8, 1, 256, "bf16", "bf16"), (4, 4, 72, "f16", "f16"), (4, 2, 128, "bf16", "e4m3"), (1, 1, 33, "bf16", "bf16"))),
    windowed(90, 304, 4, 2, 128, "bf16", "bf16", 33, APART[::-1], page=16),
]

RAGGED = [
    Case(shape(7, 90, 4, 2, 40, 24, R=4), ports("f32", "f32", pos="i32", slot="i32", k_offsets="i32", lse="f32"),
         ranges={"pos": (0, 90), "slot": (-1, 4)}, values={"k_offsets": first_rows(30, 0, 60)}, note="ragged keys; a slot without any"),
    Case(shape(5, 200, 8, 2, 128, 128, S=3, B=1, R=4), ports("bf16", "bf16", pos="i32", slot="i32", length="i32", k_offsets="i32"), values={"k_offsets": np.array([-3, 50, 150, 230]), "slot": np.array([1, 2, 0, 2, 1])},
         ranges={"pos": (0, 100), "length": (20, 101)}, distributions=("normal",), note="offsets that k does not have: decode"),
    Case(shape(90, 120, 4, 2, 128, 128, R=4), ports("bf16", "bf16", pos="i32", slot="i32", k_offsets="i32", lse="f32"),
         values={"k_offsets": first_rows(33, 47, 40), "slot": np.repeat([0, 1, 2], 30), "pos": np.tile(np.arange(3, 33), 3)}, distributions=("normal", "edges"), note="a ragged prefill"),
    Case(shape(6, 90, 4, 2, 64, 64, R=3), ports("f16", "e4m3", pos="i32", slot="i32", k_offsets="i32"), values={"k_offsets": first_rows(37, 53), "slot": np.array([0, 0, 1, 1, 1, 0])},
         ranges={"pos": (0, 60)}, distributions=("normal",)),
]

HND = {"layout": "hnd"}
HEADS_FIRST = [
    Case(shape(9, 2, 6, 100, 40, 24, S=3), ports("f32", "f32", pos="i32", slot="i32", length="i32", lse="f32"), HND, ranges={"pos": (0, 100), "slot": (-1, 4), "length": (0, 101)}),
    Case(shape(5, 2, 4, 16, 64, 64, S=3, B=20, P=6), ports("bf16", "bf16", pos="i32", slot="i32", length="i32", page_table="i32"), HND,
         ranges={"pos": (0, 96), "slot": (0, 3), "length": (1, 97), "page_table": (-1, 21)}, distributions=("normal",), note="pages of heads"),
    Case(shape(80, 2, 4, 100, 128, 128, S=2), ports("bf16", "bf16", pos="i32", slot="i32", lse="f32"), HND, ranges={"pos": (0, 100)},
         values={"slot": np.repeat([1, 0], 40)}, distributions=("normal", "edges"), note="a prefill"),
    Case(shape(70, 3, 3, 8, 128, 128, B=12, P=11), ports("f16", "f16", pos="i32", page_table="i32"), HND, ranges={"pos": (0, 88), "page_table": (-1, 13)},
         distributions=("normal",), note="a prefill over pages of heads"),
    Case(shape(90, 2, 8, 16, 256, 256, S=2, B=30, P=13), ports("bf16", "bf16", pos="i32", slot="i32", page_table="i32", lse="f32"), HND, ranges={"pos": (0, 208), "page_table": (-1, 31)},
         values={"slot": np.repeat([1, 0], 45)}, distributions=("normal", "edges"), note="heads of 256: blocks of five pages"),
    Case(shape(1100, 1, 8, 64, 256, 256, B=5, P=4), ports("bf16", "bf16", pos="i32", page_table="i32"), HND, ranges={"pos": (0, 256), "page_table": (-1, 6)}, distributions=("normal",), note="heads of 256: a page a block, more tiles than SMs"),
    Case(shape(3, 1, 8, 130, 128, 128), ports("bf16", "e4m3", pos="i32", slopes="f32"), HND, ranges={"pos": (100, 130), "slopes": (0, 0.1)}, distributions=("normal",)),
]

CHUNKS = [  # tens of queries of one slot
    Case(shape(50, 700, 8, 1, 256, 256), ports("bf16", "bf16", pos="i32", slot="i32", length="i32", prefix="i32", lse="f32"), {"mask": "state"}, distributions=("normal", "large"),
         values={"pos": np.arange(617, 667), "slot": np.array([0] * 20 + [-1] + [0] * 29), "length": np.array([667]), "prefix": np.array([618])}, note="actions of one observation, one of no slot"),
    Case(shape(30, 16, 8, 2, 256, 256, B=14, P=12), ports("bf16", "bf16", pos="i32", page_table="i32", lse="f32"), {"window": 100},
         ranges={"pos": (0, 192), "page_table": (-1, 15)}, distributions=("normal",), note="a chunk over pages"),
    Case(shape(33, 2, 8, 150, 256, 256), ports("f16", "f16", pos="i32"), {"layout": "hnd"}, ranges={"pos": (0, 150)}, distributions=("normal", "edges"), note="a chunk over heads first"),
    Case(shape(60, 200, 4, 4, 256, 256), ports("f16", "f16", sinks="f32", rows="i32"), {"mask": "full"}, rows=41, distributions=("normal",), note="a chunk of which rows are valid"),
    Case(shape(40, 120, 8, 1, 256, 256, R=2), ports("bf16", "bf16", pos="i32", k_offsets="i32", lse="f32"), values={"k_offsets": np.array([5, 110])}, ranges={"pos": (0, 120)},
         distributions=("normal",), note="a chunk over ragged keys"),
]

CODES = [  # outputs in e4m3: every kernel
    Case(shape(4, 700, 8, 2, 128, 128, S=4), codes("bf16", "bf16", pos="i32", slot="i32", lse="f32"), ranges={"pos": (0, 700)}, values={"slot": np.array([2, 0, 3, 1]), "out_scale": [0.011]},
         distributions=("normal", "large"), note="codes of a decode step"),
    Case(shape(2, 2100, 8, 1, 64, 64), codes("f16", "f16", pos="i32", sinks="f32", rows="i32"), rows=1, ranges={"pos": (2000, 2100)}, values={"out_scale": [0.004]}, distributions=("normal",), note="codes of one token in parts"),
    Case(shape(3, 600, 8, 2, 128, 128, S=3), codes("bf16", "e4m3", pos="i32", slot="i32"), ranges={"pos": (500, 600)}, values={"slot": np.array([0, 2, 1]), "out_scale": [2.0**-9]}, distributions=("normal",),
         note="codes over a cache of codes"),
    Case(shape(3, 4, 8, 2, 128, 128, S=3, B=60, P=20), codes("bf16", "bf16", pos="i32", slot="i32", page_table="i32"), ranges={"pos": (40, 80), "page_table": (0, 60)},
         values={"slot": np.array([0, 2, 1]), "out_scale": [0.02]}, distributions=("normal",), note="codes over small pages"),
    Case(shape(90, 150, 4, 2, 128, 128, S=2), codes("bf16", "bf16", pos="i32", slot="i32", rows="i32"), rows=77, ranges={"pos": (0, 150)}, values={"slot": np.repeat([1, 0], 45), "out_scale": [0.01]},
         distributions=("normal", "edges"), note="codes of a prefill"),
    Case(shape(80, 100, 4, 2, 128, 128), codes("f16", "e4m3", lse="f32"), values={"out_scale": [1.5 * 2.0**-40]}, distributions=("normal",), note="codes that saturate"),
    Case(shape(70, 90, 3, 1, 72, 72), codes("bf16", "bf16", slopes="f32"), ranges={"slopes": (0, 0.1)}, values={"out_scale": [0.015]}, distributions=("normal",), note="codes with ALiBi"),
    Case(shape(5, 60, 6, 2, 40, 24), codes("f32", "f32", pos="i32"), ranges={"pos": (0, 60)}, positive=("out_scale",), note="codes of f32"),
]

def group_cases():
    """Decode steps whose groups of heads fill a tile of the kernel for few queries (8, 16, 32) or do not (24): several kv heads, slots of their own in another order,
    a token without one, one whose slot holds less than a box; every layout of the cache."""
    slot, length = np.array([2, 0, 5, -1, 3]), np.array([130, 64, 5, 33, 90, 128])
    pos = length[slot] - 1
    for (group, D), t, kind, order in product(((8, 128), (16, 64), (32, 72), (24, 64)), ("bf16", "f16"), ("dense", "paged", "ragged"), ("nhd", "hnd")):
        if group == 24 and (t, order) != ("bf16", "nhd"):
            continue
        S, page, Hkv = len(length), 16, 2
        L = {"dense": 136, "paged": page, "ragged": 450}[kind]
        values = {"slot": slot, "pos": pos}
        more = {}
        if kind == "paged":
            more = {"B": 60, "P": 9}
            values["page_table"] = np.random.default_rng(group).permutation(60)[: S * 9].reshape(S, 9)
        if kind == "ragged":
            more = {"R": S + 1}
            values["k_offsets"] = first_rows(*length)
        sizes = (Hkv, L) if order == "hnd" else (L, Hkv)  # named after nhd
        yield Case(shape(5, sizes[0], Hkv * group, sizes[1], D, D, S=S, **({"B": 1} if kind == "ragged" else {}) | more), ports(t, t, **{n: "i32" for n in values}, lse="f32"), {"layout": order} if order == "hnd" else {},
                   values=values, distributions=("normal",), note="groups that fill a tile")
    yield Case(shape(4, 300, 64, 2, 64, 64), ports("bf16", "bf16", pos="i32"), values={"pos": np.array([290, 291, 292, 293])}, distributions=("normal",), note="a token fills a tile: several of one sequence")
    for group, T in ((8, 3), (16, 4), (32, 2)):
        yield Case(shape(T, 200, group, 1, 64, 64, S=T), ports("bf16", "bf16", pos="i32", slot="i32"), values={"pos": 199 - 50 * np.arange(T), "slot": np.arange(T)[::-1].copy()}, distributions=("normal",),
                   note="one kv head: tokens and heads are one axis of the map, where tokens lie side by side")
    yield Case(shape(18, 150, 64, 2, 128, 128), codes("bf16", "bf16", pos="i32"), values={"pos": np.arange(132, 150), "out_scale": [0.01]}, distributions=("normal",), note="a chunk of which a token fills a tile")


FULL = {"mask": "full"}
KINDS = np.repeat([0, 1, 0, -1, 1, 0, 1, 2, 0, 1], [37, 100, 1, 250, 64, 3, 700, 2, 129, 814])  # runs of slots of all lengths
ENCODERS = [  # long windows in full: heads of 64 that tiles of 256 rows take, lengths beside their blocks of 128 keys
    Case(shape(1500, 1040, 12, 12, 64, 64), ports("bf16", "bf16", slot="i32", length="i32", lse="f32"), FULL, values={"slot": np.repeat([0, -1, 0], [257, 1, 1242]), "length": np.array([130])}, distributions=("normal", "large"),
         note="a token that has no slot divides a tile's run"),
    Case(shape(2100, 1030, 9, 9, 64, 64, S=2), ports("bf16", "bf16", slot="i32", length="i32", rows="i32"), FULL, rows=2095, values={"slot": KINDS, "length": np.array([257, 1])}, distributions=("normal",), note="windows in any order"),
    Case(shape(1030, 1024, 17, 1, 64, 64), codes("bf16", "bf16", length="i32", sinks="f32", lse="f32"), FULL, values={"length": np.array([128]), "out_scale": [0.01]}, distributions=("normal",), note="tokens across tiles, one whole block of keys"),
    Case(shape(2100, 9, 9, 1100, 64, 64, B=1, R=3), ports("f16", "f16", slot="i32", k_offsets="i32"), FULL | {"layout": "hnd"}, values={"slot": KINDS, "k_offsets": np.array([5, 260, 389])}, distributions=("normal",), note="ragged windows, heads first"),
]

def far(T, L, Hq, Hkv, D, t, pos, attrs=None, *, P=None, more=None, values=None, **options):
    """Few kv heads of one sequence over a long cache, whose keys clusters of blocks share 4096 at a time; what no token sees is no number."""
    given = {"pos": np.array(pos), "words": lambda rng, shape: np.zeros(shape, np.int64)} | (values or {})
    end = max(min(max(pos) + 1, L * (P or 1)), 0)

    def seen(rng, shape):
        x = rng.standard_normal(shape)
        if P is None:
            x[:, end:] = np.nan
        else:
            x[given["page_table"].reshape(-1)] = np.where(np.arange(P * L).reshape(P, L, 1, 1) < end, x[given["page_table"].reshape(-1)], np.nan)
        return x

    if P is not None:
        given["page_table"] = np.random.default_rng(P).permutation(P).reshape(1, P)
    dtypes = {n: "i32" for n in given if n not in ("q", "out_scale")} | (more or {})
    made = codes(t, t, **dtypes) if "out_scale" in given else ports(t, t, **dtypes)
    return Case(shape(T, L, Hq, Hkv, D, D, **({"B": P, "P": P} if P else {})) | {"N": words_of(T, Hq, Hkv, D)}, made, attrs or {}, values=given | {"k": seen, "v": seen}, distributions=("normal",), **options)


LSE = {"lse": "f32"}
FAR = [
    *(far(1, 9000 + i, 16, 2, 256, "bf16", [p], more=LSE, note="two kv heads in four clusters each: around the first one's keys") for i, p in enumerate((0, 4095, 4096, 8999))),
    far(1, 20000, 8, 2, 128, "bf16", [19990], more=LSE, note="more than a lap of clusters"),
    far(1, 33500, 8, 1, 128, "f16", [33400], more=LSE, values={"q": lambda rng, shape: 8 * rng.standard_normal(shape)}, note="one kv head in eight clusters; largest scores lie apart"),
    far(4, 12400, 12, 4, 128, "bf16", [0, 4095, 4096, 12350], more=LSE, note="positions of several clusters in a tile"),
    far(16, 8200, 16, 1, 128, "bf16", range(8180, 8196), more={"rows": "i32"}, rows=13, note="drafts, of which rows are valid"),
    far(5, 64, 16, 2, 256, "bf16", range(8190, 8195), P=140, more=LSE, note="drafts over pages"),
    far(2, 9000, 8, 2, 128, "bf16", [8500, 77], more={"slot": "i32", "lse": "f32"}, values={"slot": np.array([0, -1])}, note="a token of no slot"),
    far(1, 9000, 8, 2, 128, "bf16", [-1], more=LSE, note="a token that sees nothing"),
    far(1, 9000, 8, 2, 128, "bf16", [8700], more={"sinks": "f32"}, values={"out_scale": [0.003]}, note="sinks and codes"),
    far(1, 9000, 6, 3, 72, "f16", [8998], {"mask": "full"}, more={"length": "i32", "lse": "f32"}, values={"length": np.array([8999])}, note="three kv heads"),
    far(1, 9000, 8, 2, 128, "bf16", [8998], {"window": 500}, note="one cluster: a window"),
    far(1, 9000, 8, 2, 64, "bf16", [8998], note="one cluster: heads of 64"),
]

CAPPED = {"softcap": 4.0}
CUT = [  # kernels cut in eight or sixteen along the keys, and the one that no TMA feeds
    *(Case(shape(3, 700, 8, 2, 128, 128), ports(t, t, pos="i32", lse="f32"), CAPPED, ranges={"pos": (600, 700)}, distributions=("normal",), note="capped scores of a long decode step") for t in ("bf16", "f16")),
    Case(shape(2, 700, 4, 2, 128, 128), codes("bf16", "bf16", pos="i32"), CAPPED, ranges={"pos": (600, 700)}, values={"out_scale": [0.01]}, distributions=("normal",), note="codes of capped scores"),
    Case(shape(33, 600, 4, 2, 128, 128), ports("bf16", "bf16", pos="i32"), CAPPED, ranges={"pos": (500, 600)}, distributions=("normal",), note="capped scores of a chunk"),
    Case(shape(70, 90, 4, 2, 128, 128), codes("bf16", "bf16", lse="f32"), CAPPED, values={"out_scale": [0.02]}, distributions=("normal",), note="codes of a capped prefill"),
    Case(shape(1, 7, 1, 1, 128, 128, B=160, P=300), codes("bf16", "bf16", pos="i32", page_table="i32"), ranges={"pos": (2000, 2100), "page_table": (-1, 161)}, values={"out_scale": [0.003]}, distributions=("normal",),
         note="codes over many small pages"),
    Case(shape(1, 7, 1, 1, 128, 128, B=225, P=440), ports("bf16", "e4m3", pos="i32", page_table="i32", lse="f32"), ranges={"pos": (3000, 3080), "page_table": (-1, 226)}, distributions=("normal",), note="many small pages of codes"),
]

CASES = [
    Case(shape(1, 40, 9, 3, 64, 64), ports("f32", "f32", pos="i32"), ranges={"pos": (39, 40)}),
    Case(shape(7, 70, 4, 2, 32, 32), ports("bf16", "bf16", lse="f32")),
    Case(shape(1, 3000, 4, 1, 128, 128), ports("bf16", "bf16", pos="i32"), ranges={"pos": (2999, 3000)}, distributions=("normal",), note="many blocks of keys for each warp"),
    Case(shape(5, 100, 6, 6, 40, 24, S=3), ports("f16", "f16", pos="i32", slot="i32", length="i32", lse="f32"), {"scale": 0.3},
         ranges={"pos": (0, 100), "slot": (-1, 4), "length": (0, 101)}, note="slots out of range and empty slots see nothing"),
    Case(shape(6, 64, 8, 1, 128, 128), ports("bf16", "e4m3", pos="i32"), {"softcap": 5.0}, ranges={"pos": (0, 64)}),
    Case(shape(9, 90, 2, 1, 64, 64, S=2), ports("f32", "f32", pos="i32", slot="i32", prefix="i32"), {"mask": "prefix"},
         ranges={"pos": (0, 90), "slot": (0, 2), "prefix": (0, 90)}),
    Case(shape(4, 80, 4, 4, 256, 256), ports("f32", "bf16"), {"mask": "full"}),
    Case(shape(8, 80, 4, 2, 64, 64), ports("f32", "f32", pos="i32", sinks="f32", lse="f32"), {"window": 16}, ranges={"pos": (0, 80)}),
    Case(shape(6, 33, 3, 1, 16, 16), ports("f32", "f32", rows="i32"), rows=4),
    Case(shape(5, 8, 4, 2, 64, 64, S=3, B=9, P=3), ports("bf16", "bf16", pos="i32", slot="i32", length="i32", page_table="i32", lse="f32"),
         ranges={"pos": (0, 24), "slot": (0, 3), "length": (1, 25), "page_table": (0, 9)}, note="pages"),
    Case(shape(6, 7, 6, 2, 24, 24, S=2, B=5, P=4), ports("f32", "f32", pos="i32", slot="i32", prefix="i32", page_table="i32"), {"mask": "prefix"},
         ranges={"pos": (0, 28), "slot": (0, 2), "prefix": (0, 28), "page_table": (-1, 6)}, note="some pages do not exist"),
    Case(shape(40, 300, 8, 1, 256, 256), ports("bf16", "bf16", pos="i32", length="i32", lse="f32"), {"mask": "full"},
         ranges={"pos": (0, 300), "length": (250, 301)}, distributions=("normal", "large"), note="an action chunk"),
    Case(shape(70, 130, 4, 2, 72, 72), ports("f16", "f16"), distributions=("normal", "edges"), note="prefill"),
    Case(shape(90, 90, 3, 1, 128, 128, S=4), ports("bf16", "bf16", pos="i32", slot="i32", sinks="f32", lse="f32"), {"window": 33, "softcap": 3.0},
         ranges={"pos": (0, 90)}, values={"slot": lambda rng, shape: np.sort(rng.integers(-1, 5, shape))}, distributions=("normal",),
         note="a prefill of several slots"),
    Case(shape(4, 700, 8, 2, 128, 128, S=4), ports("bf16", "bf16", pos="i32", slot="i32", lse="f32"),
         ranges={"pos": (0, 700)}, values={"slot": np.array([2, 0, 3, 1])}, distributions=("normal", "large"), note="a decode step of four sequences"),
    Case(shape(3, 600, 40, 1, 64, 80), ports("f16", "e4m3", pos="i32"), ranges={"pos": (590, 600)}, distributions=("normal",),
         note="more heads than a tile has rows"),
    Case(shape(0, 16, 2, 2, 16, 16), ports("f32", "f32")),
    Case(shape(75, 90, 4, 2, 192, 128), ports("bf16", "bf16", lse="f32"), distributions=("normal",), note="heads of 192 and 128: before absorption"),
    Case(shape(2, 200, 16, 16, 192, 128), ports("f16", "f16", pos="i32"), ranges={"pos": (100, 200)}, distributions=("normal", "large")),
    Case(shape(11, 60, 4, 1, 64, 64), ports("bf16", "bf16", pos="i32", prefix="i32", lse="f32"), {"mask": "state"}, values={"pos": np.arange(14, 25), "prefix": np.array([17])},
         note="a prefix's last places, the state at 17, the actions"),
    Case(shape(70, 90, 4, 2, 128, 128), ports("bf16", "bf16", slopes="f32", head_scale="f32", lse="f32"), ranges={"slopes": (0, 1), "head_scale": (0.5, 1.5)},
         distributions=("normal",), note="ALiBi and a scale a head, prefill"),
    Case(shape(3, 200, 6, 2, 64, 64), ports("f16", "f16", pos="i32", slopes="f32"), {"softcap": 4.0}, ranges={"pos": (150, 200), "slopes": (0, 0.1)}),
    Case(shape(4, 200, 8, 2, 64, 64), ports("bf16", "bf16", pos="i32", slopes="f32", lse="f32"), {"mask": "full"}, values={"pos": np.array([-(2**31), 2**31 - 1, 150, -1])},
         ranges={"slopes": (0, 0.1)}, distributions=("normal",), note="distances of 32 bits and a sign"),
    Case(shape(9, 300, 8, 2, 128, 128, S=2, W=1), ports("bf16", "bf16", slot="i32", length="i32", bits="i32", bits_from="i32", lse="f32"), {"mask": "full"},
         ranges={"bits": (-2**31, 2**31)}, values={"slot": np.array([0] * 5 + [1] * 4), "length": np.array([210, 300]), "bits_from": np.array([201, 291])},
         distributions=("normal", "large"), note="two speculative trees"),
    Case(shape(40, 70, 4, 4, 40, 40, W=2), ports("f32", "f32", bits="i32", head_scale="f32", lse="f32"), {"mask": "full"},
         ranges={"bits": (-2**31, 2**31), "head_scale": (0.1, 2)}, note="bits from place 0; those beyond 64 are hidden"),
    Case(shape(66, 66, 2, 1, 72, 72, W=3), ports("f16", "f16", bits="i32"), {"mask": "causal"},
         values={"bits": lambda rng, shape: np.where(np.arange(66)[:, None] % 3 == 0, 0, rng.integers(-2**31, 2**31, shape))}, distributions=("normal", "edges"),
         note="every third row sees nothing"),
    *(Case(shape(2, 4096, 4, 1, 128, 128, S=2), ports("bf16", kv, pos="i32", slot="i32", lse="f32"), ranges={"pos": (4000, 4096)}, values={"slot": np.array([1, 0]), "q": lambda rng, shape: 8 * rng.standard_normal(shape)},
           distributions=("normal",), note="long decode steps: every part of a divided row has several blocks of keys, whose largest scores lie apart") for kv in ("bf16", "e4m3")),
    *BEYOND, *WINDOWED, *RAGGED, *CHUNKS,
    *HEADS_FIRST, *CODES, *CUT, *ENCODERS, *FAR, *group_cases(),
]


def fit(d):
    masked = d.attr("mask") in ("prefix", "state")
    (d.add if masked else d.drop)("prefix")
    d.needs("bits_from", "bits")
    d.dtypes["out"] = "e4m3" if d.dtypes["out"] == "e4m3" else d.dtypes["q"]
    d.quantized_out(("out_scale",))
    if d.dtypes["k"] not in ("e4m3", d.dtypes["q"]) and d.chance(0.8):
        d.dtypes["k"] = d.dtypes["q"]
    hnd = d.attr("layout") == "hnd"
    heads, places = ("L", "Hkv") if hnd else ("Hkv", "L")
    d.heads(Hkv="Hkv")
    d.dims["Hkv"], d.dims["L"] = (d.dims["L"], d.dims["Hkv"]) if hnd else (d.dims["Hkv"], d.dims["L"])
    slots.fit(d, cache_l=places)
    if d.chance(0.85):
        d.dims["Dv"] = d.dims["D"]
    d.dims["W"] = max(1, min(d.dims["W"], 8))
    if d.attr("mask") == "full" and d.dims["T"] >= 1024 and d.chance(0.5):
        encoder(d, heads, places)
    if d.has("words"):
        if d.chance(0.3):
            long_cache(d, heads, places)
        d.dims["N"] = least_words(slots.slot_count(d), slots.places_of(d, places), d.dims["T"], d.dims["Hq"], d.dims[heads], d.dims["D"], d.dims["Dv"]) + d.pick((0, 0, 1, 100))


def long_cache(d, heads, places):
    """A step of one sequence, or of a few drafts of it, whose few kv heads several clusters may share."""
    d.drop("k_offsets", "head_scale", "slopes", "bits", "bits_from")
    for name in ("window", "softcap"):
        d.attrs.pop(name, None)
    d.dims["S"], d.dims["T"] = 1, d.pick((1, 1, 1, 2, 5, 16))
    d.dims[heads], d.dims["D"] = d.pick(((1, 128), (2, 128), (3, 72), (4, 128), (1, 256), (2, 256)))
    d.dims["Dv"], d.dims["Hq"] = d.dims["D"], d.dims[heads] * d.pick((1, 4, 6, 8, 16))
    if d.has("page_table"):
        d.dims[places] = d.pick((16, 64, 128))
        d.dims["P"] = d.pick((8200, 9000, 13000)) // d.dims[places]
        d.dims["B"] = d.dims["P"] + d.pick((0, 1))
    else:
        d.dims["B"], d.dims[places] = 1, d.pick((8193, 9000, 12289, 17000))


def encoder(d, heads, places):
    """Long windows of heads of 64, and so many heads that tiles of 256 rows may be few turns of a chip."""
    d.drop("page_table", "k_offsets", "head_scale", "slopes", "bits", "bits_from")
    for name in ("window", "softcap"):
        d.attrs.pop(name, None)
    d.dims["S"] = d.dims["B"] = max(1, min(d.dims["S"], d.dims["T"] // 1024))
    group = d.pick((1, 1, 1, 2, 3, 8))
    d.dims["D"] = d.dims["Dv"] = 64
    d.dims[heads] = -(-d.pick((17000, 20000, 30000)) // (d.dims["T"] * group))
    d.dims["Hq"] = d.dims[heads] * group
    d.dims[places] = max(d.dims[places], 1024 + d.pick((0, 1, 127)))


def contents(d, rng):
    out = slots.contents(d, rng, "Hkv" if d.attr("layout") == "hnd" else "L")
    if d.has("words"):
        out["words"] = np.zeros(d.dims["N"], np.int64)
    if d.has("bits"):
        out["bits"] = rng.integers(-(2**31), 2**31, (d.dims["T"], d.dims["W"]))
    if d.has("bits_from"):
        out["bits_from"] = entries(rng, d.dims["S"], 0, max(1, slots.places_of(d, "Hkv" if d.attr("layout") == "hnd" else "L")), outside=False)
    return out


def unread(d, values):
    hnd = d.attr("layout") == "hnd"
    rows = slots.unseen_rows(d, values, cache_l="Hkv" if hnd else "L")
    if hnd:
        rows = np.broadcast_to(rows[:, None], (rows.shape[0], d.dims["L"], rows.shape[1]))
    return {"k": rows, "v": rows}


def multiply_adds(d):
    hnd = d.attr("layout") == "hnd"
    places = slots.places_of(d, "Hkv" if hnd else "L")
    return d.dims["T"] * d.dims["Hq"] * (places * (d.dims["D"] + d.dims["Dv"]) / 8 + 4000)


DOMAIN = Domain(fit=fit, contents=contents, unread=unread, work=multiply_adds, positive=("out_scale",), ranges={"slopes": (0.0, 0.2), "head_scale": (0.5, 1.5)},
                attrs={"window": (1, 2, 8, 16, 33, 64, 100, 1000), "softcap": (4.0, 30.0), "scale": (0.07, 0.3)}, distributions=("normal", "normal", "large", "tiny", "edges", "zero"), weight=4, tokens={"pos": nearest}, indices=("pos", "slot", "length", "prefix", "page_table", "bits"))
