"""Reference of `act_mul_block_scaled`: the rows of act_mul in float64, quantized; quantize_block_scaled judges the codes."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref import act_mul
from tests.ref.common import Case, Inputs
from tests.ref.quantize_block_scaled import judge, quantized, scale_count


def _rows(inputs, attrs):
    """Exact y and how far f32 may be from it."""
    kinds = {k: v for k, v in attrs.items() if k != "layout"}
    given = Inputs({k: v for k, v in inputs.items() if k != "tensor_scale"}, Case({}, {}, kinds))
    y = act_mul.ref(**{k: v.copy() for k, v in given.items()}, **kinds, dtypes={"out": "f64"})["out"]
    return y, act_mul.bound("out", y, "f64", given)


def ref(tensor_scale, *, layout="linear", dims, dtypes, **rest):
    written = act_mul.ref(**rest, dtypes=dtypes | {"out": "f64"})
    written["out"], written["scales"] = quantized(written["out"], tensor_scale, layout, dims["T"])
    return written


def bound(port, value, dtype, inputs):
    """Both written ports are judged together."""
    return 0.0


def judged(got, inputs):
    """Codes and scales against the exact rows."""
    y, allowed = _rows(inputs, inputs.attrs)
    return judge(got, y, allowed, inputs["tensor_scale"], inputs.attrs.get("layout", "linear"), inputs.case.dims["T"])


JUDGED = ("out", "scales")
_G = {"values": {"tensor_scale": [0.0013]}, "distributions": ("normal", "large", "zero", "edges")}
_OUT = {"out": "u8", "scales": "e4m3", "tensor_scale": "f32"}
CASES = [
    Case({"T": 3, "C": 32}, {"x": "f32", **_OUT}, shapes={"scales": "T*C/8"}, **_G),
    Case({"T": 5, "C": 1032}, {"x": "bf16", "inv_scale": "f32", **_OUT}, {"act": "gelu_tanh", "layout": "swizzled"}, shapes={"scales": "(T+127)/128*512*((C/8+3)/4)"}, positive=("inv_scale",), **_G),
    Case({"T": 130, "C": 24}, {"gate": "f16", "up": "f16", **_OUT}, {"act": "gelu_erf", "layout": "swizzled"}, shapes={"scales": "(T+127)/128*512*((C/8+3)/4)"}, **_G),
    Case({"T": 4, "C": 48}, {"gate": "bf16", **_OUT}, {"act": "relu2"}, shapes={"scales": "T*C/8"}, **_G),
    Case({"T": 8, "C": 16}, {"gate": "f32", "up": "f32", "rows": "i32", **_OUT}, {"act": "relu"}, shapes={"scales": "T*C/8"}, rows=5, **_G),
    Case({"T": 2, "C": 16}, {"x": "f16", **_OUT}, shapes={"scales": "T*C/8"}, **_G),
]


def fit(d):
    if d.one_of("x", "gate") == "x":
        d.drop("up")
    d.multiple("C", 8)
    d.shapes["scales"] = (scale_count(d.dims["T"], d.dims["C"] // 8, d.attr("layout")),)


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"tensor_scale": [float(np.float32(rng.choice([0.0013, 0.7])))]}, positive=("inv_scale",), distributions=("normal", "large", "zero", "edges"))
