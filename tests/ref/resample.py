"""Reference of `resample`: products of the windows that outputs see, float64."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, rounding


def seen(x, filter, O, down, first):
    """Each output's taps [O, K], and its inputs [B, O, K], 0 where there are none."""
    U, K = filter.shape
    at = np.arange(O, dtype=np.int64) * down
    k = at[:, None] // U + first + np.arange(K)
    inside = (k >= 0) & (k < x.shape[1])
    return np.where(inside, filter[at % U], 0.0), np.where(inside, x[:, np.clip(k, 0, x.shape[1] - 1)], 0.0)


def ref(x, filter, *, down=1, first=0, dtypes, dims, **_):
    taps, inputs = seen(x, filter, dims["O"], int(down), int(first))
    return {"out": (taps * inputs).sum(-1)}


def bound(port, value, dtype, inputs):
    """K products and sums, half a unit of the terms' sizes each."""
    taps, x = seen(inputs["x"], inputs["filter"], value.shape[1], int(inputs.attrs.get("down", 1)), int(inputs.attrs.get("first", 0)))
    return (taps.shape[1] + 1) * 2.0**-24 * np.abs(np.nan_to_num(taps * x)).sum(-1) + rounding(value, dtype) + 1e-37


_ALL = {"x": "f32", "filter": "f32", "out": "f32"}
CASES = [
    Case({"B": 1, "N": 4410, "U": 160, "K": 90, "O": 1600}, _ALL, {"down": 441, "first": -44}, note="44.1 kHz to 16 kHz"),
    Case({"B": 2, "N": 800, "U": 2, "K": 32, "O": 1600}, _ALL, {"down": 1, "first": -15}, note="8 kHz to 16 kHz"),
    Case({"B": 3, "N": 99, "U": 1, "K": 7, "O": 40}, _ALL, {"down": 3, "first": 0}, note="outputs that see past the end"),
    Case({"B": 1, "N": 5, "U": 3, "K": 9, "O": 30}, _ALL, {"down": 2, "first": -30}, note="more taps than inputs, outputs that see none"),
    Case({"B": 1, "N": 50, "U": 1, "K": 1, "O": 50}, _ALL, note="a copy, times a factor"),
    Case({"B": 2, "N": 10, "U": 4, "K": 8, "O": 0}, _ALL),
]


DOMAIN = Domain(attrs={"down": (1, 2, 3, 147, 441, 1 << 20), "first": (0, -1, -15, -44, 7, -(1 << 20), 1 << 20)},
                sizes={"B": (1, 1, 2, 3), "N": (1, 5, 300, 1000, 5000), "U": (1, 2, 3, 160, 320, 7), "K": (1, 2, 7, 8, 32, 90, 91), "O": (0, 1, 30, 1000, 1025, 3000)},
                work=lambda d: d.dims["B"] * d.dims["O"] * d.dims["K"])
