"""Reference of `sample`: scores in f32 as vivace/ops/sample.h says, noise and masses in float64, by sorting.

The op's decisions are made in f32. Rows where that could matter (two scores, or a mass and its limit,
within MARGIN of each other) are redrawn when the cases are made: what remains has one right answer.
"""
import functools

import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to

f32 = np.float32
MARGIN = 1e-5
GREEDY_BELOW = f32(1e-6)


def philox4x32_10(counter, key):
    """[..., 4] counters and two key words -> [..., 4] words, in exact integers."""
    c, (k0, k1) = [counter[..., i].astype(np.uint64) for i in range(4)], key
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & low, (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, -1)


def gumbel(V, seed, step):
    """Noise of tokens 0 .. V-1."""
    counter = np.zeros(((V + 3) // 4, 4), np.uint64)
    counter[:, 0], counter[:, 1] = np.arange(len(counter)), step % 2**32
    seed = int(seed) % 2**64
    w = philox4x32_10(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)[:V]
    u = np.minimum((w.astype(f32) + f32(0.5)) * f32(2.0**-32), f32(1 - 2.0**-24)).astype(np.float64)
    return -np.log(-np.log1p(-u))


def decide(l, *, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, step=0, counts=None, repetition=1.0, presence=0.0,
           frequency=0.0, allowed=None):
    """(token, whether every decision has its margin) of one row of f32 logits."""
    l, V = l.astype(f32), len(l)
    if counts is not None:
        seen = counts > 0
        l = np.where(seen, np.where(l > 0, l / f32(repetition), l * f32(repetition)), l)
        l = np.where(seen, l - (f32(presence) + f32(frequency) * counts.astype(f32)), l)
    sharp = not temperature >= GREEDY_BELOW
    z = l if sharp else np.where(l == -np.inf, l, l / f32(temperature))
    if allowed is not None:
        z = np.where(allowed, z, f32(-np.inf))
    if np.isnan(z).any() or z.max() == -np.inf:
        return -1, True
    if sharp or z.max() == np.inf:
        return int(np.argmax(z)), True
    z = z.astype(np.float64)
    e = np.exp(z - z.max())
    order = np.lexsort((np.arange(V), -z))  # best first, ties by lower id
    order, sure = order[e[order] > 0], True
    if 0 < top_k < V:
        order = order[:top_k]
    if top_p < 1:
        mass = np.cumsum(e[order])
        want = float(f32(top_p)) * mass[-1]
        keep = int(np.searchsorted(mass, want)) + 1
        sure &= np.abs(mass - want).min() > MARGIN * mass[-1] or keep == 1
        order = order[:keep]
    if min_p > 0:
        ratio = e[order] / float(f32(min_p))
        sure &= np.abs(ratio - 1).min() > MARGIN
        order = order[(ratio >= 1) | (order == order[0])]
    score = z[order] + gumbel(V, seed, step)[order]
    best = np.sort(score)[::-1]
    sure &= len(best) < 2 or best[0] - best[1] > MARGIN
    return int(order[np.argmax(score)]), bool(sure)


_PER_ROW = ("temperature", "top_k", "top_p", "min_p", "seed", "step", "repetition", "presence", "frequency")


def row_options(t, V, inputs):
    """What decide() takes, for row t of the ports."""
    options = {k: inputs[k][t] for k in _PER_ROW if k in inputs}
    if "counts" in inputs:
        slot = int(inputs["slot"][t]) if "slot" in inputs else 0
        options["counts"] = inputs["counts"][slot] if 0 <= slot < len(inputs["counts"]) else None
    row = int(inputs["mask_slot"][t]) if "mask_slot" in inputs else t
    if "mask" in inputs and 0 <= row < len(inputs["mask"]):
        words = inputs["mask"][row].astype(np.uint32)
        options["allowed"] = (words[np.arange(V) // 32] >> (np.arange(V) % 32).astype(np.uint32) & 1).astype(bool)
    return options


def ref(*, dtypes, **inputs):
    logits = inputs["logits"]
    T, V = logits.shape
    token = np.array([decide(logits[t], **row_options(t, V, inputs))[0] for t in range(T)], np.int64).reshape(T)
    written = {"token": token}
    if "logprob" in dtypes:
        m = logits.max(-1, keepdims=True)
        lse = m + np.log(np.exp(logits - m).sum(-1, keepdims=True))
        written["logprob"] = np.where(token >= 0, (logits - lse)[np.arange(T), np.maximum(token, 0)], np.nan)
    return written


def bound(port, value, dtype, inputs):
    """log p: the sum's relative error (see softmax), its logarithm's, and two f32 subtractions."""
    finite = np.where(np.isfinite(inputs["logits"]), inputs["logits"], 0.0)
    return 1e-5 + 2.0**-22 * np.abs(finite).max(-1, initial=0)


@functools.cache
def scenario(T, V, S, dtype, ports, spread, seed, M=3):
    """Values of `ports` with a margin in every row: rows that lack it are redrawn.

    Small vocabularies get few levels, so that cuts fall between equal logits.
    """
    rng = np.random.default_rng([T, V, seed])
    out = {"counts": rng.integers(0, 4, (S, V)) * (rng.random((S, V)) < 0.3)}
    if "mask_slot" in ports:  # else a row has its own mask, and is drawn with it
        out["mask"] = rng.integers(-(2**31), 2**31, (M, (V + 31) // 32))
    rows = []
    while len(rows) < max(T, 1 if V else 0):  # of no row at all: the shapes of one
        row = {
            "logits": round_to(np.round(spread * rng.standard_normal(V) * 4) / 4 if V < 50 else spread * rng.standard_normal(V), dtype),
            "temperature": rng.choice([0.0, 0.3, 0.7, 1.0, 1.7]), "top_k": rng.integers(-1, V + 2) if V < 8000 else rng.choice([1, 5, 40, 90, 200, V // 2]), "top_p": rng.choice([0.0, 0.3, 0.8, 0.95, 1.0]),
            "min_p": rng.choice([0.0, 0.02, 0.3]), "seed": rng.integers(-(2**63), 2**63), "step": rng.integers(0, 2**31),
            "slot": rng.integers(-1, S + 1), "mask_slot": rng.integers(-1, M + 1), "repetition": rng.choice([1.0, 1.3, 0.8]), "presence": rng.choice([0.0, 0.5]),
            "frequency": rng.choice([0.0, 0.25]), "mask": rng.integers(-(2**31), 2**31, (V + 31) // 32),
        }
        row = {k: v for k, v in row.items() if k not in out}
        row = {k: round_to(v, "f32") if k in ("temperature", "top_p", "min_p", "repetition", "presence", "frequency") else v for k, v in row.items()}
        one = {k: np.asarray(row[k])[None] for k in ports if k in row} | {k: out[k] for k in ports if k in out}
        if decide(row["logits"], **row_options(0, V, one))[1]:
            rows.append(row)
    if not rows:  # neither rows nor a vocabulary
        return {k: np.zeros((0, 0) if k in ("logits", "mask") else 0) for k in ("logits", *ports) if k not in out} | out
    return {k: np.stack([r[k] for r in rows])[:T] for k in rows[0]} | out


_DTYPE = {"top_k": "i32", "seed": "i64", "step": "i32", "counts": "i32", "slot": "i32", "mask": "i32", "mask_slot": "i32"}


def case(T, V, dtype, ports, *, S=1, spread=2.0, seed=0, **options):
    """A Case with `ports` and their values from a scenario."""
    def value(port):
        return lambda rng, shape: scenario(T, V, S, dtype, ports, spread, seed)[port]
    dtypes = {"logits": dtype, "token": "i32"} | {p: _DTYPE.get(p, "f32") for p in ports}
    values = {p: value(p) for p in ("logits", *ports) if p != "logprob"} | options.pop("values", {})
    dims = {"T": T, "V": V} | ({"S": S} if "counts" in ports else {}) | ({"M": 3 if "mask_slot" in ports else T} if "mask" in ports else {})
    if "rows" in options:
        dtypes["rows"] = "i32"
    return Case(dims, dtypes, values=values, **options)


def odd_rows(rng, shape):
    """NaN, nothing but -inf, +inf twice, equal logits, and a plain row."""
    x = rng.standard_normal(shape)
    x[0, 5], x[1], x[2, [7, 3]], x[3] = np.nan, -np.inf, np.inf, 0.25
    return x


_DRAW = ("temperature", "seed", "step")
CASES = [
    case(5, 1000, "f32", ("logprob",)),
    case(6, 333, "bf16", ("logprob", "temperature")),
    case(9, 700, "f32", _DRAW),
    case(9, 512, "bf16", (*_DRAW, "top_k"), spread=0.5, seed=1, note="many equal logits"),
    case(9, 513, "f16", (*_DRAW, "top_p")),
    case(9, 640, "f32", (*_DRAW, "top_k", "top_p", "min_p", "logprob"), seed=2),
    case(9, 301, "bf16", (*_DRAW, "counts", "slot", "repetition", "presence", "frequency", "mask", "logprob"), S=3),
    case(16, 97, "f32", (*_DRAW, "top_k", "top_p", "min_p", "counts", "slot", "repetition", "presence", "frequency", "mask"), S=2, seed=3),
    case(11, 300, "f32", (*_DRAW, "top_k", "mask", "mask_slot", "logprob"), seed=11, note="some rows of a table, some rows without"),
    case(7, 9003, "bf16", (*_DRAW, "top_p", "mask", "mask_slot"), spread=3, seed=12),
    case(6, 130, "f32", ("mask", "mask_slot"), seed=13, note="greedy, and masked"),
    case(200, 12, "f32", (*_DRAW, "top_k"), spread=0.3, note="few tokens, each as likely: one too many or too few shows"),
    case(200, 12, "bf16", (*_DRAW, "top_p"), spread=0.3),
    case(200, 12, "f32", (*_DRAW, "counts", "slot", "repetition", "presence", "frequency"), S=6, spread=0.5),
    case(8, 64, "f32", (*_DRAW, "top_p"), rows=3),
    case(5, 40, "f32", ("temperature", "logprob"), values={"logits": odd_rows, "temperature": np.array([1, 1, 1, 0, 0])}),
    case(8, 60, "f32", ("counts", "repetition"), S=1, values={"logits": lambda rng, shape: -rng.uniform(1, 3, shape)},
         note="negative logits only: a penalty must push them down, not up"),
    # Rows that several thread blocks share on a GPU.
    case(6, 20001, "f32", (*_DRAW, "top_k", "top_p", "min_p"), spread=3, seed=4),
    case(5, 12288, "bf16", (*_DRAW, "top_k", "logprob"), spread=1, seed=5, note="ties at the floor of the candidates"),
    case(4, 9001, "f16", (*_DRAW, "top_k", "counts", "slot", "repetition", "presence", "frequency", "mask"), S=2, spread=3, seed=6),
    case(4, 10000, "f32", (*_DRAW, "top_p"), spread=4, seed=7),
    case(3, 8300, "f32", ("logprob",), seed=8),
    case(3, 8200, "f32", (), seed=9),
    case(12, 9000, "f32", (*_DRAW, "top_k", "top_p", "min_p"), spread=3, seed=10, note="more rows than larger blocks are for"),
    case(0, 64, "f32", (), values={"logits": np.zeros((0, 64))}),
]


def fit(d):
    for port in ("slot", "repetition", "presence", "frequency"):
        d.needs(port, "counts")
    d.needs("mask_slot", "mask")
    if d.has("mask") and not d.has("mask_slot"):
        d.dims["M"] = d.dims["T"]


def contents(d, rng):
    """Rows where no rounding decides."""
    free = tuple(p for p in ("logprob", "temperature", "top_k", "top_p", "min_p", "seed", "step", "counts", "slot", "repetition", "presence", "frequency", "mask", "mask_slot") if d.has(p))
    return scenario.__wrapped__(d.dims["T"], d.dims["V"], d.dims.get("S", 1), d.dtypes["logits"], free, float(rng.choice([0.3, 2.0, 4.0])), int(rng.integers(1 << 30)), d.dims.get("M", 1))


DOMAIN = Domain(fit=fit, contents=contents, work=lambda d: d.dims["T"] * (d.dims["V"] * 12 + 20000), weight=2)
