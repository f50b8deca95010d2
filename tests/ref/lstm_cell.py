"""Reference of `lstm_cell`: float64."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, rounding


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(x, np.float64)))


def ref(gates, cell, *, dtypes, **_):
    i, f, g, o = np.split(gates, 4, axis=1)
    with np.errstate(all="ignore"):
        c = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        return {"cell": c, "out": sigmoid(o) * np.tanh(c)}


def bound(port, value, dtype, inputs):
    """Sigmoid and tanh within 6 half-units of values of at most 1 (exp, sum, quotient; tanh by the library), products and the sum of the
    cell within 10 half-units of their sizes; tanh does not enlarge what the cell is off by."""
    size = np.abs(np.nan_to_num(inputs["cell"])) + 1
    return 2.0**-24 * 12 * size + rounding(value, dtype) + 1e-37


_ALL = {"gates": "f32", "cell": "f32", "out": "f32"}
CASES = [
    Case({"T": 1, "H": 128}, _ALL, note="a frame of voice activity detection"),
    Case({"T": 5, "H": 77}, _ALL),
    Case({"T": 3, "H": 1000}, _ALL, distributions=("normal", "nonfinite")),
    Case({"T": 6, "H": 33}, {**_ALL, "rows": "i32"}, rows=4),
    Case({"T": 0, "H": 8}, _ALL),
]

DOMAIN = Domain(tokens={})
