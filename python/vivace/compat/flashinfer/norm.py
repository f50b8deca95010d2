"""FlashInfer's names of normalisation over ops.norm. All arithmetic is in f32; what is rounded says ops.norm's formula."""
import numpy as np

from vivace import ops
from vivace.compat.arrays import beside, cast, check, dtype_like, dtype_name, empty, f32, matrices
from vivace.errors import InvalidDTypeError, InvalidShapeError

_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def one(scale, like):
    """A scale, a number or an array of one element, as [1] in f32 beside `like`."""
    return cast(scale.reshape(1), f32(like)) if hasattr(scale, "reshape") else beside(np.float32([scale]), like)


def _largest(out):
    if dtype_name(out) not in _LARGEST:
        raise InvalidDTypeError(f"flashinfer: out is quantized: wanted float8_e4m3fn or float8_e5m2, got {dtype_name(out)}")
    return _LARGEST[dtype_name(out)]


def _norm(x, weight, eps, out=None, *, residual=None, scale=None, **more):
    check(x, "input")
    out = empty(tuple(x.shape), x) if out is None else out
    for name, other in (("out", out), ("residual", residual)):
        if other is not None and tuple(other.shape) != tuple(x.shape):
            raise InvalidShapeError(f"flashinfer: {name} is {list(other.shape)}, input {list(x.shape)}: wanted the same")
    ports = {} if scale is None else {"out_scale": one(scale, x)}
    for rows, to, beside_it in matrices(x, out, residual):
        ports |= {} if beside_it is None else {"residual": beside_it}
        ops.norm(rows, out=to, weight=weight, eps=eps, **ports, **more)
    return out


def _quantized(out, x, weight, scale, eps, **more):
    """norm(x) / scale in out's float8, held within it; of e5m2, which the op does not write, by the array library."""
    largest = _largest(out)
    if largest == 448.0:
        return _norm(x, weight, eps, out, scale=scale, **more)
    y = _norm(x, weight, eps, empty(tuple(x.shape), x, f32(x)), **more) / one(scale, x)
    out[...] = cast(y.clip(-largest, largest), out.dtype)
    return out


def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    """[..., H] with weight [H]: input / rms(input) * weight, in out or a new array."""
    return _norm(input, weight, eps, out)


def rmsnorm_quant(out, input, weight, scale, eps=1e-6, enable_pdl=None):
    """rmsnorm(input) / scale in out's float8."""
    return _quantized(out, input, weight, scale, eps)


def fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    """residual += input, then input = rmsnorm of that sum before it was rounded; both in place."""
    _norm(input, weight, eps, input, residual=residual)


def fused_add_rmsnorm_quant(out, input, residual, weight, scale, eps=1e-6, enable_pdl=None):
    """residual += input in place, and its rmsnorm / scale in out's float8; input stays."""
    _quantized(out, input, weight, scale, eps, residual=residual)


def gemma_rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    """rmsnorm with factors 1 + weight."""
    return _norm(input, weight, eps, out, weight_plus_one=True)


def gemma_fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    """fused_add_rmsnorm with factors 1 + weight."""
    _norm(input, weight, eps, input, residual=residual, weight_plus_one=True)


def layernorm(input, gemma, beta, eps=1e-6):
    """(input - mean) / deviation * gemma + beta, in a new array."""
    return _norm(input, gemma, eps, bias=beta, kind="layer")


def layernorm_quant(out, input, gemma, beta, scale, eps=1e-6):
    """layernorm rounded to input's type, over scale, in out's float8."""
    largest, y = _largest(out), layernorm(input, gemma, beta, eps)
    if largest == 448.0:
        for rows, to in matrices(y, out):
            ops.quantize(rows, out=to, out_scale=one(scale, input))
    else:
        out[...] = cast((cast(y, dtype_like("float32", y)) / one(scale, y)).clip(-largest, largest), out.dtype)
    return out
