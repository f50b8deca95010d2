"""Reference of `renorm_probs`: by sorting, in float64. Rows where a rounding could decide are redrawn."""
import functools

import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to
from tests.ref.sample import MARGIN


def kept(p, top_k=0, top_p=1.0):
    """(ids that stay, whether that has its margin) of one row."""
    p = np.where(p > 0, p, 0.0)
    order = np.lexsort((np.arange(len(p)), -p))
    order, sure = order[p[order] > 0], True
    if 0 < top_k < len(p):
        order = order[:top_k]
    if top_p < 1 and len(order):
        mass = np.cumsum(p[order])
        want = float(np.float32(top_p)) * mass[-1]
        keep = int(np.searchsorted(mass, want)) + 1
        sure = np.abs(mass - want).min() > MARGIN * mass[-1] or keep == 1
        order = order[:keep]
    return order, bool(sure)


def ref(probs, top_k=None, top_p=None, *, dtypes):
    out = np.zeros(probs.shape)
    for t, p in enumerate(probs):
        ids, _ = kept(p, 0 if top_k is None else top_k[t], 1.0 if top_p is None else top_p[t])
        if len(ids):
            out[t, ids] = p[ids] / p[ids].sum()
    return {"out": out}


def bound(port, value, dtype, inputs):
    """A sum of positive terms in stretches of 256 and one division; what was cut is exactly 0."""
    return np.where(value > 0, 1e-5 * value + 2.0**-149, 0.0)


@functools.cache
def scenario(T, V, spread, seed=0, unit=1.0):
    rng = np.random.default_rng([T, V] + ([seed] if seed else []))
    rows = []
    while len(rows) < max(T, 1):  # of no row at all: the shapes of one
        p = round_to(np.exp(spread * rng.standard_normal(V)) / V * unit, "f32")
        p[rng.random(V) < 0.1] = rng.choice([0.0, -1.0])
        if V > 8:
            p[:4] = p[5]  # ties
        row = {"probs": p, "top_k": rng.integers(-1, V + 2), "top_p": round_to(rng.choice([0.0, 0.4, 0.9, 0.99, 1.0]), "f32")}
        if kept(p, row["top_k"], row["top_p"])[1] and kept(p, 0, row["top_p"])[1]:
            rows.append(row)
    return {k: np.stack([r[k] for r in rows])[:T] for k in rows[0]}


def case(T, V, spread, ports, unit=1.0, **options):
    dtypes = {"probs": "f32", "out": "f32"} | {p: {"top_k": "i32", "top_p": "f32"}[p] for p in ports}
    values = {p: (lambda rng, shape, p=p: scenario(T, V, spread, 0, unit)[p]) for p in ("probs", *ports)}
    if "rows" in options:
        dtypes["rows"] = "i32"
    return Case({"T": T, "V": V}, dtypes, values=values, **options)


CASES = [
    case(9, 1000, 2.0, ("top_k", "top_p")),
    case(7, 513, 0.01, ("top_k",), note="nearly equal probabilities"),
    case(7, 700, 3.0, ("top_p",)),
    case(3, 9001, 2.0, ("top_k", "top_p"), note="a row that several thread blocks share"),
    case(4, 33, 1.0, ()),
    case(6, 64, 1.0, ("top_k", "top_p"), rows=2),
    Case({"T": 2, "V": 5}, {"probs": "f32", "out": "f32", "top_p": "f32"},
         values={"probs": np.array([[0, 0, -1, 0, 0], [0, 2.0, 0, 0, 0]]), "top_p": np.array([0.5, 0.5])}, note="nothing positive"),
    case(5, 300, 2.0, ("top_p",), 2.0**-129, note="largest values whose reciprocal is infinite, and sums likewise"),
    case(3, 16500, 2.0, ("top_k", "top_p"), 2.0**-128),
    case(4, 2000, 1.0, ("top_p",), 2.0**110),
    Case({"T": 0, "V": 9}, {"probs": "f32", "out": "f32"}, values={"probs": np.zeros((0, 9))}),
]


def contents(d, rng):
    """Rows where no rounding decides."""
    return scenario.__wrapped__(d.dims["T"], d.dims["V"], float(rng.choice([0.01, 1.0, 3.0])), 1 + int(rng.integers(1 << 30)), float(rng.choice([1.0, 2.0**-129, 2.0**100])))


DOMAIN = Domain(contents=contents, work=lambda d: d.dims["T"] * (d.dims["V"] * 4 + 4000))
