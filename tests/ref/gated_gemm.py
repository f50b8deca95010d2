"""Reference of `gated_gemm`: float64, the formula of vivace/ops/gated_gemm.h."""
import numpy as np

from tests.differential import products
from tests.differential.domain import Domain
from tests.ref.act_mul import activate
from tests.ref.common import Case, rounding, round_to
from tests.ref.gemm import operands, scales, sum_error
from tests.ref.gemm import product as sums


def product(x, w, bias, factors, alpha, quant):
    y = scales(factors, alpha) * sums(*operands(x, w, factors), quant)
    return y if bias is None else y + bias


def ref(x, w, bias=None, out_scale=None, *, act="silu", quant="f32", alpha=1.0, fast_accum=False, dtypes, **factors):
    g = product(x, w, bias, factors, alpha, quant)
    y = activate(act, g[:, ::2]) * g[:, 1::2]
    if out_scale is not None:
        y = y / out_scale[0]
    return {"out": round_to(y, dtypes["out"])}


def bound(port, value, dtype, inputs):
    """The error of a product of two: each one's times the other, with the activation's as in gemm."""
    if not inputs["x"].size:
        return rounding(value, dtype)
    g = product(inputs["x"], inputs["w"], inputs.get("bias"), inputs, inputs.attrs.get("alpha", 1.0), inputs.attrs.get("quant", "f32"))
    error = sum_error(inputs)
    gate, up, gate_error, up_error = g[:, ::2], g[:, 1::2], error[:, ::2], error[:, 1::2]
    act = inputs.attrs.get("act", "silu")
    y = np.abs(activate(act, gate))
    if act == "relu2":
        gate_error = 2 * (np.abs(gate) + gate_error) * gate_error + 2.0**-22 * gate**2
    else:
        gate_error = 1.13 * gate_error + 1e-6 * np.abs(gate)
    total = gate_error * (np.abs(up) + up_error) + y * up_error + 2.0**-22 * y * np.abs(up)
    if "out_scale" in inputs:
        total = (total + 2.0**-22 * y * np.abs(up)) / np.abs(inputs["out_scale"][0])
    return total + rounding(value, dtype) + inputs["x"].shape[1] * 2.0**-149


