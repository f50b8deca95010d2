"""Reference of `gate_residual`: float64, the formula of vivace/ops/gate_residual.h."""
import numpy as np

from tests.differential.domain import Domain, entries, nearest, rows_of_table
from tests.ref.common import Case, round_to, rounding


def _sum(x, residual=None, bias=None, table=None, gate=None, ada_row=None, dt=None, *, alpha=1.0, of=np.asarray):
    T = len(x)
    y = of(x)
    if bias is not None:
        y = y + of(bias)
    if table is not None:
        y = y + of(table)[np.arange(T) % len(table)]
    if gate is not None:
        at = np.minimum(np.arange(T), len(gate) - 1) if ada_row is None else ada_row.astype(int)
        held = (at >= 0) & (at < len(gate))
        y = np.where(held[:, None], y * of(gate)[np.where(held, at, 0)], np.nan)
    y = y * of(alpha) * (1.0 if dt is None else of(dt)[0])
    return y if residual is None else y + of(residual)


def ref(x, *, alpha=1.0, act="none", dtypes, **others):
    y = _sum(x, alpha=alpha, **others)
    return {"out": round_to(y / (1 + np.exp(-y)) if act == "silu" else y, dtypes["out"])}


def bound(port, value, dtype, inputs):
    """Six f32 operations on terms that may cancel: 6 * 2^-24 < 4e-7 of their sizes; alpha itself is rounded once more.

    1e-44 for products that are subnormal in f32: a factor keeps each below seven units of 2^-149. SiLU's slope is
    at most 1.1, and its exponential, sum and quotient are within 6e-7 of its argument (vivace/kernels/gate/activation.h)."""
    attrs = {k: v for k, v in inputs.attrs.items() if k != "act"}
    sizes = _sum(**inputs, **attrs, of=np.abs)
    return (1.15e-6 if "act" in inputs.attrs else 5e-7) * sizes + (2e-44 if "act" in inputs.attrs else 1e-44) + rounding(value, dtype)


# Ports without a row a token of which a token's row depends on its place in the call.
BY_PLACE = ("table",)

CASES = [
    Case({"T": 3, "H": 64}, {"x": "f32", "out": "f32"}),
    Case({"T": 7, "H": 1000}, {"x": "bf16", "residual": "bf16", "out": "bf16"}),
    Case({"T": 5, "H": 96, "R": 5}, {"x": "f16", "residual": "f16", "gate": "f16", "out": "f16"}),
    Case({"T": 6, "H": 200, "R": 2}, {"x": "bf16", "residual": "bf16", "gate": "bf16", "ada_row": "i32", "out": "bf16"}, ranges={"ada_row": (0, 2)}),
    *[Case({"T": 9, "H": h, "R": 2}, {"x": t, **more, "gate": t, "ada_row": "i32", "out": t}, attrs, values={"ada_row": np.array([0, 2, 1, -1, 10**6, -2**31, 2**31 - 1, 1, 0])},
           note="some rows of the table do not exist") for h, t, more, attrs in ((96, "bf16", {"residual": "bf16"}, {}), (50, "f32", {}, {"act": "silu"}))],
    Case({"T": 4, "H": 257, "R": 1}, {"x": "f32", "residual": "f32", "bias": "f32", "gate": "f32", "out": "f32"}),
    Case({"T": 9, "H": 72, "P": 4}, {"x": "f16", "bias": "f16", "table": "f16", "out": "f16"}),
    Case({"T": 5, "H": 32}, {"x": "f32", "residual": "f32", "dt": "f32", "out": "f32"}, {"alpha": -0.1}, positive=("dt",)),
    Case({"T": 8, "H": 64}, {"x": "f32", "residual": "f32", "out": "f32", "rows": "i32"}, rows=5),
    Case({"T": 4, "H": 136}, {"x": "f16", "residual": "f16", "out": "f16"}, {"act": "silu"}),
    Case({"T": 3, "H": 50}, {"x": "f32", "bias": "f32", "out": "f32"}, {"act": "silu"}),
    Case({"T": 0, "H": 64}, {"x": "bf16", "out": "bf16"}),
]


def fit(d):
    d.needs("ada_row", "gate")
    rows_of_table(d)
    if d.has("gate") and not d.has("ada_row") and d.chance(0.3):
        d.dims["R"] = max(1, d.dims["T"] - 1)


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"ada_row": entries(rng, d.dims["T"], 0, d.dims["R"])}, positive=("dt",), attrs={"alpha": (-0.1, 0.0, 3.0)}, sizes={"P": (1, 2, 3, 16, 37, 256)}, tokens={"gate": nearest, "table": lambda tokens, rows: tokens % rows}, indices=("ada_row",))
