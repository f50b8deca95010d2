"""Reference of `delta_gates`: float64, the formula of vivace/ops/delta_gates.h."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding


def softplus(x):
    with np.errstate(over="ignore"):
        return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 25))))


def ref(a, b, rate, bias, *, dtypes):
    with np.errstate(over="ignore"):
        decay, beta = -np.exp(rate) * softplus(a + bias), 1 / (1 + np.exp(-b))
    return {"decay": round_to(decay, "f32"), "beta": round_to(beta, "f32")}


def bound(port, value, dtype, inputs):
    """Exponentials, a logarithm and a quotient of a few units each: 16 half-units. The sum in the exponent is off by half
    a unit of its terms, which the softplus, whose slope is at most 1 and at most its value, passes on; above 20 what is
    left out is 2.1e-9, nothing beside it. What is subnormal in f32 may be off by some of its units or be zero."""
    if port == "beta":
        return 2.0**-20 * np.abs(value) + rounding(value, dtype) + 1e-37
    sizes = np.abs(inputs["a"]) + np.abs(inputs["bias"])
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.exp(inputs["rate"])
        passed = scale * 2.0**-23 * sizes * np.minimum(softplus(inputs["a"] + inputs["bias"]), 1)
        return np.nan_to_num(passed) + 2.0**-20 * (1 + np.abs(inputs["rate"])) * np.nan_to_num(np.abs(value)) + rounding(value, dtype) + 1e-37 * (1 + np.minimum(scale, 1e30))


PORTS = {"a": "f32", "b": "f32", "rate": "f32", "bias": "f32", "decay": "f32", "beta": "f32"}
QUIET = {"rate": (-3.0, 3.0)}
USUAL = ("normal", "tiny", "zero", "edges")


def case(T, H, t="f32", rate="f32", bias="f32", **more):
    return Case({"T": T, "H": H}, {**PORTS, "a": t, "b": t, "rate": rate, "bias": bias, **({"rows": "i32"} if "rows" in more else {})}, ranges=QUIET, distributions=USUAL, **more)


CASES = [
    case(1, 48, "bf16", note="a decode step"),
    case(7, 4, "f32"),
    case(130, 33, "f16", "bf16", "f16"),
    case(9, 32, "bf16", "f32", "bf16", rows=5),
    Case({"T": 6, "H": 5}, PORTS, ranges=QUIET, values={"a": np.linspace(-40, 40, 30).reshape(6, 5), "b": np.linspace(-90, 90, 30).reshape(6, 5)}, note="both ends of the softplus and of the sigmoid"),
    case(3, 12, "f16", "f16", "bf16"),
    case(0, 8),
]

DOMAIN = Domain(ranges=QUIET, distributions=USUAL, tokens={})
