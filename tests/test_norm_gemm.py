"""Rules between ports of norm_gemm and of norms behind products, and norm_gemm's two parts beside the whole, on the host."""
import numpy as np
import pytest
from ml_dtypes import float8_e4m3fn

from tests.gpu.rms_gemm_rows import GEMM_RMS_ROWS, RMS_GEMM, RMS_GEMM_ROPE
from tests.op_data import NUMPY
from vivace import _core, ops
from vivace.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError


def arrays(T=3, M=8, N=8, K=64):
    rng = np.random.default_rng(7)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((T, K), (M, K)))
    return {"x": x, "w": w, "weight": rng.standard_normal(K).astype(np.float32), "normed": np.empty((T, K), np.float32), "out": np.full((T, N), 7, np.float32)}


@pytest.mark.parametrize("gated, M, N, says", [(False, 8, 4, "as many"), (True, 8, 8, "twice as many rows")])
def test_rows_of_w_and_columns_of_out(gated, M, N, says):
    given = arrays(M=M, N=N)
    with pytest.raises(InvalidShapeError, match=f"norm_gemm.*{says}"):
        ops.norm_gemm(**given, gated=gated, epilogue="silu")
    assert (given["out"] == 7).all()


def test_gated_takes_an_activation_and_no_residual():
    given = arrays(M=16)
    with pytest.raises(InvalidArgumentError, match="norm_gemm.*needs an epilogue"):
        ops.norm_gemm(**given, gated=True)
    with pytest.raises(InvalidArgumentError, match="norm_gemm.*no residual"):
        ops.norm_gemm(**given, gated=True, epilogue="silu", residual=np.zeros_like(given["out"]))


@pytest.mark.parametrize("gated", [False, True])
def test_is_norm_and_the_product(gated):
    given = arrays(M=16 if gated else 8)
    normed, want = np.empty_like(given["x"]), np.empty_like(given["out"])
    ops.norm(given["x"], weight=given["weight"], out=normed, eps=1e-5)
    if gated:
        ops.gated_gemm(x=normed, w=given["w"], out=want, act="silu")
    else:
        ops.gemm(x=normed, w=given["w"], out=want, epilogue="silu")
    ops.norm_gemm(**given, eps=1e-5, epilogue="silu", gated=gated)
    assert np.array_equal(given["out"], want)


def test_a_norm_behind_a_product_has_one_factor():
    x, f = np.ones((2, 16), np.float32), np.ones(16, np.float32)
    out = {"scaled": np.empty_like(x), "squares": np.full((2, 2), 7, np.float32)}
    both = {"weight": f, "scale": f[None]}
    with pytest.raises(InvalidArgumentError, match="rms_rows.*weight and scale.*give one"):
        ops.rms_rows(x=x, **both, **out)
    with pytest.raises(InvalidArgumentError, match="gemm_rms_rows.*weight and scale.*give one"):
        ops.gemm_rms_rows(x=x, w=np.eye(16, dtype=np.float32), out=np.empty_like(x), **both, **out)
    assert (out["squares"] == 7).all()
    ops.rms_rows(x=x, weight=f * 3, **out)
    assert (out["scaled"] == 3).all() and (out["squares"] == 8).all()


@pytest.mark.parametrize("scaled, scale, got", [(float8_e4m3fn, False, "e4m3 without it"), (np.float32, True, "f32 with it"), (np.float16, False, "f16 without it")])
def test_rows_behind_which_a_norm_is_taken_are_e4m3_with_their_scale(scaled, scale, got):
    x = np.ones((2, 16), np.float32)
    out = {"scaled": np.zeros((2, 16), scaled), "squares": np.full((2, 2), 7, np.float32)} | ({"scaled_scale": np.ones(1, np.float32)} if scale else {})
    with pytest.raises(InvalidArgumentError, match=f"rms_rows: port scaled: wanted x's f32 without scaled_scale, or e4m3 with it, got {got}"):
        ops.rms_rows(x=x, **out)
    with pytest.raises(InvalidArgumentError, match=f"gemm_rms_rows.*port scaled.*got {got}"):
        ops.gemm_rms_rows(x=x, w=np.eye(16, dtype=np.float32), out=np.empty_like(x), **out)
    assert (out["squares"] == 7).all()


def test_a_scale_of_such_rows_is_above_zero():
    out = {"scaled": np.zeros((2, 16), float8_e4m3fn), "squares": np.zeros((2, 2), np.float32), "scaled_scale": np.zeros(1, np.float32)}
    with ops.checked(), pytest.raises(InvalidArgumentError, match="port scaled_scale: a scale is finite and above zero"):
        ops.rms_rows(x=np.ones((2, 16), np.float32), **out)


