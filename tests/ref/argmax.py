"""Reference of `argmax`: the first largest element; -1 for a row with NaN or nothing above -inf."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case


def ref(x, *, dtypes):
    token = np.array([-1 if np.isnan(row).any() or row.max() == -np.inf else int(np.argmax(row)) for row in x], np.int64)
    return {"token": token.reshape(len(x))}


def bound(port, value, dtype, inputs):
    """Integers: exact."""
    return np.zeros(value.shape)


def odd_rows(rng, shape):
    """NaN, nothing but -inf, +inf twice, all equal, and the largest at either end."""
    x = rng.standard_normal(shape)
    x[0, 5], x[1], x[2, [7, 3]], x[3], x[4, 0], x[5, -1] = np.nan, -np.inf, np.inf, 0.25, 90.0, 90.0
    return x


CASES = [
    Case({"T": 1, "V": 1}, {"x": "f32", "token": "i32"}),
    Case({"T": 7, "V": 1000}, {"x": "bf16", "token": "i32"}, note="many equal values"),
    Case({"T": 3, "V": 50257}, {"x": "f16", "token": "i32"}),
    Case({"T": 6, "V": 301}, {"x": "f32", "token": "i32"}, values={"x": odd_rows}),
    Case({"T": 5, "V": 64}, {"x": "f32", "token": "i32", "rows": "i32"}, rows=2),
    Case({"T": 0, "V": 64}, {"x": "f32", "token": "i32"}),
]


def few_values(d, rng):
    """Rows with many equal values, now and then with NaN, infinities or nothing."""
    T, V = d.dims["T"], d.dims["V"]
    if rng.random() < 0.5:
        return {}
    x = rng.integers(-3, 4, (T, V)).astype(np.float64)
    odd = rng.random(T) < 0.3
    x[odd, rng.integers(0, V, T)[odd]] = rng.choice([np.nan, np.inf, -np.inf, 5.0], int(odd.sum()))
    x[rng.random(T) < 0.05] = -np.inf
    return {"x": x}


DOMAIN = Domain(contents=few_values, tokens={})
