"""Reference of `fill`: one rounding."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to


def ref(*, value=0.0, dims, dtypes, valid):
    return {"out": np.full((valid, dims["H"]), round_to(value, dtypes["out"]))}


def bound(port, value, dtype, inputs):
    """Correctly rounded: exact."""
    return np.zeros_like(value)


CASES = [
    Case({"T": 5, "H": 300}, {"out": "f32"}),
    Case({"T": 3, "H": 77}, {"out": "f16"}, {"value": float("-inf")}),
    Case({"T": 4, "H": 64}, {"out": "bf16"}, {"value": 1.2345}),
    Case({"T": 8, "H": 40}, {"out": "bf16", "rows": "i32"}, {"value": -3.0}, rows=5),
    Case({"T": 0, "H": 64}, {"out": "f32"}),
]


DOMAIN = Domain(attrs={"value": (float("-inf"), 1.2345, -3.0, 1e-42)})
