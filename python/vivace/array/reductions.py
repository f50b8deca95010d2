"""Reductions, running sums, sorting and searching. A reduction adds in an order that the shape alone decides: the same bits each run."""
from __future__ import annotations

from vivace import _core
from vivace._core import Array
from vivace.array import types
from vivace.array.elementwise import exp, sqrt
from vivace.array.trace import ARRAYS, Traced
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError


def _wide(call: str, x, dtype) -> types.DType:
    """What sums come in: the default integer for narrower ones, floats as they are."""
    if not isinstance(x, ARRAYS):
        raise InvalidDTypeError(f"array.{call}: wanted an Array, got {type(x).__name__}")
    if dtype is not None:
        return dtype
    return types.uint64 if x.dtype in types.UNSIGNED else types.int64 if x.dtype in types.SIGNED or x.dtype == types.bool else x.dtype


def _numbers(call: str, x, wanted: tuple[types.DType, ...], words: str) -> None:
    if not isinstance(x, ARRAYS):
        raise InvalidDTypeError(f"array.{call}: wanted an Array, got {type(x).__name__}")
    if x.dtype not in wanted:
        raise InvalidDTypeError(f"array.{call}: wanted {words}, got {x.dtype}")


def sum(x, /, *, axis=None, dtype=None, keepdims=False) -> Array:
    """f16 and bf16 add up in f32; integers in 64 bits."""
    return _core.array_fold("sum", x, axis, keepdims, _wide("sum", x, dtype))


def prod(x, /, *, axis=None, dtype=None, keepdims=False) -> Array:
    return _core.array_fold("prod", x, axis, keepdims, _wide("prod", x, dtype))


def max(x, /, *, axis=None, keepdims=False) -> Array:
    """NaN if there is one."""
    _numbers("max", x, types.KINDS["numeric"], "numbers (astype() the bool first)")
    return _core.array_fold("max", x, axis, keepdims, None)


def min(x, /, *, axis=None, keepdims=False) -> Array:
    """NaN if there is one."""
    _numbers("min", x, types.KINDS["numeric"], "numbers (astype() the bool first)")
    return _core.array_fold("min", x, axis, keepdims, None)


def any(x, /, *, axis=None, keepdims=False) -> Array:
    return _core.array_fold("any", x, axis, keepdims, types.bool)


def all(x, /, *, axis=None, keepdims=False) -> Array:
    return _core.array_fold("all", x, axis, keepdims, types.bool)


def _position(kind: str, x, axis, keepdims) -> Array:
    if axis is not None and not isinstance(axis, int):
        raise InvalidArgumentError(f"array.{kind}: axis: wanted None or one integer, got {axis!r}")
    _numbers(kind, x, types.KINDS["numeric"], "numbers (astype() the bool first)")
    return _core.array_fold(kind, x, axis, keepdims, None)


def argmax(x, /, *, axis=None, keepdims=False) -> Array:
    """Of equals the first; a NaN is the largest."""
    return _position("argmax", x, axis, keepdims)


def argmin(x, /, *, axis=None, keepdims=False) -> Array:
    """Of equals the first; a NaN is the smallest."""
    return _position("argmin", x, axis, keepdims)


def count_nonzero(x, /, *, axis=None, keepdims=False) -> Array:
    return _core.array_fold("sum", x.astype(types.bool, copy=False), axis, keepdims, types.int64)


def _count(x, axis) -> int:
    n = 1
    for i in range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis:
        n *= x.shape[i]
    return n


def mean(x, /, *, axis=None, keepdims=False) -> Array:
    _numbers("mean", x, types.REAL, "floats (astype() the integers first)")
    wide = types.float64 if x.dtype == types.float64 else types.float32
    total = _core.array_fold("sum", x, axis, keepdims, wide)
    return (total / float(_count(x, axis))).astype(x.dtype, copy=False)  # of nothing NaN, as 0 / 0 is


