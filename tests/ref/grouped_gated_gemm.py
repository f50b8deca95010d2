"""Reference of `grouped_gated_gemm`: the references of grouped_gemm and act_mul, one after the other."""
import numpy as np

from tests.differential import products
from tests.differential.domain import Domain, offsets_of
from tests.ref import act_mul, gated_mlp, gemm, grouped_gemm
from tests.ref.common import Case, Inputs, rounding

SCRATCH = ("gate_up",)


def _products(x, w, offsets, w_row_scale, quant, dtypes, rows):
    call = {"x": x, "w": w, "offsets": offsets} | ({} if w_row_scale is None else {"w_row_scale": w_row_scale})
    return call, grouped_gemm.ref(**call, **gated_mlp._mode(quant, dtypes["w"]), dtypes={**dtypes, "out": dtypes["gate_up"]}, dims={"A": rows})["out"]


def ref(x, w, offsets, w_row_scale=None, *, gate_up=None, act="silu", quant="f32", dtypes, dims):
    _, both = _products(x, w, offsets, w_row_scale, quant, dtypes, dims["A"])
    return {"out": act_mul.ref(x=both, act=act, dtypes={"x": dtypes["gate_up"], "out": dtypes["out"]})["out"]}


def left_alone(port, case):
    """Rows of no group."""
    return grouped_gemm.left_alone(port, case)


def bound(port, value, dtype, inputs):
    """As gated_mlp's hidden rows."""
    d, quant, kind = inputs.case.dtypes, inputs.case.attrs.get("quant", "f32"), inputs.case.attrs.get("act", "silu")
    call, both = _products(inputs["x"], inputs["w"], inputs["offsets"], inputs.get("w_row_scale"), quant, d, len(value))
    part = Case(inputs.case.dims, {"x": d["x"], "w": d["w"], "out": d["gate_up"]}, gated_mlp._mode(quant, d["w"]))
    error = grouped_gemm.bound("out", both, d["gate_up"], Inputs(call, part))
    (gate, up), (e_gate, e_up) = (np.split(m, 2, axis=1) for m in (both, error))
    return 1.13 * (np.abs(up) + e_up) * e_gate + (np.abs(act_mul.activate(kind, gate)) + e_gate) * e_up + 1e-6 * np.abs(gate * up) + rounding(value, dtype)


def case(A, E, N, K, offsets, x, w, attrs=None, X=None, scratch=None, scaled=False, **options):
    scale = {"w_row_scale": "f32"} if scaled else {}
    dtypes = {"x": x, "w": w, **scale, "offsets": "i32", "gate_up": scratch or x, "out": scratch or x}
    return Case({"A": A, "X": X or A, "E": E, "N": N, "K": K}, dtypes, attrs or {}, values={"offsets": np.array(offsets), "w": lambda rng, shape: rng.uniform(-0.25, 0.25, shape)},
                distributions=("normal", "tiny", "zero"), positive=tuple(scale), **options)


CASES = [
    case(9, 4, 20, 48, [0, 3, 3, 8, 9], "f32", "f32"),
    *[case(9, 4, 40, 64, [0, 3, 3, 8, 9], t, t, {"act": act}) for t in ("bf16", "f16") for act in ("silu", "gelu_tanh", "gelu_erf")],
    *[case(8, 12, 96, 136, [0, 1, 1, 2, 2, 3, 4, 5, 6, 6, 7, 7, 8], t, t, X=1, note="one row for every expert") for t in ("bf16", "f16", "f32")],
    case(75, 2, 136, 200, [0, 70, 75], "bf16", "bf16", note="a group of several widths"),
    case(75, 2, 136, 200, [0, 70, 75], "bf16", "bf16", scratch="f32"),
    case(300, 2, 33, 72, [0, 290, 300], "f16", "f16", note="a group of several tiles, an odd number of columns"),
    case(700, 2, 72, 64, [0, 300, 700], "bf16", "bf16", note="groups of hundreds"),
    case(9, 40, 72, 136, [0] * 7 + [2] * 30 + [7] * 4, "bf16", "bf16", note="more groups than a warp has lanes; rows of none"),
    *[case(7, 3, 32, 64, [0, 1, 5, 7], "f32", q, {"quant": quant}) for q in gemm.BLOCKS32 for quant in ("f32", "q8")],
    *[case(7, 3, 32, 256, [0, 1, 5, 7], "bf16", q) for q in gemm.K_QUANTS],
    *[case(9, 4, 40, 144, [0, 3, 3, 8, 9], "bf16", "e4m3", {"act": act}, scaled=True) for act in ("silu", "gelu_tanh", "gelu_erf")],
    case(9, 70, 96, 256, [0] * 8 + [1] * 30 + [6] * 32 + [9], "bf16", "e4m3", X=1, scaled=True, note="one row for every expert"),
    case(9, 9, 512, 256, list(range(10)), "bf16", "e4m3", X=1, scaled=True, note="tiles of 48 rows of W"),
    case(75, 2, 136, 208, [0, 70, 75], "bf16", "e4m3", scaled=True, note="a group of several widths"),
    case(300, 2, 33, 80, [0, 290, 300], "bf16", "e4m3", note="a group of several tiles, an odd number of columns, no scales"),
    case(7, 3, 18, 40, [0, 1, 5, 7], "f16", "e4m3", scaled=True),
    *[case(9, 4, 40, 256, [0, 3, 3, 8, 9], "bf16", "q4_0", {"act": act}) for act in ("silu", "gelu_tanh", "gelu_erf")],
    case(9, 70, 96, 512, [0] * 8 + [1] * 30 + [6] * 32 + [9], "bf16", "q4_0", X=1, note="one row for every expert"),
    case(9, 9, 512, 2048, list(range(10)), "bf16", "q4_0", X=1, note="tiles of 48 rows of W"),
    case(75, 2, 136, 768, [0, 70, 75], "bf16", "q4_0", note="a group of several widths and tiles"),
    case(300, 2, 33, 256, [0, 290, 300], "bf16", "q4_0", scratch="f32", note="a group of several tiles, an odd number of columns"),
    case(7, 3, 18, 256, [0, 1, 5, 7], "bf16", "q4_0", {"quant": "q8"}),
]


def fit(d):
    grouped_gemm.rows_of_groups(d)
    products.weights(d, "w", act="quant")
    grouped_gemm.scales_of_codes(d)


def contents(d, rng):
    """Offsets begin at 0: which rows of none below the last offset hold what is left open."""
    held = d.dims["A"] if rng.random() < 0.6 else int(rng.integers(0, d.dims["A"] + 1))
    return {"offsets": offsets_of(rng, d.dims["E"], held), "w": rng.uniform(-0.25, 0.25, (d.dims["E"], 2 * d.dims["N"], d.dims["K"]))}


DOMAIN = Domain(fit=fit, contents=contents, positive=("w_row_scale",), work=lambda d: 16 * d.dims["A"] * d.dims["N"] * d.dims["K"], distributions=("normal", "tiny", "zero"))
