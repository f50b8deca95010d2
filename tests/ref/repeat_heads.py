"""Reference of `repeat_heads`: a copy."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import DISTRIBUTIONS, Case


def ref(x, *, dtypes, dims):
    return {"out": np.repeat(x, dims["Hq"] // dims["Hkv"], axis=1)}


def bound(port, value, dtype, inputs):
    """Bits are copied."""
    return np.zeros_like(value)


def case(T, Hkv, Hq, D, dtype, **more):
    return Case({"T": T, "Hkv": Hkv, "Hq": Hq, "D": D}, {"x": dtype, "out": dtype, **({"rows": "i32"} if "rows" in more else {})}, **more)


CASES = [case(5, 2, 8, 64, t, distributions=(*DISTRIBUTIONS, "nonfinite")) for t in ("f32", "bf16", "f16", "e4m3")]
CASES += [
    case(3, 3, 6, 17, "bf16", note="heads of odd length"),
    case(4, 5, 5, 40, "f16", note="nothing to repeat"),
    case(2, 1, 7, 256, "f32", note="one head for all"),
    case(9, 2, 4, 32, "bf16", rows=6),
    case(0, 2, 4, 32, "bf16"),
]


DOMAIN = Domain(fit=lambda d: d.heads(), distributions=(*DISTRIBUTIONS, "nonfinite"), tokens={})
