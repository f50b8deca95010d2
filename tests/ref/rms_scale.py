"""Reference of `rms_scale`: float64, the formula of vivace/ops/rms_scale.h."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to


def ref(squares, *, columns=0, eps=1e-6, dtypes):
    return {"row_scale": round_to(1 / np.sqrt(squares.sum(-1) / (columns or 8 * squares.shape[-1]) + eps), "f32")}


def bound(port, value, dtype, inputs):
    """Half of the sum's relative error, a rounding an addition, and a few units of the root."""
    return (inputs["squares"].shape[-1] / 2 + 6) * 2.0**-24 * np.abs(value)


def case(T, S, attrs=None, **options):
    return Case({"T": T, "S": S}, {"squares": "f32", "row_scale": "f32"} | ({"rows": "i32"} if "rows" in options else {}), attrs or {}, **{"ranges": {"squares": (0.0, 40.0)}, "distributions": ("normal",), **options})


CASES = [
    case(50, 128),
    case(8, 512, note="the widest of the decoders' rows that are measured"),
    case(3, 13, {"columns": 100, "eps": 1e-5}, rows=2),
    case(70, 260),
    case(5, 68, note="fours, not eights"),
    case(2, 1, {"columns": 3}),
    case(3, 128, ranges={}, distributions=("zero",)),
    case(0, 4),
]


def fit(d):
    d.attrs.pop("columns", None)
    if d.chance(0.6):
        d.attrs["columns"] = float(8 * d.dims["S"] - d.pick((0, 1, 4, 7)))


DOMAIN = Domain(fit=fit, ranges={"squares": (0.0, 40.0)}, attrs={"eps": (1e-5, 1e-3), "columns": (0.0,)}, sizes={"S": (1, 2, 13, 32, 68, 72, 128, 144, 260, 512, 1024)}, tokens={})
