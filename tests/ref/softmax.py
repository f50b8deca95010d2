"""Reference of `softmax`: float64, the formula of vivace/ops/softmax.h."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, rounding, round_to


def ref(x, *, scale=1.0, dtypes):
    z = x * float(np.float32(scale))
    m = z.max(-1, keepdims=True)
    e = np.where(z == -np.inf, 0.0, np.exp(z - np.where(m == -np.inf, 0.0, m)))
    return {"out": round_to(e / np.where(m == -np.inf, 1.0, e.sum(-1, keepdims=True)), dtypes["out"])}


def bound(port, value, dtype, inputs):
    """z and z - max are rounded to f32: an absolute error of the exponent, so a relative one of e.

    1e-5 covers exp, the division and a sum of up to 50000 positive terms added in chunks of 256; results
    below f32's normal range may lose all of their bits.
    """
    z = np.where(np.isfinite(inputs["x"]), inputs["x"], 0.0) * inputs.attrs.get("scale", 1.0)
    exponent = 4 * 2.0**-24 * np.abs(z).max(-1, keepdims=True, initial=0)
    return (1e-5 + exponent) * np.abs(value) + rounding(value, dtype) + 2.0**-126


def masked(rng, shape):
    """Some elements masked in every row, and one row entirely."""
    x = rng.standard_normal(shape)
    x[rng.random(shape) < 0.3] = -np.inf
    x[-1] = -np.inf
    return x


CASES = [
    Case({"T": 1, "H": 1}, {"x": "f32", "out": "f32"}),
    Case({"T": 7, "H": 1000}, {"x": "bf16", "out": "bf16"}),
    Case({"T": 3, "H": 50257}, {"x": "f32", "out": "f32"}, {"scale": 0.125}),
    Case({"T": 4, "H": 257}, {"x": "f16", "out": "f32"}, {"scale": -2.0}),
    Case({"T": 5, "H": 300}, {"x": "f32", "out": "f16"}, values={"x": masked}, note="masked elements, and a row of nothing else"),
    Case({"T": 6, "H": 64}, {"x": "f32", "out": "f32", "rows": "i32"}, rows=2),
    Case({"T": 0, "H": 64}, {"x": "f32", "out": "f32"}),
]


def contents(d, rng):
    """Now and then masked elements, and rows of nothing else."""
    if rng.random() < 0.7:
        return {}
    x = rng.standard_normal((d.dims["T"], d.dims["H"]))
    x[rng.random(x.shape) < 0.3] = -np.inf
    x[rng.random(len(x)) < 0.2] = -np.inf
    return {"x": x}


DOMAIN = Domain(contents=contents, attrs={"scale": (0.125, 3.0)}, tokens={})