def var(x, /, *, axis=None, correction=0.0, keepdims=False) -> Array:
    """The mean square of what the mean leaves, over the count less `correction`. In two passes."""
    _numbers("var", x, types.REAL, "floats (astype() the integers first)")
    wide = x.astype(types.float64 if x.dtype == types.float64 else types.float32, copy=False)
    d = wide - mean(wide, axis=axis, keepdims=True)
    n = _count(x, axis) - correction
    return (_core.array_fold("sum", d * d, axis, keepdims, wide.dtype) / float(n if n > 0 else 0)).astype(x.dtype, copy=False)


def std(x, /, *, axis=None, correction=0.0, keepdims=False) -> Array:
    _numbers("std", x, types.REAL, "floats (astype() the integers first)")
    wide = x.astype(types.float64 if x.dtype == types.float64 else types.float32, copy=False)
    return sqrt(var(wide, axis=axis, correction=correction, keepdims=keepdims)).astype(x.dtype, copy=False)


def softmax(x, /, *, axis=-1) -> Array:
    """exp(x - max) over their sum along the axis; f16 and bf16 are computed in f32."""
    _numbers("softmax", x, types.REAL, "floats (astype() the integers first)")
    wide = x.astype(types.float64 if x.dtype == types.float64 else types.float32, copy=False)
    powers = exp(wide - max(wide, axis=axis, keepdims=True))
    return (powers / sum(powers, axis=axis, keepdims=True)).astype(x.dtype, copy=False)


def _cumulative(call: str, product: bool, x, axis, dtype, include_initial) -> Array:
    dtype = _wide(call, x, dtype)
    if axis is None:
        if x.ndim != 1:
            raise InvalidArgumentError(f"array.{call}: axis: wanted one of the {x.ndim} axes of {x.shape}, got None")
        axis = 0
    return _core.array_cumulative(product, x, axis, dtype, include_initial)


def cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False) -> Array:
    return _cumulative("cumulative_sum", False, x, axis, dtype, include_initial)


def cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False) -> Array:
    return _cumulative("cumulative_prod", True, x, axis, dtype, include_initial)


def diff(x, /, *, axis=-1, n=1, prepend=None, append=None) -> Array:
    from vivace.array.shapes import concat
    if n < 0:
        raise InvalidArgumentError(f"array.diff: n is {n}")
    if not -x.ndim <= axis < x.ndim:
        raise InvalidArgumentError(f"array.diff: axis {axis} of an array of {x.ndim} axes")
    parts = [p for p in (prepend, x, append) if p is not None]
    made = concat(parts, axis=axis) if len(parts) > 1 else x
    before = (slice(None),) * (axis % x.ndim)
    for _ in range(n):
        later, earlier = made[(*before, slice(1, None))], made[(*before, slice(None, -1))]
        made = later != earlier if x.dtype == types.bool else later - earlier
    return made


def sort(x, /, *, axis=-1, descending=False, stable=True) -> Array:
    """Stable whatever is asked; NaNs last."""
    return _core.array_sort(x, axis, descending, False)


def argsort(x, /, *, axis=-1, descending=False, stable=True) -> Array:
    return _core.array_sort(x, axis, descending, True)


def searchsorted(x1, x2, /, *, side="left", sorter=None) -> Array:
    if side not in ("left", "right"):
        raise InvalidArgumentError(f"array.searchsorted: side={side!r}: wanted 'left' or 'right'")
    if x1.ndim != 1:
        raise InvalidShapeError(f"array.searchsorted: x1 is {x1.shape}, wanted one axis")
    return _core.array_searchsorted(x1, x2, side == "right", sorter)


def _method(function):
    def method(self, axis=None, **options):
        return function(self, axis=axis, **options)

    method.__name__, method.__doc__ = function.__name__, function.__doc__
    return method


for _f in (sum, prod, max, min, any, all, argmax, argmin, mean, std, var):
    for _class in (Array, Traced):
        setattr(_class, _f.__name__, _method(_f))
