"""Reference of `norm`: float64, the formula of vivace/ops/norm.h line by line."""
import numpy as np

from tests.differential.domain import Domain, entries, nearest, rows_of_table
from tests.ref.common import E4M3_MAX, Case, round_to, rounding


def ref(x, residual=None, gate=None, weight=None, bias=None, scale=None, shift=None, ada_row=None,
        out_scale=None, *, kind="rms", eps=1e-6, weight_plus_one=False, dtypes):
    """Returns every written port as float64, rounded to its dtype. Inputs arrive as float64."""
    T, H = x.shape
    h, written = x, {}
    ada = None
    for table in (gate, scale, shift):
        if table is not None:
            ada = np.minimum(np.arange(T), len(table) - 1) if ada_row is None else ada_row.astype(int)
            lost = (ada < 0) | (ada >= len(table))  # no such row: everything this token writes is NaN
            ada = np.where(lost, 0, ada)
            h = np.where(lost[:, None], np.nan, h)
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
        y = round_to(y, "f32")  # what is too small for f32 is zero before the row's largest is sought
        amax = np.abs(y).max(-1)
        written["row_scale"] = np.where(amax > 0, amax / E4M3_MAX, 1.0)
        y = y / written["row_scale"][:, None]
    elif out_scale is not None:
        y = y / out_scale[0]
    written["out"] = round_to(y, dtypes["out"])
    return written


def bound(port, value, dtype, inputs):
    """f32 arithmetic on terms that may cancel, then one rounding to `dtype` (either way at a tie).

    1e-5 of the terms: sums of H <= 1000 in 16 parts are off by at most 63 * 2^-24 of the mean size,
    which enters through the mean and half through the root; the other dozen operations by 2^-24 each.
    """
    if port == "residual":
        terms = np.abs(inputs["residual"]) + np.abs(inputs["x"]) * _ada(inputs, "gate", 1.0)
        return 1e-6 * terms + rounding(value, dtype)
    sizes = {k: np.abs(v) for k, v in inputs.items() if k not in ("ada_row", "out_scale")}
    h = sizes["x"] * _ada(inputs, "gate", 1.0) + sizes.get("residual", 0)
    exact = inputs["x"] * (1.0 if "gate" not in inputs else _ada(inputs, "gate", 1.0, np.asarray)) + inputs.get("residual", 0)
    mean = exact.mean(-1, keepdims=True) if inputs.attrs.get("kind") == "layer" else 0.0
    spread = np.sqrt(((exact - mean) ** 2).mean(-1, keepdims=True) + inputs.attrs.get("eps", 1e-6))
    terms = (h + (h.mean(-1, keepdims=True) if inputs.attrs.get("kind") == "layer" else 0.0)) / spread
    terms = terms * (sizes.get("weight", 1.0) + inputs.attrs.get("weight_plus_one", 0)) + sizes.get("bias", 0)
    terms = terms * (1 + _ada(inputs, "scale", 0.0)) + _ada(inputs, "shift", 0.0)
    if port == "row_scale":  # the row's largest is as far off as an element may be
        return 1e-5 * terms.max(-1) / E4M3_MAX + 1e-38
    if "out_scale" in inputs:
        terms = terms / inputs["out_scale"][0]
    elif dtype == "e4m3":
        exact_out = ref(**inputs, **inputs.attrs, dtypes={"residual": "f64", "out": "f64"})["out"]
        amax = np.abs(exact_out).max(-1, keepdims=True)
        terms = terms / np.where(amax > 0, amax / E4M3_MAX, 1.0)
    return 1e-5 * terms + rounding(value, dtype)


def _ada(inputs, table, absent, of=np.abs):
    """Sizes of an adaptive table's entries, a row a token."""
    if table not in inputs:
        return absent
    T = len(inputs["x"])
    rows = inputs.get("ada_row", np.minimum(np.arange(T), len(inputs[table]) - 1)).astype(int)
    return of(inputs[table])[np.clip(rows, 0, len(inputs[table]) - 1)]  # lost rows are NaN anyway


def small_rows(rng, shape):
    """Rows about where 1 / a row's scale, or the root's inverse times that, passes f32's largest number."""
    return rng.uniform(-1, 1, shape) * np.geomspace(1e-38, 1e-34, shape[0])[:, None]


