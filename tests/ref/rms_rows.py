"""Reference of `rms_rows`: float64, the formula of vivace/ops/rms_rows.h."""
import numpy as np

from tests.ref.common import Case, round_to, rounding

COLUMNS = 16


def sums(x):
    """Sums of the squares of each 16 columns."""
    count = -(-x.shape[1] // COLUMNS)
    whole = np.zeros((len(x), count * COLUMNS))
    whole[:, : x.shape[1]] = x
    return (whole.reshape(len(x), count, COLUMNS) ** 2).sum(-1)


def factors(rows, scale):
    return 1.0 if scale is None else 1 + scale[np.minimum(np.arange(rows), len(scale) - 1)]


def ref(x, scale=None, *, dtypes):
    return {"scaled": round_to(x * factors(len(x), scale), dtypes["scaled"]), "squares": round_to(sums(x), "f32")}


def bound(port, value, dtype, inputs):
    """Two f32 roundings and the last one of a product; of a sum of 16 squares the roundings on the way to it, four deep."""
    if port == "scaled":
        return 2.0**-23 * np.abs(value) + rounding(value, dtype)
    return 6 * 2.0**-24 * value + 2.0**-140  # squares below the smallest numbers vanish


def case(T, H, x, R=None, **options):
    return Case({"T": T, "H": H} | ({"R": R} if R else {}), {"x": x, "scaled": x, "squares": "f32"} | ({"scale": x} if R else {}) | ({"rows": "i32"} if "rows" in options else {}), **options)


CASES = [
    case(50, 1024, "bf16", 1),
    case(7, 2056, "f16", 7, distributions=("normal", "tiny", "zero", "edges", "subnormal")),
    case(3, 100, "f32", 2, rows=2),
    case(5, 16, "bf16"),
    case(4, 33, "bf16", 1, note="no whole eights"),
    case(0, 64, "f32"),
]
