"""Reference of `moe_combine`: float64."""
import numpy as np

from tests.differential.domain import Domain, entries
from tests.ref.common import Case, round_to, rounding


def ref(y, place, weights, residual=None, *, dtypes):
    lost = (place < 0) | (place >= len(y))
    rows = np.where(lost[..., None], np.nan, y[np.where(lost, 0, place)] if len(y) else np.zeros((*place.shape, y.shape[1])))
    out = (weights[..., None] * rows).sum(1)
    return {"out": round_to(out if residual is None else residual + out, dtypes["out"])}


def bound(port, value, dtype, inputs):
    """K products and sums, half a unit each of the terms' sizes."""
    place = np.clip(inputs["place"], 0, max(len(inputs["y"]) - 1, 0))
    if not place.size:
        return rounding(value, dtype)
    size = (np.abs(inputs["weights"])[..., None] * np.abs(inputs["y"][place])).sum(1) + np.abs(inputs.get("residual", 0))
    return 2.0**-23 * (place.shape[1] + 1) * size + rounding(value, dtype) + 1e-40


CASES = [
    Case({"T": 5, "K": 2, "N": 33}, {"y": "f32", "place": "i32", "weights": "f32", "out": "f32"}, ranges={"place": (0, 10)}),
    Case({"T": 4, "K": 3, "N": 300}, {"y": "bf16", "place": "i32", "weights": "f32", "residual": "f32", "out": "f32"}, ranges={"place": (-1, 13)},
         note="places that do not exist"),
    Case({"T": 6, "K": 8, "N": 16}, {"y": "f16", "place": "i32", "weights": "f32", "residual": "bf16", "out": "bf16", "rows": "i32"}, ranges={"place": (0, 48)}, rows=3),
    Case({"T": 3, "K": 1, "N": 20}, {"y": "f32", "place": "i32", "weights": "f32", "residual": "f16", "out": "f16"}, ranges={"place": (0, 3)}),
    Case({"T": 1, "K": 13, "N": 264}, {"y": "bf16", "place": "i32", "weights": "f32", "residual": "bf16", "out": "bf16"}, ranges={"place": (0, 13)}, note="eight choices, four and one"),
    Case({"T": 0, "K": 2, "N": 8}, {"y": "f32", "place": "i32", "weights": "f32", "out": "f32"}),
]


DOMAIN = Domain(contents=lambda d, rng: {"place": entries(rng, d.dims["T"] * d.dims["K"], 0, d.dims["T"] * d.dims["K"])}, sizes={"K": (1, 2, 3, 4, 6, 8, 13)}, tokens={}, indices=("place",))
