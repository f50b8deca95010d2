"""Reference of `norm`: float64, the formula of vivace/ops/norm.h line by line."""
import numpy as np

from tests.ref.common import E4M3_MAX, Case, rounding, round_to


def ref(x, residual=None, gate=None, weight=None, bias=None, scale=None, shift=None, ada_row=None,
        out_scale=None, *, kind="rms", eps=1e-6, weight_plus_one=False, dtypes):
    """Returns every written port as float64, rounded to its dtype. Inputs arrive as float64."""
    T, H = x.shape
    h, written = x, {}
    ada = None
    for table in (gate, scale, shift):
        if table is not None:
            ada = np.minimum(np.arange(T), len(table) - 1) if ada_row is None else ada_row.astype(int)
    if residual is not None:
        h = residual + (h if gate is None else gate[ada] * h)
        written["residual"] = round_to(h, dtypes["residual"])
    m = h.mean(-1, keepdims=True) if kind == "layer" else 0.0
    y = (h - m) / np.sqrt(((h - m) ** 2).mean(-1, keepdims=True) + eps)
    if weight is not None:
        y = y * (weight + (1 if weight_plus_one else 0))
    if bias is not None:
        y = y + bias
    if scale is not None:
        y = y * (1 + scale[ada])
    if shift is not None:
        y = y + shift[ada]
    if "row_scale" in dtypes:
        amax = np.abs(y).max(-1)
        written["row_scale"] = np.where(amax > 0, amax / E4M3_MAX, 1.0)
        y = y / written["row_scale"][:, None]
    elif out_scale is not None:
        y = y / out_scale[0]
    written["out"] = round_to(y, dtypes["out"])
    return written


def bound(port, value, dtype, inputs):
    """f32 arithmetic over H terms, then one rounding to `dtype` (which may fall either way at a tie)."""
    if port == "row_scale":
        return 1e-5 * np.abs(value) + 1e-30
    magnitude = np.maximum(np.abs(value), np.abs(value).max(-1, keepdims=True) * 2.0**-12)
    return 2e-5 * magnitude + rounding(value, dtype)


CASES = [
    Case({"T": 1, "H": 64}, {"x": "f32", "weight": "f32", "out": "f32"}),
    Case({"T": 7, "H": 1000}, {"x": "bf16", "weight": "bf16", "out": "bf16"}, {"eps": 1e-5}),
    Case({"T": 3, "H": 257}, {"x": "f16", "residual": "f16", "weight": "f32", "out": "f16"}, {"weight_plus_one": True}),
    Case({"T": 5, "H": 96, "R": 5}, {"x": "bf16", "residual": "bf16", "gate": "bf16", "scale": "bf16", "shift": "bf16", "out": "bf16"}),
    Case({"T": 6, "H": 96, "R": 2}, {"x": "f32", "scale": "f32", "shift": "f32", "ada_row": "i32", "out": "f32"},
         ranges={"ada_row": (0, 2)}),
    Case({"T": 4, "H": 576}, {"x": "f32", "weight": "f32", "bias": "f32", "out": "f32"}, {"kind": "layer", "eps": 1e-5}),
    Case({"T": 9, "H": 128}, {"x": "bf16", "weight": "bf16", "out": "e4m3", "out_scale": "f32"}, positive=("out_scale",)),
    Case({"T": 9, "H": 130}, {"x": "f32", "residual": "f32", "weight": "f32", "out": "e4m3", "row_scale": "f32"}),
    Case({"T": 8, "H": 64}, {"x": "f32", "weight": "f32", "out": "f32", "rows": "i32"}, rows=5),
    Case({"T": 0, "H": 64}, {"x": "f32", "weight": "f32", "out": "f32"}),
    Case({"T": 2, "H": 1}, {"x": "f32", "out": "f32"}),
]
