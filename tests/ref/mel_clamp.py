"""Reference of `mel_clamp`: float64."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding

TOGETHER = True  # frames of one signal


def ref(x, peak, length=None, *, range=8, dtypes, dims, **_):
    frames = dims["T"] // max(dims["B"], 1)
    signal, frame = np.divmod(np.arange(len(x)), max(frames, 1))
    least = (peak - range)[signal][:, None] if len(x) else np.zeros((0, 1))
    y = (np.where(x < least, least, x) + 4) / 4
    if length is not None and len(x):
        y = np.where((frame >= length[signal])[:, None], 0.0, y)
    return {"out": round_to(y, dtypes["out"])}


def bound(port, value, dtype, inputs):
    """Two sums rounded to f32: half a unit of the peak or of the result each; the quarter is exact."""
    largest = np.abs(np.nan_to_num(inputs["peak"], nan=0, posinf=0, neginf=0)).max(initial=0) + abs(inputs.attrs.get("range", 8)) + np.abs(np.nan_to_num(inputs["x"], nan=0, posinf=0, neginf=0)).max(initial=0) + 4
    return rounding(value, dtype) + 2.0**-24 * largest


def ports(out, **more):
    return {"x": "f32", "peak": "f32", "out": out, **more}


_LOGS = {"x": (-10.0, 3.0), "peak": (-2.0, 3.0)}
CASES = [
    Case({"T": 60, "M": 80, "B": 2}, ports("f32"), ranges=_LOGS),
    Case({"T": 30, "M": 128, "B": 3}, ports("bf16", length="i32"), ranges=_LOGS, values={"length": [10, 0, 4]}),
    Case({"T": 12, "M": 33, "B": 4}, ports("f16", length="i32"), {"range": 2.5}, ranges=_LOGS, values={"length": [-1, 2, 3, 99]}),
    Case({"T": 20, "M": 5000, "B": 1}, ports("f32", rows="i32"), {"range": 0}, ranges=_LOGS, rows=13),
    Case({"T": 9, "M": 80, "B": 1}, ports("f32"), distributions=("normal", "nonfinite")),
    Case({"T": 0, "M": 80, "B": 2}, ports("f32"), ranges=_LOGS),
]


def fit(d):
    d.dims["T"] = d.dims["B"] * d.pick((0, 1, 2, 7, 30, 100))


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"length": rng.integers(-1, d.dims["T"] // d.dims["B"] + 2, d.dims["B"])}, attrs={"range": (0, 2.5, 8)}, sizes={"B": (1, 2, 3, 5), "M": (80, 128, 1, 33, 300)}, indices=("length",))
