"""Reference of `reduce`: float64."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding


def _valid(x, cols):
    return x if cols is None else x[:, : int(np.clip(cols[0], 0, x.shape[1]))]


def ref(x, cols=None, *, kind="sum", dtypes):
    x = _valid(x, cols)
    if kind in ("max", "amax"):
        return {"out": x.max(-1, initial=-np.inf) if kind == "max" else np.abs(x).max(-1, initial=0)}
    total = x.sum(-1)
    return {"out": round_to(total if kind == "sum" else total / x.shape[1] if x.shape[1] else np.full(len(x), np.nan), "f32")}


def bound(port, value, dtype, inputs):
    """max and amax are exact. A sum in 16 or more parts of H <= 5000 adds at most 330 times in a row: 330 * 2^-24 < 2e-5 of the sizes."""
    kind = inputs.attrs.get("kind", "sum")
    if kind in ("max", "amax"):
        return np.zeros_like(value)
    sizes = np.abs(_valid(inputs["x"], inputs.get("cols")))
    return 2e-5 * sizes.sum(-1) / (max(sizes.shape[1], 1) if kind == "mean" else 1) + rounding(value, dtype)


CASES = [
    Case({"T": 5, "H": 300}, {"x": "f32", "out": "f32"}),
    Case({"T": 3, "H": 5000}, {"x": "bf16", "out": "f32"}, {"kind": "mean"}),
    Case({"T": 7, "H": 77}, {"x": "f16", "out": "f32"}, {"kind": "max"}),
    Case({"T": 4, "H": 1024}, {"x": "bf16", "out": "f32"}, {"kind": "amax"}),
    Case({"T": 2, "H": 100}, {"x": "f32", "cols": "i32", "out": "f32"}, {"kind": "amax"}, values={"cols": [61]}),
    Case({"T": 8, "H": 64}, {"x": "f32", "out": "f32", "rows": "i32"}, rows=5),
    Case({"T": 0, "H": 64}, {"x": "f32", "out": "f32"}),
]


DOMAIN = Domain(contents=lambda d, rng: {"cols": [rng.choice([0, 1, d.dims["H"], d.dims["H"] // 2, -1, d.dims["H"] + 3])]}, tokens={}, indices=("cols",))
