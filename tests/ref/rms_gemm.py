"""Reference of `rms_gemm`: the references of rms_scale and gemm or gated_gemm, one after the other, as vivace/ops/rms_gemm.h says."""
import numpy as np

from tests.differential import products
from tests.differential.domain import Domain
from tests.ref import rms_scale
from tests.ref.common import Case, Inputs

SCRATCH = ("row_scale",)
OWN = ("squares", "row_scale", "rows")


def _product(inputs, attrs, dtypes):
    """The product's reference, inputs, attributes and dtypes."""
    from tests.ref import gated_gemm, gemm

    rows = rms_scale.ref(inputs["squares"], columns=inputs["x"].shape[1], eps=attrs.get("eps", 1e-6), dtypes=dtypes)["row_scale"]
    given = {k: v for k, v in inputs.items() if k not in OWN} | {"x_row_scale": rows}
    kind, gated = attrs.get("epilogue", "none"), attrs.get("gated", False)
    of = {k: v for k, v in dtypes.items() if k not in OWN} | {"x_row_scale": "f32"}
    return (gated_gemm, given, {"act": kind}, of) if gated else (gemm, given, {"epilogue": kind}, of)


def ref(*, dtypes, eps=1e-6, epilogue="none", gated=False, **inputs):
    module, given, kept, of = _product(inputs, {"eps": eps, "epilogue": epilogue, "gated": gated}, dtypes)
    return {"out": module.ref(**given, **kept, dtypes=of)["out"]}


def bound(port, value, dtype, inputs):
    """The product's bound, and what rows' factors that are off by rms_scale's bound change: its share of sum |x w|, for each of two factors."""
    from tests.ref.act_mul import activate
    from tests.ref.gemm import scales

    attrs = inputs.attrs
    module, given, kept, of = _product(inputs, attrs, inputs.case.dtypes)
    own = module.bound("out", value, dtype, Inputs(given, Case(inputs.case.dims, of, kept)))
    if not value.size:
        return own
    share = (inputs["squares"].shape[-1] / 2 + 6) * 2.0**-24
    y = scales(given, 1.0) * (given["x"] @ given["w"].T)
    off = share * np.abs(y)
    y = y + given.get("bias", 0.0)
    kind = attrs.get("epilogue", "none")
    error = off * (2 * (np.abs(y) + off) if kind == "relu2" else 1.13 if kind != "none" else 1.0)
    if attrs.get("gated", False):
        error = error[:, ::2] * (np.abs(y[:, 1::2]) + off[:, 1::2]) + np.abs(activate(kind, y[:, ::2])) * off[:, 1::2]
    if "out_scale" in inputs:
        error = error / np.abs(inputs["out_scale"][0])
    return own + error


def derived_dims(dims, case):
    """Dims whose M and S are what N, K and the case ask for."""
    return dims | {"M": dims["N"] * (2 if case.attrs.get("gated") else 1), "S": -(-dims["K"] // 8)}


def case(T, N, K, x, attrs=None, ports=(), *, w=None, out=None, **options):
    kinds = {"bias": "f32", "x_scale": "f32", "w_scale": "f32", "w_row_scale": "f32", "out_scale": "f32", "rows": "i32"} | options.pop("kinds", {})
    dtypes = {"x": x, "squares": "f32", "w": w or x, "row_scale": "f32", "out": out or x} | {p: kinds[p] for p in ports}
    dims = derived_dims({"T": T, "N": N, "K": K}, Case({}, {}, attrs or {}))
    positive = tuple(p for p in ports if p.endswith("scale"))
    return Case(dims, dtypes, attrs or {}, positive=positive, ranges={"squares": (0.5, 40.0)}, **{"distributions": ("normal", "tiny"), **options})


GATED = {"gated": True, "epilogue": "gelu_tanh"}
CASES = [
    case(50, 4096, 1024, "bf16", GATED, ("bias",), distributions=("normal",), note="the action expert"),
    case(50, 2560, 1024, "bf16", {"eps": 1e-5}, ("bias",), distributions=("normal",)),
    case(50, 2048, 1024, "bf16", GATED, (), distributions=("normal",), note="as the policies' expert has it: no bias"),
    case(50, 2560, 1024, "bf16", None, (), distributions=("normal",)),
    case(9, 1024, 2048, "bf16", None, (), distributions=("normal",)),
    case(1, 520, 4096, "bf16", None, ("bias",), kinds={"bias": "bf16"}, distributions=("normal",), note="as many sums as the 8B's rows have"),
    case(3, 1536, 576, "bf16", {"gated": True, "epilogue": "silu"}, distributions=("normal",), note="gates and ups whose K two blocks share"),
    case(32, 768, 576, "bf16", {"gated": True, "epilogue": "silu"}, ("rows",), rows=20, distributions=("normal",)),
    case(16, 104, 544, "f16", distributions=("normal",), note="sums in fours, not in eights"),
    case(40, 512, 1024, "e4m3", GATED, ("x_scale", "w_scale"), w="e4m3", out="bf16", distributions=("normal",)),
    case(1, 96, 1040, "bf16", {"epilogue": "silu"}, ("bias",), kinds={"bias": "bf16"}),
    case(17, 48, 264, "f16", {"gated": True, "epilogue": "silu"}, ("rows",), rows=9),
    case(33, 64, 512, "e4m3", GATED, ("x_scale", "w_row_scale", "out_scale"), w="e4m3", out="e4m3", distributions=("normal",)),
    case(9, 40, 320, "e4m3", {"epilogue": "gelu_erf"}, ("x_scale", "w_scale"), w="e4m3", out="bf16", distributions=("normal",)),
    case(50, 4096, 1024, "e4m3", GATED, ("bias", "x_scale", "w_row_scale", "out_scale"), w="e4m3", out="e4m3", distributions=("normal",), note="the action expert in e4m3"),
    case(50, 2560, 1024, "e4m3", None, ("bias", "x_scale", "w_row_scale"), w="e4m3", out="bf16", distributions=("normal",)),
    case(5, 24, 100, "f32", {"epilogue": "relu2"}, ("bias",)),
    case(4, 24, 72, "f16", {"epilogue": "relu"}, ("bias",), kinds={"bias": "f16"}),
    case(70, 40, 136, "bf16", None, (), distributions=("normal",), note="more tokens than the one kernel takes"),
    case(0, 8, 64, "bf16"),
]


def shape_of_rows(d):
    d.dims |= derived_dims(d.dims, Case({}, {}, d.attrs))


def fit_draft(d):
    shape_of_rows(d)
    if d.attr("gated") and d.attr("epilogue") == "none":
        d.attrs["epilogue"] = d.pick(("silu", "gelu_tanh", "gelu_erf", "relu", "relu2"))
    products.e4m3_out(d)


DOMAIN = Domain(fit=fit_draft, positive=products.POSITIVE, ranges={"squares": (0.5, 40.0)}, attrs={"eps": (1e-5, 1e-3)}, work=lambda d: 2 * d.dims["T"] * d.dims["M"] * d.dims["K"], distributions=("normal", "tiny"), weight=2, tokens={})