CASES = [
    Case({"T": 7, "N": 25, "K": 100}, {"x": "bf16", "w": "bf16", "bias": "bf16", "out": "bf16"}, {"act": "gelu_tanh"}),
    Case({"T": 1, "N": 1, "K": 1}, {"x": "f32", "w": "f32", "out": "f32"}),
    Case({"T": 5, "N": 33, "K": 160}, {"x": "e4m3", "w": "e4m3", "x_scale": "f32", "w_scale": "f32", "out": "e4m3", "out_scale": "f32"}, {"alpha": 0.25},
         positive=("x_scale", "w_scale", "out_scale")),
    Case({"T": 70, "N": 66, "K": 136}, {"x": "f16", "w": "f16", "bias": "f32", "out": "f16"}, {"act": "gelu_erf"}, distributions=("normal", "tiny"), note="more tokens than a streaming tactic takes"),
    Case({"T": 9, "N": 20, "K": 96}, {"x": "e4m3", "w": "e4m3", "x_row_scale": "f32", "w_row_scale": "f32", "bias": "f16", "out": "f32", "rows": "i32"}, {"act": "relu"},
         positive=("x_row_scale", "w_row_scale"), rows=6),
    Case({"T": 4, "N": 24, "K": 256}, {"x": "e4m3", "w": "e4m3", "out": "bf16"}, {"act": "relu2", "fast_accum": True}),
    Case({"T": 6, "N": 16, "K": 64}, {"x": "bf16", "w": "bf16", "out": "e4m3", "out_scale": "f32"}, positive=("out_scale",)),
    Case({"T": 50, "N": 72, "K": 320}, {"x": "bf16", "w": "bf16", "bias": "f32", "x_row_scale": "f32", "w_row_scale": "f32", "out": "bf16", "rows": "i32"}, {"act": "gelu_tanh"},
         positive=("x_row_scale", "w_row_scale"), rows=43, distributions=("normal", "tiny"), note="few tokens, pairs of columns from registers"),
    Case({"T": 61, "N": 40, "K": 256}, {"x": "e4m3", "w": "e4m3", "x_row_scale": "f32", "w_row_scale": "f32", "out": "e4m3", "out_scale": "f32", "rows": "i32"}, {"act": "silu"},
         positive=("x_row_scale", "w_row_scale", "out_scale"), rows=33),
    Case({"T": 200, "N": 80, "K": 320}, {"x": "bf16", "w": "bf16", "bias": "bf16", "out": "bf16"}, {"act": "silu"}, distributions=("normal", "tiny")),
    Case({"T": 200, "N": 80, "K": 320}, {"x": "e4m3", "w": "e4m3", "x_row_scale": "f32", "w_row_scale": "f32", "out": "e4m3", "out_scale": "f32", "rows": "i32"}, {"act": "gelu_tanh"},
         positive=("x_row_scale", "w_row_scale", "out_scale"), rows=190),
    *[Case({"T": t, "N": 80, "K": 320}, {"x": "e4m3", "w": "e4m3", "w_row_scale": "f32", "out": "e4m3", "out_scale": "f32"}, {"act": "gelu_tanh"},
           values={"w_row_scale": lambda rng, shape: np.where(np.arange(shape[0]) % 2, 2.0**-118, 2.0**-4), "out_scale": 1.5 * 2.0**-128}, distributions=("normal", "tiny"),
           note="a scale whose reciprocal is no normal number") for t in (61, 150)],
    Case({"T": 2100, "N": 272, "K": 64}, {"x": "bf16", "w": "bf16", "bias": "bf16", "out": "bf16"}, {"act": "silu"}, distributions=("normal",)),
    Case({"T": 1000, "N": 1025, "K": 48}, {"x": "bf16", "w": "bf16", "bias": "bf16", "out": "bf16"}, {"act": "silu"}, distributions=("normal",), note="tiles of 144 tokens and an odd number of columns"),
    Case({"T": 2100, "N": 272, "K": 64}, {"x": "e4m3", "w": "e4m3", "w_scale": "f32", "out": "e4m3", "out_scale": "f32", "rows": "i32"}, {"act": "gelu_tanh"},
         positive=("w_scale", "out_scale"), rows=2050, distributions=("normal",)),
    Case({"T": 200, "N": 80, "K": 320}, {"x": "bf16", "w": "e4m3", "w_row_scale": "f32", "bias": "bf16", "out": "bf16"}, {"act": "silu"}, positive=("w_row_scale",), distributions=("normal",), note="weights widened in prefill"),
    Case({"T": 70, "N": 48, "K": 64}, {"x": "bf16", "w": "e4m3", "w_row_scale": "f32", "out": "bf16", "rows": "i32"}, {"act": "gelu_tanh"}, positive=("w_row_scale",), rows=61, distributions=("normal", "tiny")),
    # Quantized weights, few tokens: widened in registers. Then many.
    *[Case({"T": t, "N": 50, "K": 576}, {"x": "bf16", "w": q, "out": "bf16"}, {"quant": quant}, distributions=("normal",)) for q, quant, t in
      (("q4_0", "f32", 1), ("q4_1", "q8", 3), ("q5_0", "f32", 2), ("q5_1", "f32", 9), ("q8_0", "q8", 12))],
    *[Case({"T": t, "N": 18, "K": 2304}, {"x": "bf16", "w": q, "out": "bf16"}, {"act": "gelu_tanh", "quant": quant}, distributions=("normal",)) for q, quant, t in (("q5_k", "f32", 5), ("q6_k", "q8", 2))],
    # q6_k in rows of whole 16 bytes, which TMA brings: few tokens, and dequantized in registers, even rows first.
    *[Case({"T": t, "N": n, "K": k}, {"x": "bf16", "w": "q6_k", "out": "bf16"}, {"act": "silu", "quant": quant}, distributions=("normal",)) for t, n, k, quant in
      ((1, 35, 2048, "f32"), (20, 35, 6144, "f32"), (3, 18, 4096, "q8"), (90, 136, 4096, "f32"), (300, 4200, 2048, "f32"))],
    Case({"T": 4, "N": 33, "K": 64}, {"x": "f32", "w": "q4_0", "bias": "f32", "out": "f32", "rows": "i32"}, {"act": "gelu_erf", "alpha": 2.0}, distributions=("normal", "zero"), rows=3),
    *[Case({"T": t, "N": 70, "K": k}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "bias": "bf16", "out": "bf16", "rows": "i32"}, {"act": "silu"}, distributions=("normal", "edges"),
           positive=("w_block_scale", "w_scale"), shapes={"w_block_scale": (140, k // 16)}, rows=t) for t, k in ((8, 4096), (40, 544))],
    Case({"T": 6, "N": 37, "K": 288}, {"x": "bf16", "w": "i4", "w_block_scale": "f16", "w_block_zero": "i8", "out": "e4m3", "out_scale": "f32"}, distributions=("normal",), positive=("w_block_scale", "out_scale"),
         ranges={"w_block_zero": (-8, 8)}, shapes={"w_block_scale": (74, 3), "w_block_zero": (74, 3)}),
    Case({"T": 5, "N": 20, "K": 160}, {"x": "e4m3", "w": "i4", "x_block_scale": "f32", "w_block_scale": "bf16", "w_block_zero": "i8", "out": "bf16"}, distributions=("normal",), positive=("x_block_scale", "w_block_scale"),
         ranges={"w_block_zero": (-8, 8)}, shapes={"w_block_scale": (40, 3), "w_block_zero": (40, 3)}, note="x's scales hold for what zero points take off too"),
    Case({"T": 9, "N": 50, "K": 260}, {"x": "e4m3", "w": "e4m3", "x_block_scale": "f32", "w_block_scale": "f32", "out": "bf16"}, distributions=("normal",), positive=("x_block_scale", "w_block_scale"),
         shapes={"w_block_scale": (100, 3)}),
    Case({"T": 5, "N": 20, "K": 130}, {"x": "f16", "w": "i8", "w_row_scale": "f32", "out": "f16"}, distributions=("normal",), positive=("w_row_scale",), ranges={"w": (-128, 128)}),
    Case({"T": 100, "N": 104, "K": 768}, {"x": "bf16", "w": "q4_0", "out": "bf16"}, {"act": "silu"}, distributions=("normal",)),
    Case({"T": 300, "N": 136, "K": 768}, {"x": "bf16", "w": "q4_k", "bias": "bf16", "out": "bf16", "rows": "i32"}, {"act": "silu"}, distributions=("normal",), rows=291),
    *[Case({"T": t, "N": n, "K": 1056}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "out": "bf16"}, {"act": act}, distributions=("normal",),
           positive=("w_block_scale", "w_scale"), shapes={"w_block_scale": (2 * n, 66)}) for t, n, act in ((100, 80, "silu"), (90, 51, "gelu_tanh"))],
    Case({"T": 100, "N": 72, "K": 288}, {"x": "bf16", "w": "i4", "w_block_scale": "bf16", "w_block_zero": "i8", "out": "e4m3", "out_scale": "f32", "rows": "i32"}, distributions=("normal",),
         positive=("w_block_scale", "out_scale"), ranges={"w_block_zero": (-8, 8)}, shapes={"w_block_scale": (144, 9), "w_block_zero": (144, 9)}, rows=60),
    # Tiles of 128 rows, and of 64 beside 256 tokens; weights in registers, whose scales are of pairs of rows.
    *[Case({"T": t, "N": n, "K": k}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "out": "bf16"}, {"act": "silu"}, distributions=("normal",),
           positive=("w_block_scale", "w_scale"), shapes={"w_block_scale": (2 * n, k // 16)}) for t, n, k in ((90, 4256, 288), (500, 4160, 288), (500, 2000, 288), (140, 1000, 768))],
    Case({"T": 500, "N": 4160, "K": 256}, {"x": "bf16", "w": "q4_0", "out": "e4m3", "out_scale": "f32"}, {"act": "gelu_tanh"}, distributions=("normal",), positive=("out_scale",)),
    Case({"T": 0, "N": 8, "K": 32}, {"x": "f32", "w": "f32", "out": "f32"}),
]


def fit(d):
    products.weights(d, "w", act="quant", rows=2 * d.dims["N"])
    products.e4m3_out(d)
    if d.dtypes["x"] == d.dtypes["w"] == "e4m3" and d.chance(0.4):
        d.attrs["fast_accum"] = True
    else:
        d.attrs.pop("fast_accum", None)


DOMAIN = Domain(fit=fit, contents=products.contents, work=lambda d: 2 * products.work(d), positive=products.POSITIVE, attrs={"alpha": (0.25, 2.0, -1.0)}, distributions=("normal", "normal", "tiny", "edges", "zero"), weight=3, tokens={})
