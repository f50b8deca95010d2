"""Reference of `gemm_rms_rows`: the references of gemm and rms_rows, one after the other, as vivace/ops/gemm_rms_rows.h says."""
import numpy as np

from tests.differential import products
from tests.differential.domain import Domain, nearest, rows_of_table
from tests.ref import rms_rows
from tests.ref.common import Case, Inputs

NEXT = ("weight", "scale", "scaled_scale", "rows")


def _product(inputs, dtypes):
    from tests.ref import gemm

    given = {k: v for k, v in inputs.items() if k not in NEXT}
    of = {k: v for k, v in dtypes.items() if k not in (*NEXT, "scaled", "squares")}
    return gemm.ref(**given, dtypes=of)["out"], given, of


def ref(*, dtypes, **inputs):
    out, _, _ = _product(inputs, dtypes)
    return {"out": out} | rms_rows.ref(out, inputs.get("weight"), inputs.get("scale"), inputs.get("scaled_scale"), dtypes=dtypes)


def bound(port, value, dtype, inputs):
    """gemm's bound of out; what an out that is off by it changes of the others, and their own roundings."""
    from tests.ref import gemm

    out, given, of = _product(inputs, inputs.case.dtypes)
    e = gemm.bound("out", out, of["out"], Inputs(given, Case(inputs.case.dims, of)))
    if port == "out":
        return e
    own = rms_rows.bound(port, value, dtype, Inputs({"x": out}, inputs.case))
    if port == "scaled":
        off = np.abs(e * rms_rows.factors(len(out), inputs.get("weight"), inputs.get("scale"))) * 1.01
        return own + (off / inputs["scaled_scale"][0] if "scaled_scale" in inputs else off)
    return own + rms_rows.sums(np.sqrt(2 * np.abs(out) * e + e**2))


def case(T, N, K, x, ports=(), *, w=None, out=None, R=None, Q=None, **options):
    out = out or x
    kinds = {"bias": out, "gate": out, "residual": out, "scale": out, "weight": options.pop("weight", out), "x_scale": "f32", "w_scale": "f32", "x_row_scale": "f32", "w_row_scale": "f32", "scaled_scale": "f32", "rows": "i32"}
    dims = {"T": T, "N": N, "K": K} | ({"R": R} if R else {}) | ({"Q": Q} if Q else {})
    positive = tuple(p for p in ports if p.startswith(("x_", "w_", "scaled_")))
    return Case(dims, {"x": x, "w": w or x, "out": out, "scaled": "e4m3" if "scaled_scale" in ports else out, "squares": "f32"} | {p: kinds[p] for p in ports}, positive=positive, **{"distributions": ("normal", "tiny"), **options})


CASES = [
    case(50, 1024, 2048, "bf16", ("gate", "residual", "scale"), R=1, Q=1, distributions=("normal",), note="the action expert, behind attention"),
    case(40, 1040, 4096, "bf16", ("residual", "scale"), Q=1, distributions=("normal",)),
    case(64, 1024, 4096, "e4m3", ("gate", "residual", "scale", "x_scale", "w_row_scale"), w="e4m3", out="bf16", R=1, Q=1, distributions=("normal",)),
    case(64, 512, 4096, "e4m3", ("gate", "residual", "scale", "x_scale", "w_scale"), w="e4m3", out="bf16", R=1, Q=1, distributions=("normal",)),
    case(33, 528, 2048, "f16", ("bias", "residual"), distributions=("normal",)),
    # The expert in e4m3, behind attention and behind the gated product; rows of 16 bits whose next ones are e4m3.
    case(50, 1024, 2048, "e4m3", ("gate", "residual", "scale", "x_scale", "w_row_scale", "scaled_scale"), w="e4m3", out="bf16", R=1, Q=1, distributions=("normal",)),
    case(50, 1024, 4096, "e4m3", ("gate", "residual", "scale", "x_scale", "w_row_scale", "scaled_scale"), w="e4m3", out="bf16", R=1, Q=1, distributions=("normal",)),
    case(40, 6280, 256, "bf16", ("residual", "weight", "scaled_scale"), distributions=("normal",), note="K whole"),
    case(7, 72, 320, "f16", ("residual", "scale", "scaled_scale", "rows"), Q=7, rows=5),
    # A decoder's o and down: K whole, in two, four and eight; tiles of 8, 16, 32 and 64 tokens.
    case(1, 4096, 512, "bf16", ("residual", "weight"), distributions=("normal",)),
    case(8, 1024, 2048, "bf16", ("residual", "weight", "rows"), rows=5, distributions=("normal", "tiny")),
    case(12, 2048, 1024, "bf16", ("residual", "weight"), weight="f32", distributions=("normal",)),
    case(32, 1024, 2048, "bf16", ("residual", "weight"), distributions=("normal",)),
    case(64, 2048, 1024, "bf16", ("residual", "weight"), distributions=("normal",)),
    case(2, 6280, 512, "bf16", ("residual", "weight", "bias"), distributions=("normal",), note="K whole; eights that are no sixteens"),
    case(40, 6280, 256, "f16", ("residual", "weight"), distributions=("normal",)),
    case(5, 576, 1536, "f16", ("residual", "weight"), weight="bf16", distributions=("normal",), note="a weight that the one kernel does not take"),
    case(9, 72, 320, "bf16", ("bias", "gate", "residual", "scale", "rows"), R=9, Q=4, rows=7),
    case(5, 40, 100, "f32", ("bias", "residual", "scale"), Q=5),
    case(6, 48, 256, "e4m3", ("x_row_scale", "w_scale"), w="e4m3", out="f16", distributions=("normal",)),
    case(70, 96, 264, "bf16", ("residual", "scale"), Q=1, distributions=("normal",), note="more tokens than the one kernel takes"),
    case(0, 32, 64, "bf16"),
]


def fit(d):
    products.weights(d, "w")
    d.at_most_one("weight", "scale")
    rows_of_table(d)
    rows_of_table(d, "Q")
    rms_rows.e4m3_rows(d, "out")


DOMAIN = Domain(fit=fit, work=products.work, positive=(*products.POSITIVE, "scaled_scale"), distributions=("normal", "tiny"), weight=2, tokens={"gate": nearest, "scale": nearest})
