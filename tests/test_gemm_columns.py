"""gemm over weights that lie column after column, the transpose of a row-major [K, N]: the bits of rows, and what is refused."""
import ml_dtypes
import numpy as np
import pytest

import vivace
from vivace import ops

BF16 = ml_dtypes.bfloat16
FORMS = [(1, 7, 1), (3, 16, 16), (5, 33, 40), (70, 72, 2100), (300, 40, 65), (64, 128, 4096), (2, 1, 9), (4, 9, 1)]


@pytest.mark.parametrize("dtype", ["f4", BF16, "f2"])
@pytest.mark.parametrize("T, N, K", FORMS)
def test_bits_of_rows(T, N, K, dtype):
    rng = np.random.default_rng(N)
    x, wide = rng.standard_normal((T, K)).astype(dtype), rng.standard_normal((K, N + 8)).astype(dtype)
    w, bias = wide[:, :N].T, rng.standard_normal(N).astype("f4")
    outs = [np.full((T, N), 7, dtype) for _ in "ab"]
    for weight, out in zip((w, np.ascontiguousarray(w)), outs):
        ops.gemm(x=x, w=weight, bias=bias, out=out, epilogue="gelu_erf")
    assert outs[0].tobytes() == outs[1].tobytes() and np.isfinite(outs[0].astype("f4")).all()


def columns(shape, dtype):
    return np.zeros(shape[::-1], dtype).T


@pytest.mark.parametrize("x, w, more, says", [
    (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn, {}, "got x e4m3 and w e4m3; copy it row after row"),
    ("f4", BF16, {}, "got x f32 and w bf16"),
    (BF16, "i1", {"w_scale": np.ones(1, "f4")}, "got x bf16 and w i8"),
    ("f4", "f4", {"tf32": True}, "goes without tf32"),
])
def test_refused_by_name(x, w, more, says):
    out = np.full((3, 16), 7, "f4")
    with pytest.raises(vivace.UnsupportedError, match=f"^gemm: port w lies column after column, .*{says}"):
        ops.gemm(x=np.zeros((3, 32), x), w=columns((16, 32), w), out=out, **more)
    assert (out == 7).all()


def test_strides_of_no_matrix():
    """Neither rows nor columns lie dense, columns that overlap or run backwards; and ops that take rows alone."""
    x, out = np.zeros((3, 32), "f4"), np.zeros((3, 16), "f4")
    memory = np.zeros((64, 64), "f4")
    at = lambda *strides: np.lib.stride_tricks.as_strided(memory[32:], (16, 32), [4 * s for s in strides])  # noqa: E731
    for strides in ((2, 64), (1, 15), (1, -16), (1, 0), (-1, 64)):
        with pytest.raises(vivace.InvalidLayoutError, match=r"^gemm: port w: strides .* are neither of dense rows"):
            ops.gemm(x=x, w=at(*strides), out=out)
    with pytest.raises(vivace.InvalidLayoutError, match="^norm_gemm: port w: axis 1 has stride 16, wanted 1"):
        ops.norm_gemm(x=x, w=columns((16, 32), "f4"), out=out)
    with pytest.raises(vivace.InvalidLayoutError, match="^gemm: port x: axis 1 has stride 3, wanted 1"):
        ops.gemm(x=columns((3, 32), "f4"), w=np.zeros((16, 32), "f4"), out=out)
