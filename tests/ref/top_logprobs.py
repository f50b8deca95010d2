"""Reference of `top_logprobs`: by sorting, in float64. Rows where a rounding could decide are redrawn."""
import functools

import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to
from tests.ref.sample import MARGIN


def log_sum_exp(x):
    top = x.max(initial=-np.inf)
    return top + np.log(np.exp(x - top).sum()) if np.isfinite(top) else top


def allowed(l, words=None, spans=None):
    """(logits of what may come, whether the joint rule has its margin) of one row."""
    l, V, ids = l.astype(np.float64), len(l), np.arange(len(l))
    if words is not None:
        l = np.where(words.astype(np.uint32)[ids // 32] >> (ids % 32).astype(np.uint32) & 1, l, -np.inf)
    if spans is None:
        return l, True
    first, split, start, until, together = (int(v) for v in spans)
    l = np.where(np.where(ids < split, ids >= first, (ids >= start) & (ids < until)), l, -np.inf)
    low, high = l[:max(split, 0)], l[max(split, 0):]
    with np.errstate(invalid="ignore"):
        sum_, top = log_sum_exp(high) if not np.isnan(high).any() else np.nan, np.fmax.reduce(low, initial=-np.inf)
        if together and sum_ > top:
            l = np.where(ids < split, -np.inf, l)
        return l, not together or not np.isfinite(sum_) or not np.isfinite(top) or abs(sum_ - top) > MARGIN


def row_of(t, inputs):
    row = int(inputs["mask_slot"][t]) if "mask_slot" in inputs else t
    return {"words": inputs["mask"][row] if "mask" in inputs and 0 <= row < len(inputs["mask"]) else None,
            "spans": inputs["spans"][t] if "spans" in inputs else None}


def ref(*, dtypes, dims=None, **inputs):
    logits, K = inputs["logits"], (dims or inputs)["K"]
    T, V = logits.shape
    out = {"token": np.full((T, K), -1), "logprob": np.full((T, K), np.nan)}
    if "asked" in inputs:
        out["asked_logprob"] = np.full(T, np.nan)
    for t in range(T):
        l, _ = allowed(logits[t], **row_of(t, inputs))
        if np.isnan(l).any() or not np.isfinite(l.max()):
            continue
        logprob = l - log_sum_exp(l)
        n = int(inputs["wanted"][t]) if "wanted" in inputs else K
        best = np.lexsort((np.arange(V), -l))[:n if 0 <= n < K else K]
        best = best[l[best] > -np.inf]
        out["token"][t, :len(best)], out["logprob"][t, :len(best)] = best, logprob[best]
        if "asked" in inputs:
            v = int(inputs["asked"][t])
            out["asked_logprob"][t] = logprob[v] if 0 <= v < V else -np.inf
    return out


def bound(port, value, dtype, inputs):
    """log p: the sum's relative error (see softmax), its logarithm's, and two f32 subtractions."""
    finite = np.where(np.isfinite(inputs["logits"]), inputs["logits"], 0.0)
    most = 1e-5 + 2.0**-22 * np.abs(finite).max(-1, initial=0)
    return np.broadcast_to(most if value.ndim == 1 else most[:, None], value.shape)


@functools.cache
def scenario(T, V, ports, spread, seed, M=3):
    rng = np.random.default_rng([T, V, seed])
    out, rows = {}, []
    if "mask_slot" in ports:
        out["mask"] = rng.integers(-(2**31), 2**31, (M, (V + 31) // 32))
    while len(rows) < T:
        split = int(rng.integers(-1, V + 2))
        row = {
            "logits": round_to(np.round(spread * rng.standard_normal(V) * 4) / 4 if V < 50 else spread * rng.standard_normal(V), "f32"),
            "mask_slot": rng.integers(-1, M + 1), "mask": rng.integers(-(2**31), 2**31, (V + 31) // 32), "wanted": rng.integers(-1, 8), "asked": rng.integers(-1, V + 1),
            "spans": np.array([rng.choice([0, -3, split // 2, split]), split, rng.choice([0, split, (split + V) // 2]), rng.choice([V, V + 5, (split + 3 * V) // 4, split]), rng.integers(0, 2)]),
        }
        row = {k: v for k, v in row.items() if k not in out}
        one = {k: np.asarray(row[k])[None] for k in ports if k in row} | {k: out[k] for k in ports if k in out}
        if allowed(row["logits"], **row_of(0, one))[1]:
            rows.append(row)
    return {k: np.stack([r[k] for r in rows]) for k in rows[0]} | out


def case(T, V, K, ports, *, spread=2.0, seed=0, **options):
    dtypes = {"logits": "f32", "token": "i32", "logprob": "f32"} | {p: "i32" for p in ports} | ({"asked_logprob": "f32"} if "asked" in ports else {})
    values = {p: (lambda rng, shape, p=p: scenario(T, V, ports, spread, seed)[p]) for p in ("logits", *ports)} | options.pop("values", {})
    dims = {"T": T, "V": V, "K": K} | ({"M": 3 if "mask_slot" in ports else T} if "mask" in ports else {})
    if "rows" in options:
        dtypes["rows"] = "i32"
    return Case(dims, dtypes, values=values, **options)


def odd_rows(rng, shape):
    """NaN, nothing but -inf, +inf, equal logits, all but one -inf, and a plain row."""
    x = rng.standard_normal(shape)
    x[0, 5], x[1], x[2, 7], x[3], x[4, 1:] = np.nan, -np.inf, np.inf, 0.25, -np.inf
    return x


_RULES = ("mask", "mask_slot", "spans", "wanted", "asked")
CASES = [
    case(5, 1000, 1, ()),
    case(40, 300, 6, ("spans",), note="rules of two parts"),
    case(30, 97, 5, ("mask", "wanted")),
    case(40, 333, 7, _RULES, seed=1),
    case(200, 12, 3, ("spans", "wanted"), spread=0.5, seed=2, note="few tokens, many equal"),
    case(9, 40, 64, ("spans", "asked"), seed=3, note="more wanted than there are"),
    case(8, 64, 4, _RULES, rows=3),
    case(6, 50, 4, ("asked",), values={"logits": odd_rows}),
    # Rows that several thread blocks share on a GPU.
    case(6, 20001, 6, _RULES, spread=3, seed=4),
    case(3, 51866, 16, ("mask", "spans"), spread=3, seed=5, note="Whisper's vocabulary"),
    case(4, 9001, 1, (), seed=6),
    case(0, 64, 2, (), values={"logits": np.zeros((0, 64))}),
]


def fit(d):
    d.needs("mask_slot", "mask")
    d.needs("asked", "asked_logprob")
    d.needs("asked_logprob", "asked")
    d.dims["K"] = d.rng.randrange(1, 9)
    if d.has("mask") and not d.has("mask_slot"):
        d.dims["M"] = d.dims["T"]


def contents(d, rng):
    """Rows where no rounding decides."""
    free = tuple(p for p in _RULES if d.has(p))
    return scenario.__wrapped__(d.dims["T"], d.dims["V"], free, float(rng.choice([0.3, 2.0, 4.0])), int(rng.integers(1 << 30)), d.dims.get("M", 1))


DOMAIN = Domain(fit=fit, contents=contents, work=lambda d: d.dims["T"] * (d.dims["V"] * 12 + 20000))
