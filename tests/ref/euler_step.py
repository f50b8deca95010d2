"""Reference of `euler_step`: float64."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding


def ref(x, v, dt_device=None, *, dt=1.0, dtypes):
    return {"out": round_to(x + v * dt * (1.0 if dt_device is None else dt_device[0]), dtypes["out"])}


def bound(port, value, dtype, inputs):
    """dt is rounded, two products and a sum: 4 * 2^-24 < 3e-7 of the sizes; 1e-44 for subnormal products."""
    step = np.abs(inputs["v"]) * abs(inputs.attrs.get("dt", 1.0)) * (inputs["dt_device"][0] if "dt_device" in inputs else 1.0)
    return 3e-7 * (np.abs(inputs["x"]) + step) + 1e-44 + rounding(value, dtype)


CASES = [
    Case({"T": 50, "H": 32}, {"x": "f32", "v": "f32", "out": "f32"}, {"dt": -0.1}),
    Case({"T": 5, "H": 33}, {"x": "bf16", "v": "bf16", "dt_device": "f32", "out": "bf16"}, positive=("dt_device",)),
    Case({"T": 8, "H": 64}, {"x": "f16", "v": "f16", "out": "f16", "rows": "i32"}, {"dt": 0.25}, rows=3),
]


DOMAIN = Domain(positive=("dt_device",), attrs={"dt": (-0.1, 0.25, 0.0)}, tokens={})