CASES = [
    Case({"T": 1, "H": 64}, {"x": "f32", "weight": "f32", "out": "f32"}),
    Case({"T": 7, "H": 1000}, {"x": "bf16", "weight": "bf16", "out": "bf16"}, {"eps": 1e-5}),
    Case({"T": 3, "H": 257}, {"x": "f16", "residual": "f16", "weight": "f32", "out": "f16"}, {"weight_plus_one": True}),
    Case({"T": 5, "H": 96, "R": 5}, {"x": "bf16", "residual": "bf16", "gate": "bf16", "scale": "bf16", "shift": "bf16", "out": "bf16"}),
    Case({"T": 6, "H": 96, "R": 2}, {"x": "f32", "scale": "f32", "shift": "f32", "ada_row": "i32", "out": "f32"},
         ranges={"ada_row": (0, 2)}),
    Case({"T": 9, "H": 40, "R": 2}, {"x": "f32", "residual": "f32", "gate": "f32", "ada_row": "i32", "out": "f32"},
         ranges={"ada_row": (-1, 4)}, note="some rows of the table do not exist"),
    Case({"T": 4, "H": 576}, {"x": "f32", "weight": "f32", "bias": "f32", "out": "f32"}, {"kind": "layer", "eps": 1e-5}),
    Case({"T": 6, "H": 512}, {"x": "bf16", "residual": "bf16", "weight": "bf16", "out": "bf16"}, {"weight_plus_one": True}),
    Case({"T": 3, "H": 1032}, {"x": "f16", "residual": "f16", "weight": "f16", "out": "e4m3", "out_scale": "f32"}, positive=("out_scale",)),
    Case({"T": 9, "H": 128}, {"x": "bf16", "weight": "bf16", "out": "e4m3", "out_scale": "f32"}, positive=("out_scale",)),
    Case({"T": 9, "H": 130}, {"x": "f32", "residual": "f32", "weight": "f32", "out": "e4m3", "row_scale": "f32"}),
    Case({"T": 4, "H": 320}, {"x": "f16", "weight": "f16", "out": "e4m3", "row_scale": "f32"}),
    Case({"T": 3, "H": 1024}, {"x": "bf16", "residual": "bf16", "weight": "bf16", "out": "e4m3", "row_scale": "f32"}, {"weight_plus_one": True}),
    Case({"T": 5, "H": 256}, {"x": "bf16", "residual": "bf16", "weight": "bf16", "bias": "bf16", "out": "bf16"}, {"kind": "layer"}),
    Case({"T": 3, "H": 384}, {"x": "f16", "weight": "f16", "out": "e4m3", "out_scale": "f32"}, {"kind": "layer"}, positive=("out_scale",)),
    Case({"T": 2, "H": 640}, {"x": "f32", "residual": "f32", "weight": "f32", "bias": "f32", "out": "e4m3", "out_scale": "f32"}, {"kind": "layer"}, positive=("out_scale",)),
    Case({"T": 4, "H": 200, "R": 1}, {"x": "bf16", "weight": "bf16", "scale": "bf16", "shift": "bf16", "out": "e4m3", "row_scale": "f32"}),
    Case({"T": 3, "H": 160, "R": 3}, {"x": "f16", "residual": "f16", "gate": "f16", "weight": "f16", "out": "e4m3", "row_scale": "f32"}),
    Case({"T": 140, "H": 72}, {"x": "bf16", "weight": "bf16", "bias": "bf16", "out": "bf16"}, {"kind": "layer"}, distributions=("normal", "edges"), note="more rows than latency decides for"),
    Case({"T": 140, "H": 136}, {"x": "bf16", "weight": "bf16", "out": "e4m3", "row_scale": "f32"}, distributions=("normal", "edges"), note="the same"),
    *(Case({"T": 33, **dims}, {**dtypes, "out": "e4m3", "row_scale": "f32"}, {"eps": eps}, positive=("weight",), values={"x": small_rows}, distributions=("normal",), note="tiny rows")
      for eps, dims, dtypes in ((1e-6, {"H": 320}, {"x": "bf16", "weight": "bf16"}), (1e-12, {"H": 130}, {"x": "f32", "weight": "f32"}),
                                (1e-6, {"H": 72, "R": 2}, {"x": "bf16", "weight": "bf16", "residual": "bf16", "gate": "bf16"}))),
    Case({"T": 8, "H": 64}, {"x": "f32", "weight": "f32", "out": "f32", "rows": "i32"}, rows=5),
    Case({"T": 0, "H": 64}, {"x": "f32", "weight": "f32", "out": "f32"}),
    Case({"T": 2, "H": 1}, {"x": "f32", "out": "f32"}),
    Case({"T": 2, "H": 33}, {"x": "f16", "weight": "f16", "bias": "f16", "out": "f32"}, {"kind": "layer"}),
]


def fit_rows(d):
    d.needs("gate", "residual")
    d.needs("bias", "weight")
    if d.attr("weight_plus_one") and not d.has("weight"):
        d.attrs.pop("weight_plus_one")
    rows_of_table(d)


def fit(d):
    fit_rows(d)
    d.quantized_out(("out_scale", "row_scale"))


DOMAIN = Domain(fit=fit, contents=lambda d, rng: {"ada_row": entries(rng, d.dims["T"], 0, d.dims["R"])}, positive=("out_scale",), attrs={"eps": (1e-5, 1e-12, 1e-3)}, weight=3, tokens={"gate": nearest, "scale": nearest, "shift": nearest}, indices=("ada_row",))
