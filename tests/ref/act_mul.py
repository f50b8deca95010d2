"""Reference of `act_mul`: float64, the formula of vivace/ops/act_mul.h."""
import math

import numpy as np

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


def bound(port, value, dtype, inputs):
    """Where 1 + tanh or 1 + erf cancels, its absolute error is a few 2^-24, times |gate| and the factors.

    1e-6 is sixteen f32 half-units: exp, tanh or erf (two units at most), its argument's roundings
    (which the derivative, at most 1.1, does not raise) and five products.
    """
    if port == "row_scale":
        return 2e-6 * np.abs(value) + 1e-38
    if "x" in inputs:
        gate, up = np.split(inputs["x"], 2, axis=1)
    else:
        gate, up = inputs["gate"], inputs.get("up", 1.0)
    size = np.abs(gate * up * inputs.get("inv_scale", 1.0))
    if inputs.attrs.get("act") == "relu2":
        size = size * np.abs(gate)
    if "out_scale" in inputs:
        size = size / inputs["out_scale"][0]
    elif dtype == "e4m3":
        amax = np.abs(ref(**inputs, **inputs.attrs, dtypes={"out": "f32"})["out"]).max(-1, keepdims=True, initial=0)
        size = size / np.where(amax > 0, amax / E4M3_MAX, 1.0)
    return 1e-6 * size + rounding(value, dtype)


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
