"""Reference of `norm_gemm`: the references of norm and gemm or gated_gemm, one after the other, as vivace/ops/norm_gemm.h says."""
import numpy as np

from tests.differential import products
from tests.differential.domain import Domain, entries, nearest, rows_of_table
from tests.ref import norm
from tests.ref.common import Case, Inputs

SCRATCH = ("normed",)
NORM_PORTS, NORM_ATTRS = ("x", "weight", "norm_bias", "scale", "shift", "ada_row"), ("kind", "eps", "weight_plus_one")


def _first(inputs, attrs, dtypes):
    """The norm's inputs, attributes and dtypes."""
    given = {k.removeprefix("norm_"): inputs[k] for k in NORM_PORTS if k in inputs} | ({"out_scale": inputs["normed_scale"]} if "normed_scale" in inputs else {})
    return given, {k: v for k, v in attrs.items() if k in NORM_ATTRS}, {**dtypes, "out": dtypes["normed"]}


def _second(normed, inputs, attrs, dtypes):
    """The product's reference, inputs, attributes and dtypes."""
    from tests.ref import gated_gemm, gemm

    given = {k: v for k, v in inputs.items() if k not in (*NORM_PORTS, "normed", "normed_scale")} | {"x": normed}
    if "normed_scale" in inputs:
        given["x_scale"] = inputs["normed_scale"]
    kind = attrs.get("epilogue", "none")
    if attrs.get("gated", False):
        return gated_gemm, given, {"act": kind, "quant": attrs.get("act", "f32")}, {**dtypes, "x": dtypes["normed"]}
    return gemm, given, {"epilogue": kind, "act": attrs.get("act", "f32")}, {**dtypes, "x": dtypes["normed"]}


def _normed(inputs, attrs, dtypes):
    given, kept, of = _first(inputs, attrs, dtypes)
    return norm.ref(**given, **kept, dtypes=of)["out"]


def ref(*, dtypes, kind="rms", eps=1e-6, weight_plus_one=False, epilogue="none", gated=False, act="f32", **inputs):
    attrs = {"kind": kind, "eps": eps, "weight_plus_one": weight_plus_one, "epilogue": epilogue, "gated": gated, "act": act}
    module, given, kept, of = _second(_normed(inputs, attrs, dtypes), inputs, attrs, dtypes)
    return {"out": module.ref(**given, **kept, dtypes=of)["out"]}


def bound(port, value, dtype, inputs):
    """The product's bound at the reference's normalised rows, and what a row that is off by the norm's bound changes:
    the product's slope times sum |w| e."""
    attrs, dtypes = inputs.attrs, inputs.case.dtypes
    given, kept, of = _first(inputs, attrs, dtypes)
    normed = _normed(inputs, attrs, dtypes)
    e = norm.bound("out", normed, dtypes["normed"], Inputs(given, Case(inputs.case.dims, of, kept)))
    module, given, kept, of = _second(normed, inputs, attrs, dtypes)
    product = Inputs(given, Case(inputs.case.dims, of, kept))
    if not normed.size:
        return module.bound("out", value, dtype, product)
    from tests.ref.act_mul import activate
    from tests.ref.gemm import operands, scales

    x, w = operands(normed, given["w"], product)
    if "q8" in kept.values():  # an int8 value may change sides of a tie
        amax = np.abs(normed).reshape(len(normed), -1, 32).max(-1)
        e = e + np.repeat(amax / 127, 32, 1)
    factor = np.abs(scales(given, 1.0))
    y, off = factor * (x @ w.T), factor * (e @ np.abs(w).T)
    if "bias" in given:
        y = y + given["bias"]
    kind = attrs.get("epilogue", "none")
    slope = 1.0 if kind == "none" else 2 * (np.abs(y) + off) if kind == "relu2" else 1.13
    error = slope * off
    if attrs.get("gated", False):
        gate, up = y[:, ::2], y[:, 1::2]
        error = error[:, ::2] * (np.abs(up) + off[:, 1::2]) + np.abs(activate(kind, gate)) * off[:, 1::2]
    if "out_scale" in inputs:
        error = error / np.abs(inputs["out_scale"][0])
    return error + module.bound("out", value, dtype, product)


