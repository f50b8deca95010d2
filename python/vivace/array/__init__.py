"""Arrays on the CPU and in GPU memory, with the functions of the Python array API standard.

    from vivace import array
    x = array.asarray([[1., 2.], [3., 4.]], device="cpu")
    y = (x @ x.T).sum(axis=0)             # views, broadcasting, promotion; reductions give the same bits each run
    array.from_numpy(host)                # one copy, onto the GPU; memory comes from Vivace's pool

An Array goes wherever an op takes a port, and to and from other libraries by DLPack without a copy. On a GPU a call queues a
kernel and returns. What has a shape that data decides, nonzero() and its like, waits for it.
"""
from vivace._core import Array, pool_reset_peak, pool_set_limit, pool_snapshot, pool_stats, pool_trim, stream_stats
from vivace.array import _class as _class  # gives Array the methods that are written in Python
from vivace.array.creation import (
    arange, asarray, empty, empty_like, eye, from_dlpack, from_numpy, full, full_like, get_default_device, linspace, meshgrid, ones, ones_like,
    set_default_device, tril, triu, zeros, zeros_like,
)
from vivace.array.elementwise import (
    abs, acos, acosh, add, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_invert, bitwise_left_shift, bitwise_or, bitwise_right_shift,
    bitwise_xor, ceil, clip, conj, copysign, cos, cosh, divide, equal, erf, exp, expm1, floor, floor_divide, gelu, greater, greater_equal, hypot,
    isfinite, isinf, isnan, less, less_equal, log, log1p, log2, log10, logaddexp, logical_and, logical_not, logical_or, logical_xor, maximum,
    minimum, multiply, negative, nextafter, not_equal, positive, pow, real, reciprocal, remainder, round, rsqrt, sigmoid, sign, signbit, silu, sin,
    sinh, sqrt, square, subtract, tan, tanh, trunc, where,
)
from vivace.array.refused import __getattr__ as __getattr__
from vivace.array.reductions import (
    all, any, argmax, argmin, argsort, count_nonzero, cumulative_prod, cumulative_sum, diff, max, mean, min, prod, searchsorted, softmax, sort, std, sum,
    var,
)
from vivace.array.shapes import (
    broadcast_arrays, broadcast_to, concat, expand_dims, flip, matrix_transpose, moveaxis, pad, permute_dims, repeat, reshape, roll, squeeze, stack,
    take, take_along_axis, tile, unstack,
)
from vivace.array.fuse import fuse, reduction
from vivace.array.sets import nonzero, unique_all, unique_counts, unique_inverse, unique_values
from vivace.array import random
from vivace.array.own import elementwise
from vivace.array.streams import stream
from vivace.array.products import einsum, matmul, tensordot, vecdot
from vivace.array.types import (
    __array_namespace_info__, astype, bfloat16, bool, can_cast, finfo, float16, float32, float64, iinfo, int8, int16, int32, int64, isdtype,
    result_type, uint8, uint16, uint32, uint64,
)

__array_api_version__ = "2024.12"
e, inf, nan, newaxis, pi = 2.718281828459045, float("inf"), float("nan"), None, 3.141592653589793

__all__ = [
    "Array", "__array_api_version__", "__array_namespace_info__", "abs", "acos", "acosh", "add", "all", "any", "arange", "argmax", "argmin", "argsort",
    "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh", "bfloat16", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "bool", "broadcast_arrays", "broadcast_to", "can_cast", "ceil", "clip", "concat", "conj", "copysign", "cos",
    "cosh", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "divide", "e", "einsum", "elementwise", "empty", "empty_like", "equal", "erf", "exp",
    "expand_dims", "expm1", "eye", "finfo", "flip", "float16", "float32", "float64", "floor", "floor_divide", "from_dlpack", "from_numpy", "full",
    "full_like", "fuse", "gelu", "get_default_device", "greater", "greater_equal", "hypot", "iinfo", "inf", "int16", "int32", "int64", "int8", "isdtype",
    "isfinite", "isinf", "isnan", "less", "less_equal", "linspace", "log", "log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not",
    "logical_or", "logical_xor", "matmul", "matrix_transpose", "max", "maximum", "mean", "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan",
    "negative", "newaxis", "nextafter", "nonzero", "not_equal", "ones", "ones_like", "pad", "permute_dims", "pi", "pool_reset_peak", "pool_set_limit", "pool_snapshot", "pool_stats", "pool_trim", "positive", "pow", "prod", "random", "real",
    "reciprocal", "reduction", "remainder", "repeat", "reshape", "result_type", "roll", "round", "rsqrt", "searchsorted", "set_default_device", "sigmoid", "sign",
    "signbit", "silu", "sin", "sinh", "softmax", "sort", "sqrt", "square", "squeeze", "stack", "std", "stream", "stream_stats", "subtract", "sum", "take", "take_along_axis",
    "tan", "tanh", "tensordot", "tile", "tril", "triu", "trunc", "uint16", "uint32", "uint64", "uint8", "unique_all", "unique_counts", "unique_inverse", "unique_values", "unstack", "var", "vecdot", "where", "zeros",
    "zeros_like",
]
