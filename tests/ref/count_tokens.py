"""Reference of `count_tokens`: an unbuffered add."""
import numpy as np

from tests.differential.domain import Domain, entries
from tests.ref.common import Case


def ref(ids, counts, slot=None, *, dtypes):
    slot = np.zeros_like(ids) if slot is None else slot
    ok = (ids >= 0) & (ids < counts.shape[1]) & (slot >= 0) & (slot < counts.shape[0])
    out = counts.copy()
    np.add.at(out, (slot[ok], ids[ok]), 1)
    return {"counts": out}


def bound(port, value, dtype, inputs):
    """Integers: exact."""
    return np.zeros(value.shape)


CASES = [
    Case({"T": 1, "S": 1, "V": 9}, {"ids": "i32", "counts": "i32"}, ranges={"ids": (0, 9), "counts": (0, 50)}),
    Case({"T": 64, "S": 3, "V": 7}, {"ids": "i32", "slot": "i32", "counts": "i32"},
         ranges={"ids": (-2, 9), "slot": (-1, 5), "counts": (0, 50)}, note="many of a kind, and ids and slots that do not exist"),
    Case({"T": 20, "S": 2, "V": 300}, {"ids": "i32", "slot": "i32", "counts": "i32", "rows": "i32"},
         ranges={"ids": (0, 300), "slot": (0, 2), "counts": (0, 50)}, rows=11),
    Case({"T": 0, "S": 1, "V": 9}, {"ids": "i32", "counts": "i32"}, ranges={"ids": (0, 9), "counts": (0, 50)}),
]


def contents(d, rng):
    return {"ids": entries(rng, d.dims["T"], 0, d.dims["V"]), "slot": entries(rng, d.dims["T"], 0, d.dims["S"])}


DOMAIN = Domain(contents=contents, ranges={"counts": (0, 50)}, indices=("ids", "slot"))
