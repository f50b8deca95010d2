"""Reference of `dequantize`: float64, one product."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to

BLOCK = 128


def ref(x, scale=None, row_scale=None, block_scale=None, *, dtypes):
    if row_scale is not None:
        scale = row_scale[:, None]
    elif block_scale is not None:
        scale = np.repeat(block_scale, BLOCK, 1)[:, : x.shape[1]]
    return {"out": round_to(round_to(x * scale, "f32"), dtypes["out"])}


def bound(port, value, dtype, inputs):
    """The reference rounds where the op does: exact."""
    return np.zeros_like(value)


_CODES = {"ranges": {"x": (-127, 128)}}
CASES = [
    Case({"T": 5, "H": 256}, {"x": "e4m3", "out": "bf16", "scale": "f32"}, positive=("scale",)),
    Case({"T": 3, "H": 77}, {"x": "i8", "out": "f32", "scale": "f32"}, positive=("scale",), **_CODES),
    Case({"T": 6, "H": 1000}, {"x": "e4m3", "out": "f16", "row_scale": "f32"}, positive=("row_scale",)),
    Case({"T": 4, "H": 300}, {"x": "i8", "out": "bf16", "block_scale": "f32"}, positive=("block_scale",), **_CODES),
    Case({"T": 8, "H": 512}, {"x": "e4m3", "out": "f32", "block_scale": "f32", "rows": "i32"}, positive=("block_scale",), rows=5),
    Case({"T": 0, "H": 64}, {"x": "e4m3", "out": "f32", "scale": "f32"}, positive=("scale",)),
]


DOMAIN = Domain(fit=lambda d: d.one_of("scale", "row_scale", "block_scale"), contents=lambda d, rng: {"x": rng.integers(-127, 128, (d.dims["T"], d.dims["H"]))} if d.dtypes["x"] == "i8" else {},
                positive=("scale", "row_scale", "block_scale"), tokens={})
