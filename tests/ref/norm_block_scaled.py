"""Reference of `norm_block_scaled`: the rows of norm in float64, quantized; quantize_block_scaled judges the codes."""
import numpy as np

from tests.differential.domain import Domain, entries
from tests.ref import norm
from tests.ref.common import Case, Inputs
from tests.ref.quantize_block_scaled import judge, quantized, scale_count


def _rows(inputs, attrs):
    """Exact (y, residual) and how far f32 may be from y."""
    kinds = {k: v for k, v in attrs.items() if k != "layout"}
    given = Inputs({k: v for k, v in inputs.items() if k != "tensor_scale"}, Case({}, {}, kinds))
    y = norm.ref(**{k: v.copy() for k, v in given.items()}, **kinds, dtypes={"residual": "f64", "out": "f64"})["out"]
    return y, norm.bound("out", y, "f64", given)


def ref(tensor_scale, *, layout="linear", dims, dtypes, **rest):
    written = norm.ref(**rest, dtypes=dtypes | {"out": "f64"})
    written["out"], written["scales"] = quantized(written["out"], tensor_scale, layout, dims["T"])
    return written


def bound(port, value, dtype, inputs):
    return norm.bound(port, value, dtype, inputs)  # of the residual


def judged(got, inputs):
    """Codes and scales against the exact rows."""
    y, allowed = _rows(inputs, inputs.attrs)
    return judge(got, y, allowed, inputs["tensor_scale"], inputs.attrs.get("layout", "linear"), inputs.case.dims["T"])


JUDGED = ("out", "scales")
_G = {"values": {"tensor_scale": [0.0013]}, "distributions": ("normal", "large", "zero", "edges")}
_OUT = {"out": "u8", "scales": "e4m3", "tensor_scale": "f32"}
CASES = [
    Case({"T": 3, "H": 64}, {"x": "f32", "weight": "f32", **_OUT}, shapes={"scales": "T*H/16"}, **_G),
    Case({"T": 5, "H": 256}, {"x": "bf16", "residual": "bf16", "weight": "bf16", **_OUT}, {"layout": "swizzled", "weight_plus_one": True}, shapes={"scales": "(T+127)/128*512*((H/16+3)/4)"}, **_G),
    Case({"T": 130, "H": 48, "R": 1}, {"x": "f16", "residual": "f16", "gate": "f16", "scale": "f16", "shift": "f16", **_OUT}, {"layout": "swizzled", "eps": 1e-5}, shapes={"scales": "(T+127)/128*512*((H/16+3)/4)"}, **_G),
    Case({"T": 4, "H": 512}, {"x": "bf16", "weight": "bf16", **_OUT}, shapes={"scales": "T*H/16"}, **_G),
    Case({"T": 4, "H": 512}, {"x": "f16", "residual": "f16", "weight": "f16", **_OUT}, shapes={"scales": "T*H/16"}, **_G),
    Case({"T": 4, "H": 576}, {"x": "f32", "weight": "f16", "bias": "f16", **_OUT}, {"kind": "layer"}, shapes={"scales": "T*H/16"}, **_G),
    Case({"T": 140, "H": 64}, {"x": "bf16", "residual": "bf16", "weight": "bf16", "bias": "bf16", **_OUT}, {"kind": "layer"}, shapes={"scales": "T*H/16"}, **_G),
    Case({"T": 8, "H": 32, "R": 2}, {"x": "bf16", "scale": "bf16", "shift": "bf16", "ada_row": "i32", "rows": "i32", **_OUT}, shapes={"scales": "T*H/16"}, rows=5, ranges={"ada_row": (0, 2)}, **_G),
]


def fit(d):
    norm.fit_rows(d)
    d.multiple("H", 16)
    d.shapes["scales"] = (scale_count(d.dims["T"], d.dims["H"] // 16, d.attr("layout")),)


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"tensor_scale": [float(np.float32(0.0013))], "ada_row": entries(rng, d.dims["T"], 0, d.dims["R"], outside=False)}, attrs={"eps": (1e-5, 1e-3)},
                distributions=("normal", "large", "zero", "edges"))
