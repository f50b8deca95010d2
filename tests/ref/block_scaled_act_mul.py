"""Reference of `block_scaled_act_mul`: its parts' references, one after the other."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref import act_mul_block_scaled, dequantize_block_scaled
from tests.ref.common import Case, Inputs
from tests.ref.quantize_block_scaled import scale_count

SCRATCH = ("gate_rows", "up_rows")
JUDGED = ("out", "scales")


def _values(gate, gate_scales, gate_tensor, up, up_scales, up_tensor, layout, dims, dtypes):
    """The rows that act_mul_block_scaled sees."""
    wide, kind = dims | {"H": 2 * dims["C"]}, {"out": dtypes["gate_rows"]}
    return {name: dequantize_block_scaled.ref(x, scales, tensor, layout=layout, dims=wide, dtypes=kind)["out"]
            for name, x, scales, tensor in (("gate", gate, gate_scales, gate_tensor), ("up", up, up_scales, up_tensor))}


def ref(gate, gate_scales, gate_tensor, up, up_scales, up_tensor, tensor_scale, gate_rows, up_rows, inv_scale=None, *, act="silu", layout="linear", dims, dtypes):
    rows = _values(gate, gate_scales, gate_tensor, up, up_scales, up_tensor, layout, dims, dtypes)
    written = act_mul_block_scaled.ref(tensor_scale, layout=layout, dims=dims, dtypes=dtypes, act=act, inv_scale=inv_scale, **rows)
    return written | {"gate_rows": gate_rows, "up_rows": up_rows}


def bound(port, value, dtype, inputs):
    """Codes and scales are judged together."""
    return 0.0


def judged(got, inputs):
    """As act_mul_block_scaled's of the same values, which are exact."""
    codes = {p: inputs[p] for p in ("gate", "gate_scales", "gate_tensor", "up", "up_scales", "up_tensor")}
    rows = _values(**codes, layout=inputs.attrs.get("layout", "linear"), dims=inputs.case.dims, dtypes=inputs.case.dtypes)
    rest = {p: inputs[p] for p in ("tensor_scale", "inv_scale") if p in inputs}
    return act_mul_block_scaled.judged(got, Inputs(rows | rest, inputs.case))


def case(T, C, scratch, attrs, *, smooth=False, **more):
    count = "(T+127)/128*512*((C/8+3)/4)" if attrs.get("layout") == "swizzled" else "T*C/8"
    dtypes = {"gate": "u8", "gate_scales": "e4m3", "gate_tensor": "f32", "up": "u8", "up_scales": "e4m3", "up_tensor": "f32", "out": "u8", "scales": "e4m3",
              "tensor_scale": "f32", "gate_rows": scratch, "up_rows": scratch}
    dtypes |= {"inv_scale": "f32"} if smooth else {}
    dtypes |= {"rows": "i32"} if "rows" in more else {}
    return Case({"T": T, "C": C}, dtypes, attrs, ranges={"gate": (0, 256), "up": (0, 256)}, positive=("gate_tensor", "up_tensor", *(["inv_scale"] if smooth else [])),
                values={"tensor_scale": [0.7]}, shapes=dict.fromkeys(("gate_scales", "up_scales", "scales"), count), distributions=("normal", "zero", "edges"), **more)


CASES = [
    case(3, 32, "f32", {"act": "gelu_tanh"}),
    case(5, 264, "bf16", {"act": "gelu_tanh", "layout": "swizzled"}, smooth=True),
    case(130, 24, "f16", {"layout": "swizzled"}),
    case(4, 16, "bf16", {"act": "gelu_erf"}),
    case(6, 8, "f32", {"act": "relu"}, rows=4),
    case(2, 48, "f16", {"act": "relu2"}),
]


def fit(d):
    d.multiple("C", 8)
    for port in ("gate_scales", "up_scales", "scales"):
        d.shapes[port] = (scale_count(d.dims["T"], d.dims["C"] // 8, d.attr("layout")),)


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"tensor_scale": [float(np.float32(0.7))]}, ranges={"gate": (0, 256), "up": (0, 256)}, positive=("gate_tensor", "up_tensor", "inv_scale"), distributions=("normal", "zero", "edges"))
