"""Functions whose results have a shape that data decides: where a mask is true, which values there are. On a GPU each call waits for it, as
numpy() does, to learn that shape; inside a capture it is refused."""
from __future__ import annotations

from collections import namedtuple

from vivace._core import Array
from vivace.array import types
from vivace.array.creation import arange, empty, ones
from vivace.array.elementwise import not_equal
from vivace.array.reductions import argsort, cumulative_sum, searchsorted, sort
from vivace.array.shapes import concat, take
from vivace.errors import InvalidDTypeError, InvalidShapeError

UniqueAll = namedtuple("UniqueAll", "values indices inverse_indices counts")
UniqueCounts = namedtuple("UniqueCounts", "values counts")
UniqueInverse = namedtuple("UniqueInverse", "values inverse_indices")


def _array(call: str, x) -> Array:
    if not isinstance(x, Array):
        raise InvalidDTypeError(f"array.{call}: wanted an Array, got {type(x).__name__}")
    return x


def places_of(mask: Array) -> Array:
    """The numbers of the true elements of a mask, in row-major order."""
    ends = cumulative_sum(mask.reshape(-1).astype(types.int64))
    count = int(ends[-1]) if ends.size else 0
    return searchsorted(ends, arange(1, count + 1, dtype=types.int64, device=mask.device))


def nonzero(x, /) -> tuple[Array, ...]:
    """An Array of indices an axis: where x is not zero, in row-major order. Waits for a GPU."""
    if _array("nonzero", x).ndim == 0:
        raise InvalidShapeError("array.nonzero: of no axes; reshape((1,)) first")
    at, out = places_of(x.astype(types.bool, copy=False)), []
    for n in reversed(x.shape):
        out.append(at % n)
        at = at // n
    return tuple(reversed(out))


def _first(values: Array) -> Array:
    """Of sorted values, whether each differs from the one before. NaNs all differ."""
    head = ones((min(1, values.size),), dtype=types.bool, device=values.device)
    return concat([head, not_equal(values[1:], values[:-1])]) if values.size > 1 else head


def unique_values(x, /) -> Array:
    """The different values, in order; each NaN is one. Waits for a GPU."""
    values = sort(_array("unique_values", x).reshape(-1))
    return take(values, places_of(_first(values)))


def _groups(call: str, x):
    flat = _array(call, x).reshape(-1)
    order = argsort(flat)
    values = take(flat, order)
    first = _first(values)
    return order, values, first, places_of(first)


def _inverse(x, order, first) -> Array:
    return take(cumulative_sum(first.astype(types.int64)) - 1, argsort(order)).reshape(x.shape)


def _counts(x, starts) -> Array:
    ends = concat([starts, arange(x.size, x.size + 1, dtype=types.int64, device=x.device)])
    return ends[1:] - ends[:-1]


def unique_counts(x, /) -> UniqueCounts:
    """(values, counts). Waits for a GPU."""
    _, values, _, starts = _groups("unique_counts", x)
    return UniqueCounts(take(values, starts), _counts(x, starts))


def unique_inverse(x, /) -> UniqueInverse:
    """(values, inverse_indices): x is take(values, inverse_indices). Waits for a GPU."""
    order, values, first, starts = _groups("unique_inverse", x)
    return UniqueInverse(take(values, starts), _inverse(x, order, first))


def unique_all(x, /) -> UniqueAll:
    """(values, indices, inverse_indices, counts); `indices` is where each value stands first. Waits for a GPU."""
    order, values, first, starts = _groups("unique_all", x)
    return UniqueAll(take(values, starts), take(order, starts), _inverse(x, order, first), _counts(x, starts))


class MaskError(InvalidShapeError, IndexError):
    """A mask of another shape: an InvalidShapeError and, as the standard asks, an IndexError."""


def masked(x: Array, mask: Array) -> Array:
    """x[mask]: the elements, or rows of them, where a mask of x's first axes is true. An axis of the mask without elements picks nothing."""
    if mask.ndim > x.ndim or not all(m in (n, 0) for m, n in zip(mask.shape, x.shape)):
        raise MaskError(f"array: a mask of {mask.shape} over {x.shape}: wanted its first axes' shape")
    if mask.size == 0:
        return empty((0, *x.shape[mask.ndim:]), x.dtype, x.device)
    return take(x.reshape((mask.size, *x.shape[mask.ndim:])), places_of(mask), axis=0)


def picked(x: Array, key: tuple) -> Array:
    """x[i, j, ...] by an integer or an Array of integers an axis, broadcast with one another."""
    if len(key) != x.ndim:
        raise InvalidShapeError(f"array: {len(key)} indices of {x.ndim} axes; with Arrays there is one an axis, or take() along one")
    flat = None
    for n, k in zip(x.shape, key):
        at = k if isinstance(k, Array) else arange(k, k + 1, dtype=types.int64, device=x.device)[0]
        if at.device != x.device:
            raise InvalidDTypeError(f"array: an index is on {at.device}, the array on {x.device}")
        place = take(arange(n, dtype=types.int64, device=x.device), at.reshape(-1)).reshape(at.shape)  # from the end, and in range
        flat = place if flat is None else flat * n + place
    return take(x.reshape(-1), flat.reshape(-1)).reshape(flat.shape)
