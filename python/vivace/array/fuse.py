"""Several functions of arrays in one pass: fuse(). A reduction of one's own: reduction()."""
from __future__ import annotations

import functools
from collections.abc import Callable

from vivace._core import Array
from vivace.array import types
from vivace.array.trace import NARROW, Folded, Trace, Traced, kinds_of, leaves, traced
from vivace.errors import InvalidArgumentError, InvalidDTypeError, UnsupportedError


class FusedFunction:
    """What fuse() makes: called as the function itself, with Arrays and Python numbers by position."""

    def __init__(self, function: Callable):
        if not callable(function):
            raise InvalidArgumentError(f"array.fuse: wanted a function, got {function!r}")
        functools.update_wrapper(self, function)
        self._function, self._made = function, {}

    def __call__(self, *args, out=None) -> Array:
        kinds = kinds_of(args, "fuse")
        run = self._made.get(kinds)
        if run is None:
            run = self._made[kinds] = self._trace(kinds)
        return run(args, out)

    def _trace(self, kinds: tuple) -> Callable[[tuple, Array | None], Array]:
        trace = Trace()
        value = traced(self._function, leaves(trace, kinds, "fuse"), "fuse")
        if isinstance(value, Traced):
            program, sources = trace.program(value)
            return lambda args, out: program.map([s(args) for s in sources], out)
        if not isinstance(value, Folded):
            raise UnsupportedError(f"array.fuse: {self._name()} returns {type(value).__name__}: wanted one value, computed of its Arrays")
        program, sources = trace.program(value.value)

        def fold(args, out):
            if out is not None:
                raise UnsupportedError("array.fuse: out= of a reduction: assign out[...] = what it returns")
            return program.fold(value.kind, [s(args) for s in sources], value.axes, value.keepdims, value.to)

        return fold

    def _name(self) -> str:
        return f"{getattr(self._function, '__name__', 'the function')}()"

    def __repr__(self) -> str:
        return f"FusedFunction({self._name()})"


def fuse(function: Callable) -> FusedFunction:
    """A decorator: the elementwise functions of `function`, and a reduction at its end, run as one kernel, without temporaries. It is called
    once for the dtypes and numbers of axes of its arguments, with values that stand for Arrays; later calls only run the kernel. The result is
    that of the function by itself, dtypes, rounding and all; `out=` is written. What has no place in one pass is refused by name: choices by
    values, shapes, indexing, products, operations in place, what follows a reduction. Errors: Unsupported, and those of the functions."""
    return FusedFunction(function)


class ReductionKernel:
    """What reduction() makes: called with Arrays and Python numbers, as its map is, and axis and keepdims."""

    def __init__(self, map: Callable, combine: Callable, finish: Callable | None, identity):
        for name, function in (("map", map), ("combine", combine), ("finish", finish)):
            if not callable(function) and not (name == "finish" and function is None):
                raise InvalidArgumentError(f"array.reduction: {name}: wanted a function of Arrays, got {function!r}")
        if not isinstance(identity, (bool, int, float)):
            raise InvalidArgumentError(f"array.reduction: identity: wanted a Python number, got {identity!r}")
        self._map, self._combine, self._identity = map, combine, identity
        self._finish = None if finish is None else FusedFunction(finish)
        self._made: dict[tuple, tuple] = {}

    def __call__(self, *args, axis=None, keepdims=False) -> Array:
        kinds = kinds_of(args, "reduction")
        if (made := self._made.get(kinds)) is None:
            made = self._made[kinds] = self._trace(kinds)
        program, sources, ndim, combine, constants = made
        axes = Trace().fold("reduction", Traced(Trace(), 0, types.float32, ndim), axis, keepdims, None).axes
        value = program.reduce(combine, constants, self._identity, [s(args) for s in sources], axes, keepdims)
        return value if self._finish is None else self._finish(value)

    def _trace(self, kinds: tuple) -> tuple:
        trace, joins = Trace(), Trace()
        value = traced(self._map, leaves(trace, kinds, "reduction"), "reduction")
        if not isinstance(value, Traced):
            raise UnsupportedError(f"array.reduction: map returns {type(value).__name__}: wanted a value computed of its Arrays")
        value = trace.cast(value, types.float32) if value.dtype in NARROW else value
        two = [joins.pinned(value.dtype) for _ in range(2)]
        joined = traced(self._combine, two, "reduction")
        if not isinstance(joined, Traced) or any(joined is x for x in two):
            raise UnsupportedError("array.reduction: combine: wanted a value computed of both of its arguments")
        if joined.dtype != value.dtype:
            raise InvalidDTypeError(f"array.reduction: combine gives {joined.dtype} of two {value.dtype}: map must give what combine keeps")
        program, sources = trace.program(value)
        combine, constants = joins.program(joined, 2)
        return program, sources, value.ndim, combine, [s(()) for s in constants[2:]]

    def __repr__(self) -> str:
        return "ReductionKernel()"


def reduction(map: Callable, combine: Callable, finish: Callable | None, identity) -> ReductionKernel:
    """A reduction by functions of your own: `reduction(lambda x, y: x * y, lambda a, b: a + b, array.sqrt, 0.0)`. `map` gives a value of each
    element of the operands, which are broadcast; `combine` joins two such values, in any order: it is associative and commutative, and keeps
    their dtype; `identity` changes nothing by it, and is the value of no elements; `finish` is applied to what is left. What map gives in f16 or
    bf16 is combined in f32. All three are made of the functions of vivace.array, as fuse() takes them. On the CPU and on CUDA, without atomics:
    the same shapes give the same bits. Errors: those of fuse(), InvalidDType where combine changes the dtype."""
    return ReductionKernel(map, combine, finish, identity)
