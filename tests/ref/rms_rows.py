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


def ref(x, weight=None, scale=None, scaled_scale=None, *, dtypes):
    y = x * factors(len(x), weight, scale)
    return {"scaled": round_to(y if scaled_scale is None else y / scaled_scale[0], dtypes["scaled"]), "squares": round_to(sums(x), "f32")}


def bound(port, value, dtype, inputs):
    """Two f32 roundings and the last one of a product, two more of a quotient by products; of a sum of 8 squares the roundings on the way to it, four deep with the last."""
    if port == "scaled":
        return (2.0**-22 if dtype == "e4m3" else 2.0**-23) * np.abs(value) + rounding(value, dtype)
    return 5 * 2.0**-24 * value + 2.0**-140  # squares below the smallest numbers vanish


def case(T, H, x, R=None, weight=None, e4m3=False, **options):
    options |= {"positive": ("scaled_scale",)} if e4m3 else {}
    return Case({"T": T, "H": H} | ({"R": R} if R else {}), {"x": x, "scaled": "e4m3" if e4m3 else x, "squares": "f32"} | ({"scaled_scale": "f32"} if e4m3 else {}) | ({"scale": x} if R else {}) | ({"weight": weight} if weight else {}) | ({"rows": "i32"} if "rows" in options else {}), **options)


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
    case(50, 1024, "bf16", 1, e4m3=True, note="the first rows of an expert in e4m3"),
    case(6, 100, "f16", weight="bf16", e4m3=True, distributions=("normal", "large", "tiny", "edges")),
    case(4, 33, "f32", 2, e4m3=True, rows=3),
    case(0, 64, "f32"),
]


def e4m3_rows(d, own):
    """`scaled` is of the type of the port `own`, or e4m3 with its scale."""
    if d.dtypes["scaled"] == "e4m3" or d.has("scaled_scale"):
        d.dtypes["scaled"] = "e4m3"
        d.add("scaled_scale")
    else:
        d.dtypes["scaled"] = d.dtypes[own]


def fit(d):
    d.at_most_one("weight", "scale")
    rows_of_table(d)
    e4m3_rows(d, "x")


DOMAIN = Domain(fit=fit, positive=("scaled_scale",), tokens={"scale": nearest})
