"""FlashRT's two operations for training in JAX, by its names, over vivace.jax_ops. They need JAX, and run on the CPU and on CUDA.

Neither has a derivative: examples/python/jax_lora.py gives them one with jax.custom_vjp. Bytes may come as uint8, FlashRT's way past JAX's
promotion, or as float8_e4m3fn, which is what comes back.
"""
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from vivace import jax_ops
from vivace.errors import InvalidDTypeError, InvalidShapeError

__all__ = ["fp8_gemm_bf16_out", "quantize_fp8_static"]


def fp8_gemm_bf16_out(x, w, x_scale, w_scale):
    """bf16 [..., N]: the product of x [..., K] and w [K, N], both e4m3 or uint8 with its bytes; x stands for x * x_scale, w for w * w_scale, f32
    scales of one number. vivace.jax_ops.gemm is the same with w as [N, K], which it reads as it lies; here XLA transposes w.
    Errors: InvalidDTypeError, InvalidShapeError."""
    x, w = _bytes("fp8_gemm_bf16_out", "x", x), _bytes("fp8_gemm_bf16_out", "w", w)
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise InvalidShapeError(f"fp8_gemm_bf16_out: wanted x [..., K] and w [K, N], got {list(x.shape)} and {list(w.shape)}")
    y = jax_ops.gemm(x.reshape(-1, x.shape[-1]), w.T, x_scale=_one("fp8_gemm_bf16_out", "x_scale", x_scale), w_scale=_one("fp8_gemm_bf16_out", "w_scale", w_scale), dtype="bf16")
    return y.reshape(*x.shape[:-1], w.shape[1])


def quantize_fp8_static(x, scale):
    """e4m3 [..., K] of f32, bf16 or f16 x: the nearest to x / scale, within +-448; scale is f32, one number > 0. Errors: InvalidDTypeError,
    InvalidShapeError."""
    x = jnp.asarray(x)
    if x.ndim < 1:
        raise InvalidShapeError("quantize_fp8_static: wanted x [..., K], got a scalar")
    codes = jax_ops.quantize(x.reshape(-1, x.shape[-1]), out_scale=_one("quantize_fp8_static", "scale", scale), dtype="e4m3")
    return codes.reshape(x.shape)


def _bytes(who, name, x):
    x = jnp.asarray(x)
    if x.dtype == np.uint8:
        return x.view(ml_dtypes.float8_e4m3fn)
    if x.dtype != ml_dtypes.float8_e4m3fn:
        raise InvalidDTypeError(f"{who}: {name}: wanted float8_e4m3fn or its bytes as uint8, got {x.dtype}")
    return x


def _one(who, name, scale):
    scale = jnp.asarray(scale)
    if scale.dtype != np.float32 or scale.size != 1:
        raise InvalidDTypeError(f"{who}: {name}: wanted one float32, got {scale.dtype}{list(scale.shape)}")
    return scale.reshape(1)
