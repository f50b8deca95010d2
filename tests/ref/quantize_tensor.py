"""Reference of `quantize_tensor`: that of quantize with the largest magnitude."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref import quantize
from tests.ref.common import Case

SCRATCH = ("row_amax", "amax")


def ref(x, row_amax=None, amax=None, *, dtypes):
    return quantize.ref(x, amax=[np.abs(x).max(initial=0)], dtypes=dtypes)


bound = quantize.bound
_PORTS = {"tensor_scale": "f32", "row_amax": "f32", "amax": "f32"}


def _largest_first(rng, shape):
    """Without a row count the scale comes from all rows; with one from fewer: the same where row 0 has the largest."""
    x = rng.standard_normal(shape)
    x[0, -1] = -9.5
    return x


CASES = [
    Case({"T": 5, "H": 256}, {"x": "bf16", "out": "e4m3", **_PORTS}, values={"x": _largest_first}),
    Case({"T": 5, "H": 77}, {"x": "f32", "out": "i8", "rows": "i32", **_PORTS}, rows=3),
    Case({"T": 8, "H": 64}, {"x": "f16", "out": "e4m3", "rows": "i32", **_PORTS}, rows=5),
]


DOMAIN = Domain()
