"""Reference of `rms_rows`: float64, the formula of vivace/ops/rms_rows.h."""
import numpy as np

from tests.differential.domain import Domain, nearest, rows_of_table
from tests.ref.common import Case, round_to, rounding

COLUMNS = 8


def sums(x):
    """Sums of the squares of each 8 columns."""
    count = -(-x.shape[1] // COLUMNS)
    whole = np.zeros((len(x), count * COLUMNS))
    whole[:, : x.shape[1]] = x
    return (whole.reshape(len(x), count, COLUMNS) ** 2).sum(-1)


def factors(rows, weight, scale):
    if weight is not None:
        return weight
    return 1.0 if scale is None else 1 + scale[np.minimum(np.arange(rows), len(scale) - 1)]


def ref(x, weight=None, scale=None, *, dtypes):
    return {"scaled": round_to(x * factors(len(x), weight, scale), dtypes["scaled"]), "squares": round_to(sums(x), "f32")}


def bound(port, value, dtype, inputs):
    """Two f32 roundings and the last one of a product; of a sum of 8 squares the roundings on the way to it, four deep with the last."""
    if port == "scaled":
        return 2.0**-23 * np.abs(value) + rounding(value, dtype)
    return 5 * 2.0**-24 * value + 2.0**-140  # squares below the smallest numbers vanish


def case(T, H, x, R=None, weight=None, **options):
    return Case({"T": T, "H": H} | ({"R": R} if R else {}), {"x": x, "scaled": x, "squares": "f32"} | ({"scale": x} if R else {}) | ({"weight": weight} if weight else {}) | ({"rows": "i32"} if "rows" in options else {}), **options)


CASES = [
    case(50, 1024, "bf16", 1),
    case(7, 2056, "f16", 7, distributions=("normal", "tiny", "zero", "edges", "subnormal")),
    case(3, 100, "f32", 2, rows=2),
    case(5, 16, "bf16"),
    case(4, 33, "bf16", 1, note="no whole eights"),
    case(9, 4096, "bf16", weight="bf16", note="what begins a decoder's step"),
    case(3, 576, "bf16", weight="f32", rows=2),
    case(6, 100, "f16", weight="bf16", distributions=("normal", "tiny", "edges")),
    case(2, 24, "f32", weight="f32"),
    case(5, 200, "f16", weight="f16"),
    case(0, 64, "f32"),
]


def fit(d):
    d.at_most_one("weight", "scale")
    rows_of_table(d)


DOMAIN = Domain(fit=fit, tokens={"scale": nearest})
