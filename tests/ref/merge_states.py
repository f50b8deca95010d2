"""Reference of `merge_states`: float64, the formula of vivace/ops/merge_states.h."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding


def parts(v, s, v2, s2, base2):
    """Weights [T, N, Hq] against the largest, that largest, and the values, v2 as one more run."""
    if v2 is not None:
        v, s = np.concatenate([v, v2[:, None]], 1), np.concatenate([s, s2[:, None]], 1)
    top = s.max(1, initial=-np.inf)
    base = np.where(np.isneginf(top), 0, top)
    return (np.exp2 if base2 else np.exp)(s - base[:, None]), base, v


def ref(v, s, v2=None, s2=None, *, base2=False, dtypes):
    w, base, v = parts(v, s, v2, s2, base2)
    mass = w.sum(1)
    total = np.where(w[..., None] > 0, w[..., None] * v, 0).sum(1)
    out = np.where(mass[..., None] > 0, total / mass[..., None], 0)
    lse = np.where(mass > 0, base + (np.log2 if base2 else np.log)(mass), -np.inf)
    return {"out": round_to(out, dtypes["out"])} | ({"lse": round_to(lse, "f32")} if "lse" in dtypes else {})


def bound(port, value, dtype, inputs):
    """An exponent is rounded at the size of s, which changes a weight by that factor; sums of N terms and the
    exponential itself add a few half-units each, of the largest value."""
    s = np.where(np.isfinite(inputs["s"]), inputs["s"], 0)
    N, size = s.shape[1] + 1, 1 + np.abs(s).max(initial=0)
    if "s2" in inputs:
        size = max(size, 1 + np.abs(np.where(np.isfinite(inputs["s2"]), inputs["s2"], 0)).max(initial=0))
    error = 2.0**-23 * (2 * size + N + 8)
    if port == "lse":
        return 2 * error + rounding(value, dtype)
    return 2 * error * np.abs(inputs["v"]).max(initial=np.abs(inputs.get("v2", np.zeros(1))).max(initial=0)) + rounding(value, dtype)


def some_empty(rng, shape):
    s = 4 * rng.standard_normal(shape)
    s[rng.random(shape) < 0.3] = -np.inf
    s[-1] = -np.inf
    return s


def ports(t, **more):
    return {"v": t, "s": "f32", "out": t, **more}


CASES = [
    Case({"T": 5, "N": 3, "Hq": 4, "Dv": 128}, ports("bf16", lse="f32"), ranges={"s": (-9, 9)}),
    Case({"T": 4, "N": 1, "Hq": 3, "Dv": 64}, ports("f32", v2="f32", s2="f32", lse="f32"), ranges={"s": (-3, 3), "s2": (-3, 3)}),
    Case({"T": 6, "N": 40, "Hq": 2, "Dv": 72}, ports("f16", lse="f32"), {"base2": True}, values={"s": some_empty}, note="runs without keys, a last row of them"),
    Case({"T": 3, "N": 2, "Hq": 5, "Dv": 33}, ports("f32", v2="f32", s2="f32", rows="i32"), {"base2": True}, ranges={"s": (-3, 3)}, values={"s2": some_empty}, rows=2),
    Case({"T": 2, "N": 9, "Hq": 2, "Dv": 320}, ports("f32"), values={"s": lambda rng, shape: 80 * rng.standard_normal(shape)}),
    Case({"T": 3, "N": 0, "Hq": 2, "Dv": 16}, ports("bf16", v2="bf16", s2="f32"), ranges={"s2": (-3, 3)}, note="the one state alone"),
    Case({"T": 0, "N": 2, "Hq": 2, "Dv": 8}, ports("f32"), ranges={"s": (0, 1)}),
]


def contents(d, rng):
    out = {}
    for port, shape in (("s", ("T", "N", "Hq")), ("s2", ("T", "Hq"))):
        s = rng.choice([1.0, 4.0, 80.0]) * rng.standard_normal([d.dims.get(k, 1) for k in shape])
        s[rng.random(s.shape) < 0.2] = -np.inf
        out[port] = s
    return out


DOMAIN = Domain(fit=lambda d: d.together("v2", "s2"), contents=contents, sizes={"N": (1, 1, 2, 3, 8, 9, 40)})
