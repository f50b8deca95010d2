"""Rules between ports of norm_gemm and of norms behind products, and norm_gemm's two parts beside the whole, on the host."""
import numpy as np
import pytest

from vivace import ops
from vivace.errors import InvalidArgumentError, InvalidShapeError


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