def derived_dims(dims, case):
    """Dims whose M is what the case's N asks for."""
    return dims | {"M": dims["N"] * (2 if case.attrs.get("gated") else 1)}


def case(T, N, K, x, w, attrs=None, *, ports=(), normed=None, out=None, R=None, kinds=None, **options):
    """`ports`: further ones, with the dtypes that they have most often or that `kinds` says."""
    attrs = attrs or {}
    kinds = {"w_block_scale": "e4m3", "weight": x, "norm_bias": x, "scale": x, "shift": x, "ada_row": "i32", "bias": "bf16", "residual": out or x, "w_scale": "f32", "w_row_scale": "f32", "normed_scale": "f32", "out_scale": "f32", "rows": "i32"} | (kinds or {})
    dtypes = {"x": x, "w": w, "normed": normed or x, "out": out or x} | {p: kinds[p] for p in ports}
    dims = {"T": T, "N": N, "K": K} | ({"R": R} if R else {})
    positive = tuple(p for p in ("w_scale", "w_row_scale", "w_block_scale", "normed_scale", "out_scale") if p in ports)
    return Case(derived_dims(dims, Case(dims, dtypes, attrs)), dtypes, attrs, positive=positive, **{"distributions": ("normal", "tiny", "zero"), **options})


CASES = [
    case(1, 80, 1024, "bf16", "bf16", ports=("weight",)),
    case(7, 72, 320, "bf16", "bf16", {"weight_plus_one": True}, ports=("weight", "bias", "residual")),
    case(2, 64, 576, "bf16", "bf16", {"epilogue": "silu", "gated": True}, ports=("weight",)),
    *[case(t, 48, 264, "bf16", "bf16", {"epilogue": "gelu_tanh", "gated": True}, ports=("scale", "shift", "ada_row"), R=3, ranges={"ada_row": (-1, 4)}) for t in (2, 50)],
    case(40, 40, 2048, "f16", "f16", ports=("weight", "scale", "shift"), R=40),
    case(1, 96, 1040, "bf16", "e4m3", ports=("weight", "normed_scale", "w_scale"), normed="e4m3", distributions=("normal", "zero")),
    case(20, 32, 512, "bf16", "e4m3", {"epilogue": "silu", "gated": True}, ports=("weight", "normed_scale", "w_row_scale", "out_scale"), normed="e4m3", out="e4m3", distributions=("normal", "zero")),
    case(1, 24, 384, "bf16", "e4m3", {"epilogue": "silu", "gated": True}, ports=("weight", "normed_scale", "w_scale"), normed="e4m3", out="bf16", distributions=("normal",)),
    *[case(t, n, k, "bf16", "bf16", ports=("weight",), distributions=("normal",)) for t, n, k in ((1, 520, 1024), (2, 520, 1024), (3, 520, 1024), (1, 1040, 4096), (2, 520, 4096))],
    case(2, 40, 4104, "bf16", "bf16", ports=("weight", "rows"), rows=1, distributions=("normal",)),
    case(2, 33, 8192, "f32", "bf16", {"epilogue": "relu"}, ports=("weight",), normed="bf16", out="f32", distributions=("normal",)),
    *[case(t, 520, 1280, "bf16", "bf16", {"kind": "layer", "epilogue": "gelu_erf"}, ports=("weight", "norm_bias", "bias")) for t in (1, 2, 3)],
    case(2, 576, 288, "bf16", "bf16", ports=("weight", "norm_bias"), distributions=("normal",), note="an RMS norm's bias: no kernel has it, two ops do"),
    case(2, 40, 384, "f16", "f16", {"kind": "layer"}, ports=("weight", "norm_bias", "residual", "rows"), rows=1),
    case(2, 40, 264, "bf16", "bf16", {"kind": "layer", "epilogue": "silu", "gated": True}, ports=("scale", "shift"), R=2),
    case(1, 64, 1040, "bf16", "e4m3", {"kind": "layer"}, ports=("weight", "normed_scale", "w_scale"), normed="e4m3", distributions=("normal", "zero")),
    *[case(t, 96, 1280, "bf16", "e4m3", {"kind": "layer", "epilogue": "gelu_erf"}, ports=("weight", "norm_bias", "bias", "normed_scale", "w_row_scale", "out_scale"), normed="e4m3", out="e4m3", distributions=("normal", "zero")) for t in (1, 3)],
    case(70, 40, 136, "bf16", "bf16", ports=("weight",), note="more tokens than the one kernel takes"),
    case(4, 40, 100, "f32", "f32", {"eps": 1e-3, "epilogue": "relu2"}, ports=("weight", "bias"), kinds={"bias": "f32"}),
    case(3, 24, 72, "f16", "f16", {"epilogue": "gelu_erf"}, ports=("weight", "bias"), kinds={"bias": "f16"}),
    case(3, 40, 256, "f32", "q4_0", {"act": "q8"}, ports=("weight",), distributions=("normal", "zero")),
    case(3, 24, 256, "bf16", "q8_0", ports=("weight",)),
    *[case(2, 24, 256, "bf16", w, ports=("weight",), distributions=("normal",)) for w in ("q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k")],
    case(3, 33, 256, "f32", "e2m1", ports=("weight", "w_block_scale", "w_scale"), shapes={"w_block_scale": (33, 16)}, distributions=("normal",)),
    case(2, 520, 1024, "bf16", "bf16", ports=("scale",), R=1, distributions=("normal",)),
    case(2, 260, 4096, "bf16", "e4m3", {"epilogue": "silu", "gated": True}, ports=("weight", "normed_scale", "w_scale"), normed="e4m3", out="bf16", distributions=("normal",)),
    *[case(3, 24, 256, "bf16", "q4_0", {"act": a, "epilogue": "silu", "gated": True}, ports=("weight",), distributions=("normal",)) for a in ("f32", "q8")],
    case(2, 24, 256, "bf16", "e2m1", {"epilogue": "gelu_tanh", "gated": True}, ports=("weight", "w_block_scale", "w_scale"), shapes={"w_block_scale": (48, 16)}, distributions=("normal",)),
    *[case(2, 30, 200, "f16", "i8", ports=("weight", "w_block_scale"), kinds={"w_block_scale": s}, shapes={"w_block_scale": (30, 7)}, ranges={"w": (-128, 128)}, distributions=("normal",))
      for s in ("f32", "bf16", "f16")],
    case(0, 8, 64, "f32", "f32"),
]


