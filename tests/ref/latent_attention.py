"""Reference of `latent_attention`: float64, that of attention over each run of places."""
import numpy as np

from tests.differential import slots
from tests.differential.domain import Domain, nearest
from tests.ref.attention import slots_of, visible
from tests.ref.common import Case, round_to, rounding


def ref(q, cache, pos=None, slot=None, length=None, page_table=None, *, mask="causal", scale, dtypes, dims):
    T, Hq, E = q.shape
    N, C = dims["N"], dims["C"]
    rows = slots_of(cache[:, :, None], cache[:, :, None], page_table)[0][:, :, 0]
    S, L = rows.shape[:2]
    width = -(-L // (32 * N)) * 32
    out, lse = np.zeros((T, N, Hq, C)), np.full((T, N, Hq), -np.inf)
    for t in range(T):
        s, see = visible(t, L, pos, slot, length, None, S, mask, 0)
        for n in range(N):
            mine = see & (np.arange(L) // width == n)
            if not mine.any():
                continue
            score = float(np.float32(scale)) * q[t] @ rows[s, mine].T
            top = score.max(-1, keepdims=True)
            p = np.exp(score - top)
            lse[t, n] = top[:, 0] + np.log(p.sum(-1))
            out[t, n] = p @ rows[s, mine, :C] / p.sum(-1, keepdims=True)
    return {"out": round_to(out, dtypes["out"])} | ({"lse": round_to(lse, "f32")} if "lse" in dtypes else {})


def bound(port, value, dtype, inputs):
    """As for attention: a score is off by (E/16 + 10) half-units of its terms' sizes; sums over places and weights
    rounded to a 16-bit type add theirs, of the largest value."""
    q, cache = inputs["q"], np.nan_to_num(inputs["cache"])  # NaN: places that nobody sees
    if not q.size:
        return rounding(value, dtype)
    E, L = q.shape[-1], cache.shape[1] * (inputs["page_table"].shape[1] if "page_table" in inputs else 1)
    size = (inputs.attrs["scale"] * np.abs(q).sum(-1) * np.abs(cache).max(initial=0))[:, None]
    error = (E / 16 + 10) * 2.0**-24 * size + 2.0**-22 * np.minimum(size, 1e4)
    if port == "lse":
        return error + 2.0**-22 * (1 + L / 16) + 2.0**-22 * np.abs(np.where(np.isfinite(value), value, 0)) + rounding(value, dtype)
    weights = {"bf16": 2.0**-9, "f16": 2.0**-12 + 2.0**-25 * L, "f32": 0.0}[inputs.case.dtypes["q"]]
    return ((2 * np.minimum(error, 1) + 2.0**-24 * (L / 2 + 32) + weights) * np.abs(cache).max(initial=0))[..., None] + rounding(value, dtype) + 1e-38


def shape(T, L, Hq, N, E=576, C=512, S=1, B=None, P=None):
    return {"T": T, "S": S, "B": S if B is None else B, **({} if P is None else {"P": P}), "L": L, "Hq": Hq, "N": N, "E": E, "C": C}


def ports(t, **more):
    return {"q": t, "cache": t, "out": t, **more}


SCALE = {"scale": 192**-0.5}
CASES = [
    Case(shape(2, 150, 16, 3), ports("bf16", pos="i32", lse="f32"), SCALE, ranges={"pos": (100, 150)}, distributions=("normal", "tiny")),
    Case(shape(3, 70, 128, 1, S=3), ports("f16", slot="i32", length="i32"), SCALE | {"mask": "full"}, ranges={"length": (0, 71)}, values={"slot": np.array([2, 0, 5])}, distributions=("normal",),
         note="two tiles of heads; a slot that does not exist"),
    Case(shape(3, 16, 20, 4, S=2, B=9, P=4), ports("bf16", slot="i32", pos="i32", length="i32", page_table="i32", lse="f32", rows="i32"), SCALE, rows=2,
         ranges={"slot": (0, 2), "pos": (0, 64), "length": (1, 65), "page_table": (-1, 10)}, distributions=("normal",), note="pages, some of which do not exist"),
    Case(shape(5, 40, 3, 2, 96, 64), ports("f32", lse="f32"), {"scale": 0.1}),
    Case(shape(4, 33, 2, 1, 160, 128), ports("f16", pos="i32"), {"scale": 0.2}, ranges={"pos": (0, 33)}, distributions=("normal", "edges")),
    Case(shape(0, 16, 2, 1, 64, 32), ports("f32"), SCALE),
    Case(shape(2, 20, 2, 1, 640, 512), ports("f32"), SCALE, distributions=("normal",), note="longer rows than tensor cores take"),
]


def fit(d):
    d.dims["C"], d.dims["E"] = d.pick(((512, 576), (512, 576), (64, 96), (128, 160), (32, 64), (512, 640), (7, 9)))
    d.attrs["scale"] = d.pick((192**-0.5, 0.1))
    slots.fit(d)


DOMAIN = Domain(fit=fit, contents=slots.contents, unread=lambda d, values: {"cache": slots.unseen_rows(d, values)}, attrs={"scale": (0.1,)},
                sizes={"N": (1, 1, 2, 3, 5, 16), "Hq": (1, 2, 3, 8, 16, 20, 64, 128), "E": (96,), "C": (64,)}, work=lambda d: d.dims["T"] * d.dims["Hq"] * slots.places_of(d) * d.dims["E"] / 4,
                distributions=("normal", "tiny", "edges"), never=("scale default",), tokens={"pos": nearest}, indices=("pos", "slot", "length", "page_table"))
