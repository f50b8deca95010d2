"""Shapes: views where strides can say it, copies where they cannot."""
from __future__ import annotations

import builtins
from collections.abc import Sequence

from vivace import _core
from vivace._core import Array
from vivace.array import types
from vivace.array.creation import empty, full
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError, UnsupportedError


class AxisError(InvalidArgumentError, IndexError):
    """An axis that is not there: an InvalidArgumentError and, as the standard asks, an IndexError."""


def _axis(call: str, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise AxisError(f"array.{call}: axis {axis} of an array of {rank} axes")
    return axis % rank


def _axes(axis) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else tuple(axis)


def reshape(x, /, shape, *, copy=None) -> Array:
    return x.reshape(shape, copy=copy)


def permute_dims(x, /, axes) -> Array:
    return _core.array_permute(x, list(axes))


def matrix_transpose(x, /) -> Array:
    return x.mT


def moveaxis(x, source, destination, /) -> Array:
    come, go = _axes(source), _axes(destination)
    if len(come) != len(go):
        raise InvalidArgumentError(f"array.moveaxis: {len(come)} axes to {len(go)} places")
    come, go = [tuple(_axis("moveaxis", a, x.ndim) for a in axes) for axes in (come, go)]
    order = [a for a in range(x.ndim) if a not in come]
    for to, a in sorted(zip(go, come)):
        order.insert(to, a)
    return permute_dims(x, order)


def expand_dims(x, /, axis=0) -> Array:
    axes = sorted(_axis("expand_dims", a, x.ndim + len(_axes(axis))) for a in _axes(axis))
    if len(set(axes)) != len(axes):
        raise InvalidArgumentError("array.expand_dims: an axis is named twice")
    return x[tuple(None if i in axes else slice(None) for i in range(x.ndim + len(axes)))]


def squeeze(x, /, axis) -> Array:
    axes = {_axis("squeeze", a, x.ndim) for a in _axes(axis)}
    if wrong := [a for a in axes if x.shape[a] != 1]:
        raise InvalidShapeError(f"array.squeeze: axis {wrong[0]} of {x.shape} has {x.shape[wrong[0]]} elements")
    return x[tuple(0 if i in axes else slice(None) for i in range(x.ndim))]


def flip(x, /, *, axis=None) -> Array:
    return _core.array_flip(x, axis)


def broadcast_to(x, /, shape) -> Array:
    return _core.array_broadcast_to(x, shape)


def broadcast_arrays(*arrays) -> list[Array]:
    shape = _core.array_broadcast_shapes([list(a.shape) for a in arrays])
    return [_core.array_broadcast_to(a, shape) for a in arrays]


def concat(arrays, /, *, axis=0) -> Array:
    arrays = list(arrays)
    if not arrays:
        raise InvalidArgumentError("array.concat: wanted one Array or more")
    if axis is None:
        arrays, axis = [a.reshape(-1) for a in arrays], 0
    first = arrays[0]
    at = _axis("concat", axis, first.ndim)
    for a in arrays[1:]:
        if a.ndim != first.ndim or builtins.any(m != n for i, (m, n) in enumerate(zip(a.shape, first.shape)) if i != at):
            raise InvalidShapeError(f"array.concat: along axis {at}:\n    {first.shape}\n    {a.shape}")
    shape = list(first.shape)
    shape[at] = builtins.sum(a.shape[at] for a in arrays)
    made = empty(shape, types.result_type(*arrays), first.device)
    begin = 0
    for a in arrays:
        made[(*(slice(None),) * at, slice(begin, begin + a.shape[at]))] = a
        begin += a.shape[at]
    return made


def stack(arrays, /, *, axis=0) -> Array:
    arrays = list(arrays)
    if arrays and builtins.any(a.shape != arrays[0].shape for a in arrays):
        raise InvalidShapeError(f"array.stack: wanted one shape, got {[a.shape for a in arrays]}")
    return concat([expand_dims(a, axis=axis) for a in arrays], axis=axis)


def unstack(x, /, *, axis=0) -> tuple[Array, ...]:
    at = _axis("unstack", axis, x.ndim)
    return tuple(x[(*(slice(None),) * at, i)] for i in range(x.shape[at]))


def roll(x, /, shift, *, axis=None) -> Array:
    if axis is None:
        return roll(x.reshape(-1), shift, axis=0).reshape(x.shape)
    shifts, axes = _axes(shift), _axes(axis)
    if len(shifts) != len(axes) and len(shifts) != 1:
        raise InvalidArgumentError(f"array.roll: {len(shifts)} shifts of {len(axes)} axes")
    made = x
    for by, a in zip(shifts * (len(axes) if len(shifts) == 1 else 1), axes):
        at = _axis("roll", a, x.ndim)
        n = x.shape[at]
        if n and by % n:
            before, cut = (slice(None),) * at, n - by % n
            made = concat([made[(*before, slice(cut, None))], made[(*before, slice(None, cut))]], axis=at)
    return made.copy() if made is x else made


def repeat(x, repeats, /, *, axis=None) -> Array:
    """Each element so many times. Counts in an Array, one an element of the axis, wait for a GPU: they decide the shape."""
    if isinstance(repeats, Array) and repeats.size != 1:
        return _repeat_each(x, repeats, axis)
    n = int(repeats)
    if n < 0:
        raise InvalidArgumentError(f"array.repeat: {n} times")
    if axis is None:
        x, axis = x.reshape(-1), 0
    at = _axis("repeat", axis, x.ndim)
    shape = [*x.shape]
    shape[at] *= n
    before, after = _product(x.shape[:at]), _product(x.shape[at + 1:])
    return broadcast_to(x.reshape((before, x.shape[at], 1, after)), (before, x.shape[at], n, after)).copy().reshape(shape)


def _repeat_each(x, counts: Array, axis) -> Array:
    from vivace.array.creation import arange
    from vivace.array.reductions import cumulative_sum, searchsorted
    from vivace.array.reductions import min as least

    if axis is None:
        x, axis = x.reshape(-1), 0
    at = _axis("repeat", axis, x.ndim)
    if counts.shape != (x.shape[at],):
        raise InvalidShapeError(f"array.repeat: counts are {counts.shape}, axis {at} of {x.shape} has {x.shape[at]} elements")
    if counts.dtype not in (*types.SIGNED, *types.UNSIGNED):
        raise InvalidDTypeError(f"array.repeat: counts are {counts.dtype}, wanted integers")
    if counts.size and (low := int(least(counts))) < 0:
        raise InvalidArgumentError(f"array.repeat: {low} times")
    ends = cumulative_sum(counts.astype(types.int64))
    total = int(ends[-1]) if ends.size else 0
    return take(x, searchsorted(ends, arange(total, dtype=types.int64, device=x.device), side="right"), axis=at)


def _product(dims: Sequence[int]) -> int:
    n = 1
    for d in dims:
        n *= d
    return n


def tile(x, repetitions, /) -> Array:
    times = (1,) * (x.ndim - len(repetitions)) + tuple(repetitions)
    made = x.reshape((1,) * (len(times) - x.ndim) + x.shape)
    for at, n in enumerate(times):
        if n != 1:
            shape = made.shape
            before, after = _product(shape[:at]), _product(shape[at:])
            made = broadcast_to(made.reshape((before, 1, after)), (before, n, after)).copy().reshape((*shape[:at], n * shape[at], *shape[at + 1:]))
    return made.copy() if made is x else made


def take(x, indices, /, *, axis=None) -> Array:
    """Elements along one axis; negative indices count from the end, none may be out of range."""
    if axis is None:
        if x.ndim != 1:
            raise InvalidArgumentError(f"array.take: axis: wanted one of the {x.ndim} axes of {x.shape}, got None")
        axis = 0
    return _core.array_take(x, indices, axis, False)


def take_along_axis(x, indices, /, *, axis=-1) -> Array:
    return _core.array_take(x, indices, axis, True)


def pad(x, pad_width, /, *, mode="constant", constant_values=0) -> Array:
    """`pad_width`: one (before, after) an axis, or one for all, or a number. Mode "constant" alone."""
    if mode != "constant":
        raise UnsupportedError(f"array.pad: mode={mode!r}: constant alone; take() with indices pads by elements")
    if isinstance(pad_width, int):
        pad_width = (pad_width, pad_width)
    pairs = [tuple(pad_width)] * x.ndim if pad_width and isinstance(pad_width[0], int) else [tuple(p) for p in pad_width]
    if len(pairs) != x.ndim or builtins.any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise InvalidArgumentError(f"array.pad: pad_width={pad_width!r}: wanted a (before, after) for each of {x.ndim} axes")
    if isinstance(constant_values, float) and x.dtype not in types.REAL:
        raise InvalidDTypeError(f"array.pad: {constant_values} into {x.dtype}; astype() the array first")
    made = full([n + a + b for n, (a, b) in zip(x.shape, pairs)], constant_values, dtype=x.dtype, device=x.device)
    made[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, pairs))] = x
    return made