def projection(d):
    """Rows of w, and what a gated product asks for."""
    gated = d.attr("gated")
    d.dims["M"] = d.dims["N"] * (2 if gated else 1)
    if gated:
        d.drop("residual")
        if d.attr("epilogue") == "none":
            d.attrs["epilogue"] = d.pick(("silu", "gelu_tanh", "gelu_erf", "relu", "relu2"))


def fit(d):
    projection(d)
    products.weights(d, "w", x="normed", rows=d.dims["M"])
    products.e4m3_out(d)
    if d.dtypes["out"] == "e4m3":
        d.drop("residual")
    d.quantized_out(("normed_scale",), "normed")
    if d.attr("weight_plus_one") and not d.has("weight"):
        d.attrs.pop("weight_plus_one")
    if not d.has("weight"):
        d.drop("norm_bias")
    rows_of_table(d)


DOMAIN = Domain(fit=fit, contents=lambda d, rng: products.contents(d, rng) | {"ada_row": entries(rng, d.dims["T"], 0, d.dims["R"])}, positive=(*products.POSITIVE, "normed_scale"), attrs={"eps": (1e-5, 1e-3)},
                work=lambda d: 2 * d.dims["T"] * d.dims["M"] * d.dims["K"], distributions=("normal", "tiny", "zero"), weight=2, never=("residual=e4m3",), tokens={"scale": nearest, "shift": nearest})
