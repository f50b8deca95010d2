"""Reference of `act_mul`: float64, the formula of vivace/ops/act_mul.h."""
import math

import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import E4M3_MAX, Case, rounding, round_to

_erf = np.vectorize(math.erf, otypes=[np.float64])


def activate(kind, g):
    if kind == "silu":
        return g / (1 + np.exp(np.minimum(-g, 700)))
    if kind == "gelu_tanh":
        return g / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))
    if kind == "gelu_erf":
        return g / 2 * (1 + _erf(g / math.sqrt(2)))
    return np.maximum(g, 0) ** {"relu": 1, "relu2": 2}[kind]


def ref(x=None, gate=None, up=None, inv_scale=None, out_scale=None, *, act="silu", dtypes):
    if x is not None:
        gate, up = np.split(x, 2, axis=1)
    y = activate(act, gate)
    for factor in (up, inv_scale):
        if factor is not None:
            y = y * factor
    written = {}
    y = round_to(y, "f32")  # products below f32's range vanish: a row of them is a zero row
    if "row_scale" in dtypes:
        amax = np.abs(y).max(-1, initial=0)
        written["row_scale"] = round_to(np.where(amax > 0, amax / E4M3_MAX, 1.0), "f32")
        y = y / written["row_scale"][:, None]
    elif out_scale is not None:
        y = y / out_scale[0]
    written["out"] = round_to(y, dtypes["out"])
    return written


JUDGED = ("out", "row_scale")


def sizes(inputs):
    """Of the products, where nothing cancels."""
    if "x" in inputs:
        gate, up = np.split(inputs["x"], 2, axis=1)
    else:
        gate, up = inputs["gate"], inputs.get("up", 1.0)
    size = np.abs(gate * up * inputs.get("inv_scale", 1.0))
    return size * np.abs(gate) if inputs.attrs.get("act") == "relu2" else size


def bound(port, value, dtype, inputs):
    """Where 1 + tanh or 1 + erf cancels, its absolute error is a few 2^-24, times |gate| and the factors.

    1e-6 is sixteen f32 half-units: exp, tanh or erf (two units at most), its argument's roundings
    (which the derivative, at most 1.1, does not raise) and five products.
    """
    size = sizes(inputs)
    if "out_scale" in inputs:
        size = size / inputs["out_scale"][0]
    return 1e-6 * size + rounding(value, dtype)


def judged(got, inputs):
    """Values and their row's scale together: the scale is as far off as the row's largest element may be, or 1 where all of
    a row may cancel to zeros; and whatever it is, times it each value is its element, but for one rounding to e4m3."""
    y, size, scale = ref(**inputs, **inputs.attrs, dtypes={"out": "f32"})["out"], sizes(inputs), got["row_scale"]
    if not y.size:
        return 0.0
    want = np.abs(y).max(-1, initial=0) / E4M3_MAX
    off = 1e-6 * (size.max(-1, initial=0) / E4M3_MAX + want) + 1e-38
    scales = np.where((scale == 1) & (want <= off), 0.0, np.abs(scale - want) - off)
    scale = scale[:, None]
    values = np.abs(got["out"] * scale - y) - 1e-6 * size - rounding(y / scale, "e4m3") * scale
    return float(np.maximum(values, scales[:, None]).max())


CASES = [
    Case({"T": 1, "H": 64}, {"x": "f32", "out": "f32"}),
    Case({"T": 5, "H": 1000}, {"x": "bf16", "out": "bf16"}, {"act": "gelu_tanh"}),
    Case({"T": 3, "H": 257}, {"gate": "f16", "up": "f16", "out": "f16"}, {"act": "gelu_erf"}),
    Case({"T": 4, "H": 96}, {"gate": "f32", "out": "f32"}, {"act": "relu2"}),
    Case({"T": 4, "H": 96}, {"gate": "bf16", "up": "bf16", "inv_scale": "f32", "out": "f32"}, {"act": "relu"}, positive=("inv_scale",)),
    Case({"T": 6, "H": 300}, {"x": "bf16", "inv_scale": "f32", "out": "e4m3", "out_scale": "f32"}, positive=("inv_scale", "out_scale")),
    Case({"T": 6, "H": 130}, {"x": "f32", "out": "e4m3", "row_scale": "f32"}, {"act": "gelu_tanh"}),
    Case({"T": 2, "H": 40}, {"x": "f16", "out": "f16"}, {"act": "gelu_tanh"}),
    Case({"T": 8, "H": 64}, {"gate": "f32", "up": "f32", "out": "f32", "rows": "i32"}, rows=3),
    Case({"T": 0, "H": 64}, {"x": "f32", "out": "f32"}),
]


def fit(d):
    if d.one_of("x", "gate") == "x":
        d.drop("up")
    d.quantized_out(("out_scale", "row_scale"))
    source = d.dtypes["x" if d.has("x") else "gate"]
    d.dtypes["out"] = "e4m3" if d.dtypes["out"] == "e4m3" else source if d.chance(0.8) else d.dtypes["out"]


DOMAIN = Domain(fit=fit, positive=("inv_scale", "out_scale"), tokens={})
