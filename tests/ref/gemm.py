"""Reference of `gemm`: float64, the formula of vivace/ops/gemm.h; act=q8 quantizes exactly as stated."""
import os

import numpy as np

from tests.differential import products
from tests.differential.domain import Domain, nearest, rows_of_table
from tests.ref.act_mul import activate
from tests.ref.common import Case, rounding, round_to

BLOCKS32 = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
K_QUANTS = ("q4_k", "q5_k", "q6_k")


def by_column(port, case):
    """w of plain floats of x's type; tf32 reads K side by side."""
    return case.dtypes["w"] in ("f32", "bf16", "f16") and case.dtypes["w"] == case.dtypes["x"] and "w_block_scale" not in case.dtypes and not case.attrs.get("tf32")


def quantized(x):
    """The values that int8 activations stand for. d and q come from f32 arithmetic, so it is f32 here too."""
    T, K = x.shape
    blocks = x.astype(np.float32).reshape(T, K // 32, 32)
    amax = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        inv = np.float32(127) / amax
    inv = np.where(np.isfinite(inv), inv, np.float32(0))
    q = np.rint(blocks * inv)
    return (q.astype(np.float64) * (amax / np.float32(127)).astype(np.float64)).reshape(T, K)


def product(x, w, act):
    return (quantized(x) if act == "q8" else x) @ w.T


def pieces(scale, shape):
    """Entries of a w_block_scale or w_block_zero, one an element of w."""
    N, K = shape
    rows = 1 if len(scale) == N else 128
    width = next(g for g in (16, 32, 64, 128) if -(-K // g) == scale.shape[1])
    return np.repeat(np.repeat(scale, rows, 0)[:N], width, 1)[:, :K]


def operands(x, w, factors, size=False):
    """x and w with the scales of their pieces. `size`: magnitudes, w's zero points counted apart."""
    if size:
        x, w = np.abs(x), np.abs(w)
    if "w_block_zero" in factors:
        zero = pieces(factors["w_block_zero"], w.shape)
        w = w + np.abs(zero) if size else w - zero
    if "w_block_scale" in factors:
        w = w * pieces(factors["w_block_scale"], w.shape)
    if "x_block_scale" in factors:
        x = x * np.repeat(factors["x_block_scale"], 128, 1)[:, :x.shape[1]]
    return (np.abs(x), np.abs(w)) if size else (x, w)


def scales(inputs, alpha):
    """The factor of each sum: a number or [T, N]."""
    s = float(np.float32(alpha)) * inputs.get("x_scale", np.ones(1))[0] * inputs.get("w_scale", np.ones(1))[0]
    if "x_row_scale" in inputs:
        s = s * inputs["x_row_scale"][:, None]
    return s * inputs["w_row_scale"] if "w_row_scale" in inputs else s


def ref(x, w, bias=None, gate=None, residual=None, out_scale=None, *, act="f32", alpha=1.0, epilogue="none", fast_accum=False, tf32=False, dtypes, **factors):
    y = scales(factors, alpha) * product(*operands(x, w, factors), act)
    if bias is not None:
        y = y + bias
    if epilogue != "none":
        y = activate(epilogue, y)
    if gate is not None:
        y = gate_rows(gate, len(x)) * y
    if residual is not None:
        y = residual + y
    if out_scale is not None:
        y = y / out_scale[0]
    return {"out": round_to(y, dtypes["out"])}


def block_size(w, x):
    """sum over k of |x_k| times the largest |w| of k's block: the terms' sizes, minima counted apart.

    A block with a minimum adds code * scale and the minimum, each up to twice its largest value.
    """
    N, K = w.shape
    if K % 32 == 0:
        top = np.abs(w.reshape(N, K // 32, 32)).max(-1, keepdims=True)
        w = np.broadcast_to(2 * top, (N, K // 32, 32)).reshape(N, K)
    return np.abs(x) @ np.abs(w).T


def gate_rows(gate, T):
    return gate[np.minimum(np.arange(T), len(gate) - 1)]


def tensor_unit_error(x, w, fast):
    """What Hopper's tensor core may lose of e4m3 products. It adds 32 products (or 16 and 16) to a sum in one step: all are
    aligned to the largest of them and of the sum, kept to 13 bits below its leading one, and added exactly
    (arXiv:2412.19437, 3.3.2, measures the 14 bits). So a step has a unit u = 2^(e - 13), e the exponent of the largest
    magnitude. A product of two e4m3 has at most 8 significant bits: it loses nothing where it is a multiple of u, which all
    within 2^6 of the largest are, and less than u elsewhere; the sum itself loses less than u each time it is aligned,
    twice a step. No two losses are assumed to cancel. The sum leaves the unit every 128 values, or with fast_accum never."""
    K = x.shape[1]
    error, total = np.zeros((len(x), len(w))), np.zeros((len(x), len(w)))
    for k in range(0, K, 32):
        if not fast and k % 128 == 0:
            total = np.zeros_like(total)
        before, largest = np.abs(total), np.zeros_like(total)
        columns = range(k, min(k + 32, K))
        for i in columns:
            p = x[:, i, None] * w[None, :, i]
            total = total + p
            largest = np.maximum(largest, np.abs(p))
        largest = np.maximum(largest, np.maximum(before, np.abs(total)) + error)  # the unit's sum, as far off as it may be
        with np.errstate(divide="ignore", invalid="ignore"):
            unit = np.where(largest > 0, 2.0 ** (np.floor(np.log2(largest)) - 13), 1.0)
        lost = 2.0 * (before + error > 0)
        for i in columns:
            p = x[:, i, None] * w[None, :, i] / unit
            lost = lost + (p != np.rint(p))
        error = error + lost * np.where(largest > 0, unit, 0.0)
    return error


def integers(attrs):
    """Whether activations become int8, by gemm's attribute or by gated_gemm's."""
    return "q8" in (attrs.get("act"), attrs.get("quant"))


def widened(case, K):
    """Whether a GPU may round what w stands for to bf16: prefill in bf16 with a quantized w, and bf16 rows of experts in q4_0, however
    few. Only Hopper does, and only where rows of w are whole 16 bytes; the case does not say. whole_T: of how many tokens the case's
    are a part (differential/judge.py)."""
    d, experts = case.dtypes, "E" in case.dims and case.dtypes["w"] == "q4_0" and K % 256 == 0
    return (os.environ.get("VIVACE_TEST_DEVICE", "").startswith("cuda") and (experts or case.dims.get("whole_T", case.dims.get("T", 0)) > 64) and d["x"] == "bf16" and d["w"] not in ("f32", "bf16", "f16")
            and not integers(case.attrs))


def sum_error(inputs):
    """K terms summed in f32: a chain adds at most K/16 + 8 times (lanes or blocks, then their tree), each
    with half a unit of at most the sum of the terms' sizes; dequantization and scales add eight more."""
    x, w, attrs = inputs["x"], inputs["w"], inputs.attrs
    quant = integers(attrs)
    alpha = np.abs(scales(inputs, attrs.get("alpha", 1.0)))
    size = alpha * (block_size(w, quantized(x) if quant else x) if inputs.case.dtypes["w"][0] == "q" else product(*operands(x, w, inputs, size=True), "f32"))
    if "bias" in inputs:
        size = size + np.abs(inputs["bias"])
    error = (x.shape[1] / 16 + 16) * 2.0**-24 * size
    if widened(inputs.case, x.shape[1]):
        exact = operands(x, w, inputs)
        error = error + 2.0**-8 * alpha * (np.abs(exact[0]) @ np.abs(exact[1]).T)
    if attrs.get("tf32", False):  # both factors lose less than 2^-10 of themselves
        error = error + 2.0**-9 * (1 + 2.0**-10) * size
    if inputs.case.dtypes["x"] == "e4m3" == inputs.case.dtypes["w"] and "w_block_scale" not in inputs:
        error = error + alpha * tensor_unit_error(x, w, attrs.get("fast_accum", False))
    return error


def bound(port, value, dtype, inputs):
    """An activation raises the sum's error by at most 1.13 (relu2: 2 |y|) and adds its own, as in act_mul."""
    x, w, attrs = inputs["x"], inputs["w"], inputs.attrs
    if not x.size:
        return rounding(value, dtype)
    y = np.abs(scales(inputs, attrs.get("alpha", 1.0))) * product(*operands(x, w, inputs), attrs.get("act", "f32"))
    if "bias" in inputs:
        y = np.abs(y) + np.abs(inputs["bias"])
    error = sum_error(inputs)
    epilogue = attrs.get("epilogue", "none")
    if epilogue == "relu2":
        error = 2 * (np.abs(y) + error) * error + 2.0**-22 * y**2
    elif epilogue != "none":
        error = 1.13 * error + 1e-6 * np.abs(y)
    if "gate" in inputs:
        gate = np.abs(gate_rows(inputs["gate"], len(x)))
        error, y = gate * error + 2.0**-23 * gate * np.abs(y), gate * np.abs(y)
    if "residual" in inputs:
        error = error + 2.0**-23 * (np.abs(inputs["residual"]) + np.abs(value))
    if "out_scale" in inputs:
        error = (error + 2.0**-23 * y) / np.abs(inputs["out_scale"][0])
    # Products below f32's range vanish one by one.
    return error + rounding(value, dtype) + x.shape[1] * 2.0**-149


CASES = [
    Case({"T": 1, "N": 1, "K": 1}, {"x": "f32", "w": "f32", "out": "f32"}),
    Case({"T": 7, "N": 50, "K": 100}, {"x": "bf16", "w": "bf16", "bias": "bf16", "residual": "bf16", "out": "bf16"}, {"alpha": 0.5}),
    Case({"T": 3, "N": 33, "K": 2500}, {"x": "f16", "w": "f16", "bias": "f16", "out": "f16"}, {"epilogue": "gelu_tanh"}, distributions=("normal", "tiny", "zero")),
    Case({"T": 33, "N": 48, "K": 64}, {"x": "f32", "w": "bf16", "bias": "f32", "residual": "f32", "out": "f32"}, {"epilogue": "silu"}),
    *[Case({"T": 4, "N": 20, "K": 48}, {"x": "bf16", "w": "bf16", "bias": "bf16", "out": "bf16"}, {"epilogue": e}, distributions=("normal", "tiny"))
      for e in ("gelu_erf", "relu", "relu2")],
    Case({"T": 6, "N": 17, "K": 96}, {"x": "f32", "w": "f32", "out": "f32", "rows": "i32"}, rows=4),
    Case({"T": 5, "N": 40, "K": 160}, {"x": "e4m3", "w": "e4m3", "x_scale": "f32", "w_scale": "f32", "bias": "bf16", "residual": "bf16", "out": "bf16"},
         {"alpha": 0.25}, positive=("x_scale", "w_scale")),
    Case({"T": 9, "N": 24, "K": 96}, {"x": "e4m3", "w": "e4m3", "x_row_scale": "f32", "w_row_scale": "f32", "out": "f32"},
         positive=("x_row_scale", "w_row_scale")),
    Case({"T": 12, "N": 33, "K": 100}, {"x": "bf16", "w": "bf16", "out": "e4m3", "out_scale": "f32"}, {"epilogue": "gelu_tanh"}, positive=("out_scale",)),
    Case({"T": 17, "N": 40, "K": 128}, {"x": "e4m3", "w": "e4m3", "x_row_scale": "f32", "w_scale": "f32", "out": "e4m3", "out_scale": "f32", "rows": "i32"},
         positive=("x_row_scale", "w_scale", "out_scale"), rows=11),
    Case({"T": 3, "N": 20, "K": 64}, {"x": "bf16", "w": "e4m3", "w_row_scale": "f32", "out": "bf16"}, positive=("w_row_scale",)),
    Case({"T": 9, "N": 40, "K": 72, "R": 1}, {"x": "bf16", "w": "bf16", "bias": "bf16", "gate": "bf16", "residual": "bf16", "out": "bf16"}),
    Case({"T": 6, "N": 21, "K": 40, "R": 4}, {"x": "f16", "w": "f16", "gate": "f32", "out": "f32", "rows": "i32"}, {"epilogue": "relu"}, rows=5),
    Case({"T": 70, "N": 72, "K": 1040}, {"x": "e4m3", "w": "e4m3", "out": "bf16"}, {"fast_accum": True}),
    *[Case({"T": t, "N": 80, "K": 1040}, {"x": "bf16", "w": "bf16", "out": "bf16"}) for t in (12, 130)],
    *[Case({"T": t, "N": 144, "K": 320}, {"x": "bf16", "w": "bf16", "bias": "bf16", "residual": "bf16", "out": "bf16"}, {"epilogue": e}) for t, e in ((50, "none"), (200, "gelu_tanh"))],
    *[Case({"T": t, "N": 136, "K": 192, "R": 1}, {"x": "bf16", "w": "bf16", "gate": "bf16", "residual": "bf16", "out": "bf16", "rows": "i32"}, rows=t - 3) for t in (30, 100)],
    # Enough outputs for tiles of more than 64 tokens, which leave by shared memory.
    Case({"T": 2100, "N": 544, "K": 64, "R": 1}, {"x": "bf16", "w": "bf16", "bias": "bf16", "gate": "bf16", "residual": "bf16", "out": "bf16", "rows": "i32"}, {"epilogue": "silu"},
         distributions=("normal",), rows=2050),
    Case({"T": 2100, "N": 544, "K": 64}, {"x": "e4m3", "w": "e4m3", "x_row_scale": "f32", "w_row_scale": "f32", "bias": "f32", "out": "e4m3", "out_scale": "f32"}, {"epilogue": "gelu_tanh"},
         positive=("x_row_scale", "w_row_scale", "out_scale"), distributions=("normal",)),
    # Tiles of 144 tokens, no multiple of the 32 that leave together where the epilogue is decided at run time: a row of gate a token, outputs of f32.
    Case({"T": 1000, "N": 1152, "K": 128, "R": 1000}, {"x": "bf16", "w": "bf16", "gate": "bf16", "residual": "bf16", "out": "bf16"}, distributions=("normal",)),
    Case({"T": 385, "N": 2560, "K": 48, "R": 385}, {"x": "f16", "w": "f16", "gate": "f16", "out": "f16", "rows": "i32"}, distributions=("normal",), rows=371),
    Case({"T": 257, "N": 4096, "K": 128}, {"x": "bf16", "w": "bf16", "out": "f32"}, distributions=("normal",)),
    Case({"T": 150, "N": 160, "K": 256}, {"x": "e4m3", "w": "e4m3", "x_row_scale": "f32", "w_row_scale": "f32", "residual": "bf16", "out": "bf16"},
         positive=("x_row_scale", "w_row_scale")),
    Case({"T": 200, "N": 160, "K": 384}, {"x": "e4m3", "w": "e4m3", "w_scale": "f32", "bias": "bf16", "out": "e4m3", "out_scale": "f32"}, {"epilogue": "gelu_tanh"},
         positive=("w_scale", "out_scale")),
    *[Case({"T": t, "N": n, "K": 64}, {"x": "e4m3", "w": "e4m3", "w_scale": "f32", "out": "e4m3", "out_scale": "f32"}, values={"w_scale": w, "out_scale": d},
           distributions=("normal", "tiny"), note="a scale whose reciprocal is no normal number")
      for t, n, w, d in ((150, 160, 2.0**-131, 1.5 * 2.0**-130), (2100, 320, 2.0**-131, 1.5 * 2.0**-130), (2101, 320, 2.0**110, 1.3 * 2.0**112), (2102, 320, 2.0**118, 1.3 * 2.0**126))],
    *[Case({"T": t, "N": n, "K": k}, {"x": "f32", "w": "f32", "bias": "f32", "out": "f32"}, {"tf32": True}, distributions=("normal", "zero"))
      for t, n, k in ((5, 70, 200), (90, 130, 321))],
    Case({"T": 70, "N": 72, "K": 1040}, {"x": "e4m3", "w": "e4m3", "w_row_scale": "f32", "out": "bf16"}, positive=("w_row_scale",)),
    *[Case({"T": 9, "N": 37, "K": 288}, {"x": x, "w": "i4", "w_block_scale": s, "w_block_zero": "i8", "out": x},
           positive=("w_block_scale",), ranges={"w_block_zero": (-8, 8)}, shapes={"w_block_scale": (37, c), "w_block_zero": (37, c)})
      for x, s, c in (("bf16", "bf16", 3), ("f32", "f32", 5), ("f16", "f16", 9))],
    Case({"T": 1, "N": 70, "K": 1024}, {"x": "bf16", "w": "i4", "w_block_scale": "f16", "out": "bf16"}, positive=("w_block_scale",), shapes={"w_block_scale": (70, 8)}),
    Case({"T": 70, "N": 40, "K": 544}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "bias": "bf16", "residual": "bf16", "out": "bf16"},
         {"epilogue": "silu"}, positive=("w_block_scale", "w_scale"), shapes={"w_block_scale": (40, 34)}),
    Case({"T": 4, "N": 33, "K": 256}, {"x": "f32", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "out": "f32", "rows": "i32"},
         positive=("w_block_scale", "w_scale"), shapes={"w_block_scale": (33, 16)}, rows=3),
    Case({"T": 11, "N": 200, "K": 300}, {"x": "e4m3", "w": "e4m3", "x_block_scale": "f32", "w_block_scale": "f32", "out": "bf16"},
         positive=("x_block_scale", "w_block_scale"), shapes={"w_block_scale": (2, 3)}),
    *[Case({"T": t, "N": 18, "K": k}, {"x": "e4m3", "w": "i4", "x_block_scale": "f32", "w_block_scale": s, "w_block_zero": "i8", "out": "f32"}, positive=("x_block_scale", "w_block_scale"),
           ranges={"w_block_zero": (-8, 8)}, shapes={"w_block_scale": (18, c), "w_block_zero": (18, c)}, note="x's scales hold for what zero points take off too")
      for t, k, s, c in ((31, 24, "f16", 1), (2, 160, "f32", 5))],
    Case({"T": 3, "N": 150, "K": 260}, {"x": "bf16", "w": "e4m3", "w_block_scale": "f32", "out": "f32"}, positive=("w_block_scale",), shapes={"w_block_scale": (2, 3)}),
    Case({"T": 5, "N": 50, "K": 130}, {"x": "bf16", "w": "i8", "w_row_scale": "f32", "out": "bf16"}, positive=("w_row_scale",), ranges={"w": (-128, 128)}),
    Case({"T": 2, "N": 30, "K": 200}, {"x": "f16", "w": "i8", "w_block_scale": "f32", "out": "f16"}, positive=("w_block_scale",), ranges={"w": (-128, 128)},
         shapes={"w_block_scale": (30, 7)}),
    Case({"T": 70, "N": 130, "K": 136}, {"x": "bf16", "w": "bf16", "bias": "f32", "out": "f32"}, note="more tokens than a streaming tactic takes"),
    Case({"T": 0, "N": 8, "K": 32}, {"x": "f32", "w": "f32", "out": "f32"}),
    *[Case({"T": t, "N": 37, "K": 576}, {"x": "f32", "w": q, "residual": "f32", "out": "f32"}, {"act": act})
      for q in BLOCKS32 for act, t in (("f32", 5), ("q8", 11))],
    *[Case({"T": t, "N": 18, "K": 2304}, {"x": "bf16", "w": q, "out": "bf16"}, {"act": act})
      for q in K_QUANTS for act, t in (("f32", 2), ("q8", 9))],
    Case({"T": 6, "N": 40, "K": 64}, {"x": "bf16", "w": "q4_1", "bias": "bf16", "residual": "bf16", "out": "bf16", "rows": "i32"},
         {"act": "q8", "epilogue": "silu", "alpha": 2.0}, rows=3),
    Case({"T": 3, "N": 8500, "K": 256}, {"x": "bf16", "w": "q4_0", "out": "bf16"}, distributions=("normal",), note="blocks walk the tiles"),
    Case({"T": 2, "N": 40, "K": 16896}, {"x": "bf16", "w": "q4_0", "out": "bf16"}, distributions=("normal", "edges"), note="x comes in panels"),
    Case({"T": 40, "N": 70, "K": 2560}, {"x": "bf16", "w": "q8_0", "out": "bf16"}, distributions=("normal", "large"), note="tens of tokens"),
    *[Case({"T": 12, "N": 33, "K": 2048}, {"x": "bf16", "w": "q4_1", "out": "bf16", "rows": "i32"}, {"act": act}, distributions=("normal", "zero"), rows=10) for act in ("f32", "q8")],
    Case({"T": 20, "N": 40, "K": 2048}, {"x": "bf16", "w": "i4", "w_block_scale": "bf16", "w_block_zero": "i8", "out": "bf16"}, distributions=("normal",),
         positive=("w_block_scale",), ranges={"w_block_zero": (-8, 8)}, shapes={"w_block_scale": (40, 16), "w_block_zero": (40, 16)}),
    # NVFP4, few tokens: scaled where it is widened.
    *[Case({"T": t, "N": n, "K": k}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "out": "bf16"}, distributions=d, positive=("w_block_scale", "w_scale"),
           shapes={"w_block_scale": (n, k // 16)}, note=note)
      for t, n, k, d, note in ((1, 70, 512, ("normal", "edges", "zero"), ""), (3, 8500, 256, ("normal",), "blocks walk the tiles"), (8, 40, 4096, ("normal", "large"), "K is split"),
                               (12, 40, 17408, ("normal",), "x comes in panels"), (64, 90, 2048, ("normal", "subnormal"), "tens of tokens"))],
    Case({"T": 30, "N": 40, "K": 2560}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "bias": "bf16", "residual": "bf16", "out": "bf16", "rows": "i32"}, {"epilogue": "silu"},
         positive=("w_block_scale", "w_scale"), shapes={"w_block_scale": (40, 160)}, rows=19),
    Case({"T": 5, "N": 50, "K": 544}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "out": "bf16"}, distributions=("normal",), positive=("w_block_scale",), shapes={"w_block_scale": (50, 34)},
         note="scales off 16 bytes"),
    Case({"T": 4, "N": 50, "K": 1184}, {"x": "bf16", "w": "i4", "w_block_scale": "bf16", "out": "bf16", "rows": "i32"}, distributions=("normal",), positive=("w_block_scale",),
         shapes={"w_block_scale": (50, 10)}, rows=3),
    # x in rings: all of a long K held; places filled again, by blocks that walk tiles too; tiles of 64 rows, of 32 with 17 and 16 tokens.
    Case({"T": 2, "N": 40, "K": 12288}, {"x": "bf16", "w": "q4_0", "out": "bf16"}, distributions=("normal",), note="x is held"),
    Case({"T": 8, "N": 4300, "K": 4608}, {"x": "bf16", "w": "q8_0", "out": "bf16"}, distributions=("normal",), note="x comes again for each tile"),
    Case({"T": 6, "N": 18, "K": 12800}, {"x": "bf16", "w": "q4_k", "out": "bf16", "rows": "i32"}, distributions=("normal",), rows=5, note="x comes in turns"),
    Case({"T": 6, "N": 40, "K": 12800}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "out": "bf16"}, distributions=("normal",), positive=("w_block_scale", "w_scale"),
         shapes={"w_block_scale": (40, 800)}, note="x comes in turns"),
    *[Case({"T": t, "N": n, "K": 2560}, {"x": "bf16", "w": w, "out": "bf16"}, distributions=("normal",), note="x comes in turns") for t, n, w in ((32, 4300, "q4_0"), (30, 4300, "q4_k"), (33, 70, "q4_1"))],
    Case({"T": 32, "N": 4300, "K": 2304}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "out": "bf16"}, distributions=("normal",), positive=("w_block_scale", "w_scale"),
         shapes={"w_block_scale": (4300, 144)}, note="x comes in turns"),
    # Rings that hold all of x: of 8192 elements, and of 6144 where 8192 do not fit.
    Case({"T": 8, "N": 70, "K": 4608}, {"x": "bf16", "w": "q4_0", "out": "bf16"}, distributions=("normal",), note="a ring of all of x"),
    Case({"T": 8, "N": 4300, "K": 4608}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "out": "bf16"}, distributions=("normal",), positive=("w_block_scale", "w_scale"),
         shapes={"w_block_scale": (4300, 288)}, note="a ring of all of x"),
    # More tiles than SMs and a long K: all of x beside a second block of the SM, or a panel or a place of it at a time.
    *[Case({"T": t, "N": 4300, "K": 4608}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "out": "bf16"}, distributions=("normal",), positive=("w_block_scale", "w_scale"),
           shapes={"w_block_scale": (4300, 288)}, note="two blocks an SM") for t in (1, 2)],
    # By wgmma: both widths, a part of 64 elements at the end of K, groups of 32 and of 128, tokens that are not valid.
    *[Case({"T": t, "N": 4300, "K": k}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "bias": "bf16", "residual": "bf16", "out": "bf16", "rows": "i32"}, {"epilogue": "silu"}, distributions=("normal",),
           positive=("w_block_scale", "w_scale"), shapes={"w_block_scale": (4300, k // 16)}, rows=t - 6) for t, k in [(41, 1280), (20, 1056)]],
    *[Case({"T": t, "N": 4300, "K": k}, {"x": "bf16", "w": "i4", "w_block_scale": s, "out": "bf16"}, distributions=("normal",), positive=("w_block_scale",), shapes={"w_block_scale": (4300, k // group)})
      for t, k, s, group in [(17, 1056, "f32", 32), (64, 1280, "bf16", 128)]],
    Case({"T": 1, "N": 4300, "K": 6656}, {"x": "bf16", "w": "i4", "w_block_scale": "bf16", "w_block_zero": "i8", "out": "bf16"}, distributions=("normal",), positive=("w_block_scale",),
         ranges={"w_block_zero": (-8, 8)}, shapes={"w_block_scale": (4300, 52), "w_block_zero": (4300, 52)}, note="two blocks an SM, x comes in panels"),
    Case({"T": 1, "N": 4300, "K": 8704}, {"x": "bf16", "w": "q4_0", "out": "bf16"}, distributions=("normal",), note="two blocks an SM, x comes in panels"),
    # Many tokens and a quantized w: dequantized on the way to the tensor core.
    Case({"T": 130, "N": 200, "K": 768}, {"x": "bf16", "w": "q4_0", "bias": "bf16", "residual": "bf16", "out": "bf16", "rows": "i32"}, distributions=("normal", "zero"), rows=121),
    Case({"T": 300, "N": 264, "K": 1024}, {"x": "bf16", "w": "q4_1", "out": "bf16"}, {"epilogue": "silu"}, distributions=("normal", "tiny")),
    *[Case({"T": 70, "N": 136, "K": 512}, {"x": "bf16", "w": q, "out": "bf16"}, distributions=("normal", "edges")) for q in ("q5_0", "q5_1", "q8_0", "q4_k", "q5_k")],
    Case({"T": 90, "N": 130, "K": 160}, {"x": "bf16", "w": "i8", "w_row_scale": "f32", "out": "f32"}, distributions=("normal",), positive=("w_row_scale",), ranges={"w": (-128, 128)}),
    Case({"T": 100, "N": 150, "K": 288}, {"x": "bf16", "w": "e4m3", "w_block_scale": "f32", "out": "e4m3", "out_scale": "f32"}, distributions=("normal",), positive=("w_block_scale", "out_scale"),
         shapes={"w_block_scale": (2, 3)}),
    Case({"T": 200, "N": 96, "K": 1056}, {"x": "bf16", "w": "i4", "w_block_scale": "bf16", "w_block_zero": "i8", "out": "bf16", "rows": "i32"}, distributions=("normal",), positive=("w_block_scale",),
         ranges={"w_block_zero": (-8, 8)}, shapes={"w_block_scale": (96, 9), "w_block_zero": (96, 9)}, rows=60),
    Case({"T": 2100, "N": 544, "K": 256}, {"x": "bf16", "w": "q8_0", "residual": "bf16", "out": "bf16", "rows": "i32"}, distributions=("normal",), rows=2050),
    Case({"T": 1100, "N": 2200, "K": 256}, {"x": "bf16", "w": "q4_0", "out": "bf16"}, distributions=("normal",)),
    # Two groups of warps that dequantize in turn: tiles one after the other, of two and three of their copies, and a first tile that no token has.
    Case({"T": 100, "N": 17000, "K": 512}, {"x": "bf16", "w": "q8_0", "residual": "bf16", "out": "bf16", "rows": "i32"}, distributions=("normal",), rows=90),
    Case({"T": 100, "N": 17000, "K": 512}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "out": "bf16"}, distributions=("normal",), positive=("w_block_scale", "w_scale"),
         shapes={"w_block_scale": (17000, 32)}),
    Case({"T": 70, "N": 17000, "K": 768}, {"x": "bf16", "w": "q4_0", "residual": "bf16", "out": "bf16"}, distributions=("normal",)),
    Case({"T": 250, "N": 4000, "K": 512}, {"x": "bf16", "w": "q4_1", "out": "bf16", "rows": "i32"}, distributions=("normal",), rows=100),
    # Enough outputs for tiles of 128 rows, and of 64 beside 192 and 256 tokens, in formats of each kind.
    *[Case({"T": t, "N": n, "K": 256}, {"x": "bf16", "w": w, "out": "bf16"}, distributions=("normal",), note=note)
      for t, n, w, note in ((90, 8512, "q4_1", "tiles of 128 x 128"), (500, 8320, "q5_k", "tiles of 128 x 256"))],
    Case({"T": 380, "N": 4000, "K": 256}, {"x": "bf16", "w": "q5_1", "residual": "bf16", "out": "bf16", "rows": "i32"}, distributions=("normal",), rows=370, note="tiles of 64 x 192"),
    Case({"T": 380, "N": 8320, "K": 256}, {"x": "bf16", "w": "q4_1", "out": "bf16"}, distributions=("normal",), note="tiles of 128 x 192"),
    # q6_k by TMA, whose rows are whole 16 bytes: few tokens, in rings and panels, and prompts.
    *[Case({"T": t, "N": n, "K": k}, {"x": x, "w": "q6_k", "out": x}, distributions=("normal", "edges") if t == 1 else ("normal",), note="q6_k by TMA")
      for t, n, k, x in ((1, 70, 2048, "bf16"), (1, 40, 14336, "bf16"), (3, 4300, 4096, "f32"), (8, 70, 4096, "bf16"), (20, 40, 6144, "bf16"), (64, 90, 2048, "bf16"),
                         (100, 600, 2048, "bf16"), (256, 8400, 2048, "bf16"))],
    *[Case({"T": t, "N": 40, "K": k}, {"x": "bf16", "w": "q6_k", "out": "bf16"}, {"act": "q8"}, distributions=("normal",), note="q6_k by TMA") for t, k in ((1, 4096), (12, 2048))],
    Case({"T": 90, "N": 130, "K": 4096}, {"x": "bf16", "w": "q6_k", "bias": "f32", "residual": "bf16", "out": "bf16", "rows": "i32"}, distributions=("normal",), rows=70, note="q6_k by TMA"),
    # Minima of eight groups as a product with x's sums in planes: of f32, f16 and rings of x.
    *[Case({"T": t, "N": n, "K": k}, {"x": x, "w": w, "out": x}, distributions=("normal", "edges"), note="minima by eight")
      for t, n, k, x, w in ((1, 4100, 4096, "f32", "q4_k"), (3, 70, 4096, "f16", "q5_k"), (12, 70, 6144, "bf16", "q4_k"))],
    # Weights dequantized in registers: each tile, with outputs that leave beside the next one's products; parts of a copy of 256 elements and of 128 at the end of K;
    # a first tile that no token has.
    *[Case({"T": t, "N": n, "K": k}, {"x": "bf16", "w": w, "out": "bf16"} | more, distributions=("normal",), note=f"in registers, {note}")
      for t, n, k, w, more, note in ((384, 4096, 1024, "q4_k", {"bias": "f32"}, "128 x 128"), (256, 16800, 512, "q8_0", {"residual": "bf16"}, "128 x 128, staged"),
                                     (256, 8400, 1024, "q4_0", {"residual": "bf16"}, "64 x 256"), (256, 17000, 2048, "q4_k", {}, "64 x 256, staged"),
                                     (250, 16800, 2048, "q4_0", {}, "128 x 256"), (256, 33000, 1024, "q8_0", {}, "128 x 256, staged"))],
    *[Case({"T": t, "N": n, "K": k}, {"x": "bf16", "w": w, "w_row_scale": "f32", "out": "bf16"} | more, distributions=("normal",), positive=("w_row_scale",), ranges={"w": (-128, 128)} if w == "i8" else {},
           rows=rows, note=f"in registers, {note}")
      for t, n, k, w, more, rows, note in ((130, 260, 720, "e4m3", {"residual": "bf16"}, None, "K ends within a copy"), (90, 17000, 208, "i8", {"rows": "i32"}, 0, "no token is there"),
                                           (600, 8000, 256, "i8", {"rows": "i32"}, 100, "blocks begin at tiles without tokens"), (380, 4000, 256, "e4m3", {"residual": "bf16", "rows": "i32"}, 370, "64 x 128"))],
    *[Case({"T": t, "N": n, "K": 256}, {"x": "bf16", "w": "e2m1", "w_block_scale": "e4m3", "w_scale": "f32", "out": "bf16"}, distributions=("normal",), positive=("w_block_scale", "w_scale"),
           shapes={"w_block_scale": (n, 16)}, note=note) for t, n, note in ((90, 8512, "tiles of 128 x 128"), (500, 8320, "tiles of 128 x 256"), (500, 4000, "tiles of 64 x 256"))],
    *[Case({"T": t, "N": n, "K": 256}, {"x": "bf16", "w": "i4", "w_block_scale": "bf16", "w_block_zero": "i8", "out": "bf16"}, distributions=("normal",), positive=("w_block_scale",), ranges={"w_block_zero": (-8, 8)},
           shapes={"w_block_scale": (n, 2), "w_block_zero": (n, 2)}, note=note) for t, n, note in ((90, 8512, "tiles of 128 x 128"), (500, 8320, "tiles of 128 x 256"), (500, 4000, "tiles of 64 x 256"))],
    Case({"T": 5, "N": 40, "K": 1024}, {"x": "bf16", "w": "e4m3", "w_row_scale": "f32", "out": "bf16", "rows": "i32"}, distributions=("normal", "subnormal"), positive=("w_row_scale",), rows=0),
]


def fit(d):
    products.weights(d, "w")
    products.e4m3_out(d)
    if d.dtypes["out"] == "e4m3":
        d.drop("gate", "residual")
    rows_of_table(d)
    if d.dtypes["x"] == d.dtypes["w"] == "e4m3" and d.chance(0.4):
        d.attrs["fast_accum"] = True
    else:
        d.attrs.pop("fast_accum", None)
    if d.attr("tf32") and not d.dtypes["x"] == d.dtypes["w"] == "f32":
        d.attrs.pop("tf32")


DOMAIN = Domain(fit=fit, contents=products.contents, work=products.work, positive=products.POSITIVE, attrs={"alpha": (0.25, 2.0, -1.0)}, distributions=("normal", "normal", "tiny", "edges", "zero"), weight=6, never=("gate=e4m3", "residual=e4m3"), tokens={"gate": nearest})
