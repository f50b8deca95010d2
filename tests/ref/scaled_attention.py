"""Reference of `scaled_attention`: that of attention, in float64, of what codes times scales are."""
import numpy as np

from tests.differential import slots
from tests.differential.domain import Domain, nearest
from tests.ref.attention import ref as attention
from tests.ref.attention import slots_of, stale
from tests.ref.common import Case, rounding


def scaled(inputs):
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    ones = lambda n: np.ones(n)  # noqa: E731
    return (q * inputs.get("q_scale", ones(q.shape[1]))[:, None], k * inputs.get("k_scale", ones(k.shape[2]))[:, None], v * inputs.get("v_scale", ones(k.shape[2]))[:, None])


def ref(q, k, v, q_scale=None, k_scale=None, v_scale=None, pos=None, slot=None, length=None, page_table=None, *, mask="causal", window=0, scale=0.0, dtypes):
    given = {"q": q, "k": k, "v": v} | {n: x for n, x in (("q_scale", q_scale), ("k_scale", k_scale), ("v_scale", v_scale)) if x is not None}
    q, k, v = scaled(given)
    return attention(q, k, v, pos, slot, length, None, page_table, mask=mask, window=window, scale=scale, dtypes=dtypes)


def bound(port, value, dtype, inputs):
    """As for attention, with two differences. Tensor cores cut each product of e4m3, and the sum so far, 13 bits below the largest of
    the 32 that they add at once: 33 such units for 32 elements, of the largest product. And a weight is rounded to e4m3's 3 bits: half
    a unit of it, or 2^-18 below e4m3's normal numbers."""
    if not inputs["q"].size:
        return rounding(value, dtype)
    q, k, v = scaled(inputs)
    k, v = (np.nan_to_num(x) for x in slots_of(k, v, inputs.get("page_table")))  # NaN: beyond a length
    D, L = q.shape[-1], k.shape[1]
    scale = inputs.attrs.get("scale", 0.0) or 1 / np.sqrt(D)
    largest = scale * np.abs(q).max(-1, keepdims=True) * np.abs(k).max(initial=0)
    error = (D + D / 32) * 2.0**-13 * largest + 2.0**-22 * np.minimum(D * largest, 1e4)
    if port == "lse":
        return (error + 2.0**-22 * (1 + L / 16))[..., 0] + 2.0**-22 * np.abs(np.where(np.isfinite(value), value, 0)) + rounding(value, dtype)
    return (2 * np.minimum(error, 1) + 2.0**-4 + (L + L / 32) * 2.0**-13 + 2.0**-18 * L) * np.abs(v).max(initial=0) + rounding(value, dtype) + 1e-38


def unserved_on_gpu(case):
    return "heads of another size than 64 or 128" if case.dims["D"] not in (64, 128) else None


def shape(T, L, Hq, Hkv, D, S=1, B=None, P=None):
    return {"T": T, "S": S, "B": S if B is None else B, **({} if P is None else {"P": P}), "L": L, "Hq": Hq, "Hkv": Hkv, "D": D}


def ports(out, **more):
    return {"q": "e4m3", "k": "e4m3", "v": "e4m3", "out": out, **more}


def unseen(pos, window):
    """Keys or values of one slot that are NaN where no token sees them."""
    def given(rng, shape):
        x, j = rng.standard_normal(shape), np.arange(shape[1])
        x[:, ~np.any([(j <= p) & (j > p - window) for p in pos], 0)] = np.nan
        return x
    return given


SCALES = {"q_scale": "f32", "k_scale": "f32", "v_scale": "f32"}
CASES = [
    Case(shape(150, 150, 4, 2, 128), ports("bf16", lse="f32", **SCALES), positive=tuple(SCALES), distributions=("normal", "tiny"), note="a prompt"),
    Case(shape(70, 90, 3, 3, 64, S=3), ports("f16", pos="i32", slot="i32", length="i32", lse="f32"), {"window": 40, "scale": 0.2}, ranges={"pos": (0, 90), "length": (0, 91)},
         values={"slot": lambda rng, shape: np.sort(rng.integers(-1, 4, shape))}, distributions=("normal",), note="prompts of several slots, some of which do not exist"),
    Case(shape(5, 16, 8, 1, 128, S=2, B=9, P=6), ports("bf16", pos="i32", slot="i32", length="i32", page_table="i32", k_scale="f32", rows="i32"), {"mask": "full"}, rows=4,
         ranges={"pos": (0, 96), "slot": (0, 2), "length": (1, 97), "page_table": (-1, 10)}, positive=("k_scale",), distributions=("normal",), note="pages, some of which do not exist"),
    Case(shape(200, 500, 4, 2, 128), ports("f16", pos="i32", length="i32", lse="f32", **SCALES), {"window": 200}, values={"pos": np.arange(290, 490), "length": np.array([487]), "k": stale(487), "v": stale(487),
         **{n: lambda rng, shape: rng.uniform(-2, 2, shape) for n in SCALES}}, distributions=("normal",), note="the last of a prompt in a window; what lies beyond its length is no number; scales of either sign"),
    Case(shape(140, 16, 8, 2, 128, S=3, B=60, P=20), ports("bf16", pos="i32", slot="i32", length="i32", page_table="i32", lse="f32", rows="i32"), rows=133, ranges={"page_table": (-1, 61)},
         values={"slot": np.repeat([2, 0, -1, 1], [50, 30, 5, 55]), "pos": np.concatenate([np.arange(250, 300), np.arange(30), np.arange(5), np.arange(100, 155)]), "length": np.array([20, 155, 300])},
         distributions=("normal", "edges"), note="prompts of three slots in pages"),
    Case(shape(70, 300, 3, 1, 128), ports("bf16", lse="f32", q_scale="f32"), {"mask": "full"}, values={"q_scale": np.array([1.5, 0.0, -1.0])}, distributions=("normal", "large"), note="a scale of 0: the mean of the values"),
    *(Case(shape(T, 300, 4, 2, D), ports("bf16", pos="i32", lse="f32"), {"window": 8}, values={"pos": np.array(pos), "k": unseen(pos, 8), "v": unseen(pos, 8)}, distributions=("normal",), note="what lies between windows is no number")
      for T, D, pos in ((4, 64, [20, 290, 150, 151]), (150, 128, [*range(75), *range(225, 300)]))),
    Case(shape(3, 40, 2, 2, 48), ports("bf16", lse="f32"), distributions=("normal",)),
    Case(shape(0, 16, 2, 2, 64), ports("f16"), distributions=("normal",)),
]


def fit(d):
    d.dims["D"] = d.pick((16, 32, 48, 64, 64, 64, 128, 128, 128, 128, 256))
    d.heads()
    slots.fit(d)


DOMAIN = Domain(fit=fit, contents=slots.contents, unread=lambda d, values: {p: slots.unseen_rows(d, values) for p in ("k", "v")}, positive=("q_scale", "k_scale", "v_scale"),
                attrs={"window": (1, 8, 33, 100, 200), "scale": (0.2, 0.05)}, distributions=("normal", "tiny", "edges"), work=lambda d: d.dims["T"] * d.dims["Hq"] * (slots.places_of(d) * d.dims["D"] / 4 + 4000), weight=2, tokens={"pos": nearest}, indices=("pos", "slot", "length", "page_table"))
