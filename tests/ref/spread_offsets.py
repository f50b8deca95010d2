"""Reference of `spread_offsets`: the formula."""
import numpy as np

from tests.differential.domain import counts_that_sum, Domain, offsets_of
from tests.ref.common import Case

WHOLE = ("slot", "pos")  # a token is known by its place among all


def ref(offsets, k_offsets=None, length=None, *, dtypes, valid):
    t = np.arange(valid)
    s = np.searchsorted(offsets, t, side="right") - 1
    inside = (s >= 0) & (s < len(offsets) - 1)
    s = np.where(inside, s, 0)
    pos = np.zeros_like(t)
    if len(offsets) > 1:
        tokens = np.diff(offsets)
        keys = length if length is not None else np.diff(k_offsets) if k_offsets is not None else tokens
        pos = t - offsets[s] + (keys - tokens)[s]
    out = {"slot": np.where(inside, s, -1), "pos": np.where(inside, pos, 0)}
    return out | ({"count": offsets[-1:]} if "count" in dtypes else {})


def bound(port, value, dtype, inputs):
    """Integers: exact."""
    return np.zeros(value.shape)


OUT = {"offsets": "i32", "slot": "i32", "pos": "i32"}

CASES = [
    Case({"T": 10, "R": 4}, OUT | {"count": "i32"}, values={"offsets": np.array([0, 3, 3, 8])}, note="an empty slot; two tokens of none"),
    Case({"T": 9, "R": 3}, OUT | {"k_offsets": "i32"}, values={"offsets": np.array([2, 5, 9]), "k_offsets": np.array([0, 40, 44])}, note="two tokens before the first slot"),
    Case({"T": 300, "R": 6, "S": 5}, OUT | {"length": "i32", "count": "i32"}, ranges={"length": (100, 500)}, values={"offsets": np.array([0, 1, 100, 100, 229, 300])}),
    Case({"T": 40, "R": 3, "S": 2}, OUT | {"length": "i32", "rows": "i32"}, rows=21, ranges={"length": (40, 90)}, values={"offsets": np.array([0, 20, 40])}),
    Case({"T": 5, "R": 1}, OUT, values={"offsets": np.array([0])}, note="no slots"),
    Case({"T": 0, "R": 2}, OUT | {"count": "i32"}, values={"offsets": np.array([0, 0])}),
]


def fit(d):
    d.at_most_one("k_offsets", "length")
    d.dims["R"] = max(d.dims["R"], 1)
    d.dims["S"] = d.dims["R"] - 1
    if d.dims["S"] == 0:
        d.drop("length")


def contents(d, rng):
    S, T = d.dims["R"] - 1, d.dims["T"]
    return {"offsets": offsets_of(rng, S, T, whole=rng.random() < 0.5), "k_offsets": np.concatenate([[0], np.cumsum(counts_that_sum(rng, S, 300))]), "length": rng.integers(0, 500, S)}


DOMAIN = Domain(fit=fit, contents=contents, sizes={"R": (1, 2, 3, 4, 6, 9, 33, 65, 129, 300)})
