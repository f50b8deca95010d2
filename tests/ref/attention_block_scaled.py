"""Reference of `attention_block_scaled`: float64, that of attention over each run of places of the widened cache."""
import numpy as np

from tests.differential import slots
from tests.differential.domain import Domain, nearest
from tests.ref.attention import slots_of, visible
from tests.ref.common import Case, round_to, rounding
from tests.ref.quantize_block_scaled import VALUES


def widened(codes, scales):
    """Codes [.., D / 2] and scales [.., D / 16] -> values [.., D]."""
    code = np.stack([codes % 16, codes // 16], -1).reshape(*codes.shape[:-1], -1)
    return np.where(code >= 8, -1.0, 1.0) * VALUES[code % 8] * np.repeat(scales, 16, -1)


def cache(inputs):
    k, v = (widened(inputs[p], inputs[f"{p}_scales"]) * (inputs[f"{p}_scale"][0] if f"{p}_scale" in inputs else 1.0) for p in "kv")
    return slots_of(k, v, inputs.get("page_table"))


def ref(q, pos=None, slot=None, length=None, *, mask="causal", window=0, scale=0.0, dtypes, dims, **kv):
    T, Hq, D = q.shape
    N, Hkv = dims["N"], dims["Hkv"]
    k, v = cache(kv)
    S, L = k.shape[:2]
    width = -(-L // (64 * N)) * 64
    scale = float(np.float32(scale if scale else 1 / np.sqrt(D)))
    out, lse = np.zeros((T, N, Hq, D)), np.full((T, N, Hq), -np.inf)
    for t in range(T):
        s, see = visible(t, L, pos, slot, length, None, S, mask, window)
        for n in range(N):
            mine = see & (np.arange(L) // width == n)
            for h in range(Hq if mine.any() else 0):
                g = h // (Hq // Hkv)
                score = scale * k[s, mine, g] @ q[t, h]
                p = np.exp(score - score.max())
                lse[t, n, h] = score.max() + np.log(p.sum())
                out[t, n, h] = p @ v[s, mine, g] / p.sum()
    return {"out": round_to(out, dtypes["out"])} | ({"lse": round_to(lse, "f32")} if "lse" in dtypes else {})


def bound(port, value, dtype, inputs):
    """As for attention: codes times scales are exact, a score is off by (D/16 + 10) half-units of its terms' sizes, and
    weights are rounded to q's type."""
    q = inputs["q"]
    if not q.size:
        return rounding(value, dtype)
    k, v = (np.nan_to_num(x) for x in cache(inputs))  # NaN: places that nobody sees
    D, L = q.shape[-1], k.shape[1]
    scale = inputs.attrs.get("scale", 0.0) or 1 / np.sqrt(D)
    size = (scale * np.abs(q).sum(-1) * np.abs(k).max(initial=0))[:, None]
    error = (D / 16 + 10) * 2.0**-24 * size + 2.0**-22 * np.minimum(size, 1e4)
    if port == "lse":
        return error + 2.0**-22 * (1 + L / 16) + 2.0**-22 * np.abs(np.where(np.isfinite(value), value, 0)) + rounding(value, dtype)
    weights = {"bf16": 2.0**-9, "f16": 2.0**-12 + 2.0**-25 * L}[inputs.case.dtypes["q"]]
    return ((2 * np.minimum(error, 1) + 2.0**-24 * (L / 2 + 32) + weights) * np.abs(v).max(initial=0))[..., None] + rounding(value, dtype) + 1e-38


def unserved_on_gpu(case):
    return "heads of another size than 64 or 128" if case.dims["D"] not in (64, 128) else None


def shape(T, L, Hq, Hkv, D, N, S=1, B=None, P=None):
    return {"T": T, "S": S, "B": S if B is None else B, **({} if P is None else {"P": P}), "L": L, "Hq": Hq, "Hkv": Hkv, "D": D, "N": N}


def ports(t, **more):
    return {"q": t, "k": "u8", "k_scales": "e4m3", "v": "u8", "v_scales": "e4m3", "out": t, **more}


CODES = {"k": (0, 256), "v": (0, 256), "k_scales": (0.01, 0.5), "v_scales": (0.1, 2)}
CASES = [
    Case(shape(2, 150, 8, 2, 128, 1), ports("bf16", pos="i32", lse="f32"), ranges=CODES | {"pos": (100, 150)}, distributions=("normal", "large", "tiny")),
    Case(shape(3, 300, 40, 2, 128, 3, S=3), ports("f16", slot="i32", length="i32", k_scale="f32", v_scale="f32"), {"mask": "full", "scale": 0.05}, ranges=CODES | {"length": (0, 301)},
         positive=("k_scale", "v_scale"), values={"slot": np.array([2, 0, 5])}, distributions=("normal",), note="more heads than a tile has; a slot that does not exist"),
    Case(shape(5, 16, 6, 3, 64, 2, S=2, B=9, P=6), ports("bf16", slot="i32", pos="i32", length="i32", page_table="i32", lse="f32", rows="i32"), rows=4,
         ranges=CODES | {"slot": (0, 2), "pos": (0, 96), "length": (1, 97), "page_table": (-1, 10)}, distributions=("normal",), note="pages, some of which do not exist"),
    Case(shape(4, 90, 4, 1, 64, 1), ports("f16", pos="i32"), {"window": 20}, ranges=CODES | {"pos": (20, 90)}, distributions=("normal", "edges")),
    Case(shape(3, 40, 2, 2, 48, 2), ports("bf16", lse="f32"), ranges=CODES, distributions=("normal",)),
    Case(shape(0, 16, 2, 1, 64, 1), ports("bf16"), ranges=CODES, distributions=("normal",)),
]


def fit(d):
    d.dims["D"] = d.pick((16, 32, 48, 64, 64, 64, 128, 128, 128, 256))
    d.heads()
    slots.fit(d)


DOMAIN = Domain(fit=fit, contents=slots.contents, ranges={"k": (0, 256), "v": (0, 256), "k_scales": (0.01, 0.5), "v_scales": (0.1, 2)}, positive=("k_scale", "v_scale"),
                unread=lambda d, values: {p: slots.unseen_rows(d, values) for p in ("k_scales", "v_scales")}, sizes={"N": (1, 1, 2, 3, 5, 16)},
                work=lambda d: d.dims["T"] * d.dims["Hq"] * (slots.places_of(d) * d.dims["D"] / 4 + 4000 * d.dims["N"]),
                attrs={"window": (1, 8, 33, 100), "scale": (0.05, 0.2)}, distributions=("normal", "large", "tiny", "edges"), tokens={"pos": nearest}, indices=("pos", "slot", "length", "page_table"))