def test_a_chain_in_e4m3_is_norms_and_products():
    """norm(h) W by the rows that gemm_rms_rows leaves in e4m3: the float64 answer within what four bits of each value make, also of rows
    that are 2^10 times smaller than others, by one scale of all."""
    rng = np.random.default_rng(11)
    T, H, M = 9, 256, 64
    x, w, next_w = rng.standard_normal((T, 64)), rng.standard_normal((H, 64)), rng.standard_normal((M, H)) / 16
    h, scale = rng.standard_normal((T, H)), rng.standard_normal((1, H)) * 0.3
    sizes = 2.0 ** -np.arange(0, 11)[:T, None] * np.where(np.arange(T)[:, None] == T - 1, 2.0**-2, 1)
    h, x = h * sizes, x * sizes
    out = {"out": np.empty((T, H), np.float32), "scaled": np.empty((T, H), float8_e4m3fn), "squares": np.empty((T, H // 8), np.float32)}
    total = h + x @ w.T
    s = np.array([np.abs(total * (1 + scale)).max() / 448], np.float32)
    ops.gemm_rms_rows(x=x.astype(np.float32), w=w.astype(np.float32), residual=h.astype(np.float32), scale=scale.astype(np.float32), scaled_scale=s, **out)
    codes, y = next_w.astype(float8_e4m3fn), np.empty((T, M), np.float32)
    ops.rms_gemm(x=out["scaled"], squares=out["squares"], row_scale=np.empty(T, np.float32), w=codes, x_scale=s, out=y)
    want = total / np.sqrt((total**2).mean(-1, keepdims=True)) * (1 + scale) @ codes.astype(np.float64).T
    assert (np.linalg.norm(y - want, axis=1) <= 0.04 * np.linalg.norm(want, axis=1)).all()


def is_one_kernel(op, dtypes, shapes, **attributes):
    try:
        _core.picked_kernel(op, 90, **{p: np.empty(shape, NUMPY[dtypes.get(p, "f32")]) for p, shape in shapes.items()}, **attributes)
    except UnsupportedError:
        return False
    return True


@pytest.mark.parametrize("T, M, K, eight, gated, one", RMS_GEMM)
def test_one_kernel_of_rms_gemm(T, M, K, eight, gated, one):
    """What tests/gpu/test_rms_gemm.py expects of sm_90a, whose bits it looks at."""
    operands = "e4m3" if eight else "bf16"
    shapes = {"x": (T, K), "squares": (T, -(-K // 8)), "w": (M, K), "bias": (M,), "rows": (1,), "row_scale": (T,), "out": (T, M // 2 if gated else M)}
    shapes |= ({"x_scale": (1,), "w_row_scale": (M,)} if eight else {}) | ({"out_scale": (1,)} if eight == 2 else {})
    dtypes = {"x": operands, "w": operands, "rows": "i32", "out": "e4m3" if eight == 2 else "bf16"}
    assert is_one_kernel("rms_gemm", dtypes, shapes, gated=bool(gated), epilogue="gelu_tanh" if gated else "silu") == bool(one)


@pytest.mark.parametrize("T, Hq, Hkv, D, K, eight, one", RMS_GEMM_ROPE)
def test_one_kernel_of_rms_gemm_rope(T, Hq, Hkv, D, K, eight, one):
    M, operands = (Hq + 2 * Hkv) * D, "e4m3" if eight else "bf16"
    shapes = {"x": (T, K), "squares": (T, -(-K // 8)), "w": (M, K), "bias": (M,), "row_scale": (T,), "qkv": (T, M), "q": (T, Hq, D), "k_cache": (2, 90, Hkv, D), "v_cache": (2, 90, Hkv, D), "pos": (T,), "slot": (T,),
              "angles": (T, 2, D // 2), "rows": (1,)} | ({"x_scale": (1,), "w_row_scale": (M,)} if eight else {})
    dtypes = {"x": operands, "w": operands} | dict.fromkeys(("qkv", "q", "k_cache", "v_cache"), "bf16") | dict.fromkeys(("pos", "slot", "rows"), "i32")
    assert is_one_kernel("rms_gemm_rope", dtypes, shapes) == bool(one)


@pytest.mark.parametrize("T, N, K, eight, gate, weight, one", GEMM_RMS_ROWS)
def test_one_kernel_of_gemm_rms_rows(T, N, K, eight, gate, weight, one):
    operands = "e4m3" if eight & 1 else "bf16"
    shapes = {"x": (T, K), "w": (N, K), "rows": (1,), "residual": (T, N), "out": (T, N), "scaled": (T, N), "squares": (T, -(-N // 8))}
    shapes |= ({"gate": (1, N)} if gate else {}) | ({"x_scale": (1,), "w_row_scale": (N,)} if eight & 1 else {}) | ({"scaled_scale": (1,)} if eight & 2 else {})
    shapes |= {"scale": (1, N)} if weight is None else {"weight": (N,)}
    dtypes = {"x": operands, "w": operands, "rows": "i32", "residual": "bf16", "out": "bf16", "scaled": "e4m3" if eight & 2 else "bf16", "gate": "bf16", "scale": "bf16", "weight": weight}
    assert is_one_kernel("gemm_rms_rows", dtypes, shapes) == bool(one)
