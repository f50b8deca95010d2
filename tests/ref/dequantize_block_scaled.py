"""Reference of `dequantize_block_scaled`: two f32 products."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to
from tests.ref.quantize_block_scaled import BLOCK, VALUES, scale_count, scale_places


def ref(x, scales, tensor_scale, *, layout="linear", dims, dtypes):
    T, H = len(x), dims["H"]
    code = np.stack([x % 16, x // 16], -1).reshape(T, H)
    value = np.where(code >= 8, -1.0, 1.0) * VALUES[code % 8]
    places, _ = scale_places(dims["T"], H // BLOCK, layout)
    d = round_to(scales[places[:T]] * tensor_scale[0], "f32")
    return {"out": round_to(round_to(value * np.repeat(d, BLOCK, 1), "f32"), dtypes["out"])}


def bound(port, value, dtype, inputs):
    """The reference rounds where the op does: exact."""
    return np.zeros_like(value)


_CODES = {"ranges": {"x": (0, 256)}, "positive": ("tensor_scale",)}
CASES = [
    Case({"T": 3, "H": 64}, {"x": "u8", "scales": "e4m3", "tensor_scale": "f32", "out": "f32"}, shapes={"scales": "T*H/16"}, **_CODES),
    Case({"T": 130, "H": 48}, {"x": "u8", "scales": "e4m3", "tensor_scale": "f32", "out": "bf16"}, {"layout": "swizzled"}, shapes={"scales": "(T+127)/128*512*((H/16+3)/4)"}, **_CODES),
    Case({"T": 5, "H": 256}, {"x": "u8", "scales": "e4m3", "tensor_scale": "f32", "out": "f16"}, {"layout": "swizzled"}, shapes={"scales": "(T+127)/128*512*((H/16+3)/4)"}, **_CODES),
    Case({"T": 8, "H": 32}, {"x": "u8", "scales": "e4m3", "tensor_scale": "f32", "out": "bf16", "rows": "i32"}, shapes={"scales": "T*H/16"}, rows=5, **_CODES),
]


def fit(d):
    d.multiple("H", BLOCK)
    d.shapes["scales"] = (scale_count(d.dims["T"], d.dims["H"] // BLOCK, d.attr("layout")),)


DOMAIN = Domain(fit=fit, ranges={"x": (0, 256)}, positive=("tensor_scale",))
