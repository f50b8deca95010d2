"""Reference of `cast`: one rounding."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import DISTRIBUTIONS, Case, round_to


def ref(x, *, dtypes):
    return {"out": round_to(x, dtypes["out"])}


def bound(port, value, dtype, inputs):
    """Correctly rounded: exact."""
    return np.zeros_like(value)


_ALL = (*DISTRIBUTIONS, "nonfinite")
CASES = [Case({"T": 5, "H": 300}, {"x": a, "out": b}, distributions=_ALL)
         for a in ("f32", "bf16", "f16", "e4m3", "e5m2") for b in ("f32", "bf16", "f16", "e4m3", "e5m2")]
CASES += [
    Case({"T": 6, "H": 17}, {"x": "f32", "out": "bf16", "rows": "i32"}, rows=4),
    Case({"T": 0, "H": 17}, {"x": "f32", "out": "e4m3"}),
]


DOMAIN = Domain(distributions=_ALL, tokens={})
