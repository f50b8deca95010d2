"""What a function of arrays computes, found by calling it once with values that stand for arrays: for fuse() and reduction()."""
from __future__ import annotations

import builtins
from collections.abc import Callable

from vivace._core import (
    Array, ArrayProgram, DType, array_cast_function, array_functions, array_most_operands, array_most_steps, array_signature, dtype,
)
from vivace.array import types
from vivace.errors import Error, InvalidArgumentError, InvalidDTypeError, UnsupportedError

NARROW = (types.float16, types.bfloat16)
WHERE = array_functions["where"][0]
FIRST_STEP = array_most_operands  # registers below it are operands
Source = Callable[[tuple], object]  # an operand's value, of the arguments of a call


def refuse(what: str, instead: str) -> UnsupportedError:
    return UnsupportedError(f"array.fuse: {what} is not fused: {instead}")


class Number:
    """A Python number whose value comes with each call; arithmetic of numbers alone is Python's, at the call."""

    __slots__ = ("kind", "key", "of")
    __array_ufunc__ = None

    def __init__(self, kind: type, key: tuple, of: Callable[[tuple], float]):
        self.kind, self.key, self.of = kind, key, of

    def _with(self, word, f, other, turned=False):
        if isinstance(other, (bool, int, float)):
            other = constant(other)
        if not isinstance(other, Number):
            return NotImplemented
        x, y = (other, self) if turned else (self, other)
        kind = float if word == "/" or float in (x.kind, y.kind) else int
        return Number(kind, (word, x.key, y.key), lambda args: f(x.of(args), y.of(args)))

    def __add__(self, other):
        return self._with("+", lambda a, b: a + b, other)

    def __radd__(self, other):
        return self._with("+", lambda a, b: a + b, other, True)

    def __sub__(self, other):
        return self._with("-", lambda a, b: a - b, other)

    def __rsub__(self, other):
        return self._with("-", lambda a, b: a - b, other, True)

    def __mul__(self, other):
        return self._with("*", lambda a, b: a * b, other)

    def __rmul__(self, other):
        return self._with("*", lambda a, b: a * b, other, True)

    def __truediv__(self, other):
        return self._with("/", lambda a, b: a / b, other)

    def __rtruediv__(self, other):
        return self._with("/", lambda a, b: a / b, other, True)

    def __neg__(self):
        return 0 - self if self.kind is not float else -1.0 * self

    def __bool__(self):
        raise refuse("a choice by a number's value", "array.where(), or choose outside the function")

    __float__ = __int__ = __index__ = __bool__

    def _fused(self, f, given, out):
        raise InvalidDTypeError("array.fuse: a function of numbers alone: wanted an Array among the operands")


class Traced:
    """Stands for an Array while its function is called: its dtype and number of axes are known, its shape and values are not."""

    __slots__ = ("_trace", "_register", "dtype", "ndim")
    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, trace: Trace, register, kind: DType, ndim: int):
        self._trace, self._register, self.dtype, self.ndim = trace, register, kind, ndim

    def _fused(self, f: int, given: list, out):
        if out is not None:
            raise refuse("out=", "the function returns its result; fused(..., out=c) writes it into c")
        return self._trace.call(f, given)

    def _fused_fold(self, kind: str, axis, keepdims, to):
        return self._trace.fold(kind, self, axis, keepdims, to)

    def astype(self, dtype, *, copy=True, device=None):
        if device is not None:
            raise refuse("astype(device=)", "to_device() outside the function")
        return self._trace.cast(self, types.dtype_of(dtype))

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise refuse(f"x.{name}", "only elementwise functions and a reduction at the end are; use it outside the function")

    def _refused(name, instead):  # noqa: N805 - makes methods
        def method(self, *given):
            raise refuse(name, instead)

        return method

    __bool__ = _refused("a choice by an array's values", "array.where()")
    __float__ = __int__ = __index__ = __complex__ = _refused("a Python number of an array", "keep the array")
    __len__ = __iter__ = _refused("an array's length", "the function is traced for every shape; pass it as a number")
    __getitem__ = __setitem__ = _refused("indexing", "index outside the function")
    __matmul__ = __rmatmul__ = _refused("@", "multiply outside the function")
    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = (
        _refused("an operation in place", "write x = x + y"))
    del _refused


class Folded:
    """A reduction: the last thing that a function does."""

    def __init__(self, trace: Trace, value: Traced, kind: str, axes: list[int], keepdims: bool, to: DType):
        self.trace, self.value, self.kind, self.axes, self.keepdims, self.to = trace, value, kind, axes, keepdims, to

    def _refused(self, *given):
        raise refuse("what follows a reduction", "a reduction is the last thing of a fused function; go on outside it")

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        self._refused()

    _fused = _fused_fold = _refused
    __hash__ = None
    __array_ufunc__ = None


def _operators():
    """Those of Array, from the table."""
    def binary(f, turned):
        return lambda self, other: self._trace.call(f, [other, self] if turned else [self, other])

    for word, name in (("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("truediv", "divide"), ("floordiv", "floor_divide"), ("mod", "remainder"),
                       ("pow", "pow"), ("and", "bitwise_and"), ("or", "bitwise_or"), ("xor", "bitwise_xor"), ("lshift", "bitwise_left_shift"),
                       ("rshift", "bitwise_right_shift")):
        f = array_functions[name][0]
        setattr(Traced, f"__{word}__", binary(f, False))
        setattr(Traced, f"__r{word}__", binary(f, True))
        setattr(Folded, f"__{word}__", Folded._refused)
        setattr(Folded, f"__r{word}__", Folded._refused)
    for word, name in (("eq", "equal"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal")):
        setattr(Traced, f"__{word}__", binary(array_functions[name][0], False))
        setattr(Folded, f"__{word}__", Folded._refused)
    for word, name in (("neg", "negative"), ("pos", "positive"), ("abs", "abs"), ("invert", "bitwise_invert")):
        def unary(self, f=array_functions[name][0]):
            return self._trace.call(f, [self])

        setattr(Traced, f"__{word}__", unary)
        setattr(Folded, f"__{word}__", Folded._refused)


_operators()


class Trace:
    """The operands and steps of one function, in the order in which they came."""

    def __init__(self):
        self.slots: dict[tuple, int] = {}            # what an operand is -> its register
        self.operands: list[DType] = []
        self.sources: list[Source] = []
        self.steps: list[tuple] = []
        self._made: dict[tuple, int] = {}            # a step -> its register: what is computed twice is computed once

    def leaf(self, argument: int, kind: DType, ndim: int) -> Traced:
        return Traced(self, ("argument", argument), kind, ndim)

    def pinned(self, kind: DType) -> Traced:
        """An operand that the program has whether it uses it or not."""
        return Traced(self, self._slot(("pinned", len(self.operands)), kind, lambda args: None), kind, 0)

    def _slot(self, key: tuple, kind: DType, source: Source) -> int:
        if (at := self.slots.get((key, kind))) is None:
            if len(self.operands) == array_most_operands:
                raise UnsupportedError(f"array.fuse: more than {array_most_operands} operands (arrays, numbers and constants of one dtype): split the function")
            at = self.slots[key, kind] = len(self.operands)
            self.operands.append(kind)
            self.sources.append(source)
        return at

    def _step(self, f: int, kind: DType, source: DType, registers: list[int]) -> int:
        step = (f, kind, source, *registers, *(registers[0],) * (3 - len(registers)))
        if (at := self._made.get(step)) is None:
            if len(self.steps) == array_most_steps:
                raise UnsupportedError(f"array.fuse: more than {array_most_steps} functions and casts: split the function")
            at = self._made[step] = FIRST_STEP + len(self.steps)
            self.steps.append(step)
        return at

    def register(self, x: Traced) -> int:
        if not isinstance(x._register, tuple):
            return x._register
        _, argument = x._register
        return self._slot(x._register, x.dtype, lambda args: args[argument])

    def cast(self, x: Traced, to: DType) -> Traced:
        if to == x.dtype:
            return x
        if to not in types.ARITHMETIC:
            raise InvalidDTypeError(f"array.fuse: astype({to}): it stores, and has no arithmetic")
        return Traced(self, self._step(array_cast_function, to, x.dtype, [self.register(x)]), to, x.ndim)

    def call(self, f: int, given: list) -> Traced:
        kinds: list = []
        for x in given:
            if isinstance(x, Array):
                raise refuse("an Array that is no argument", "pass it to the function")
            if isinstance(x, Folded):
                x._refused()
            if isinstance(x, Traced) and x._trace is not self:
                raise refuse("a value of another fused function", "fused functions do not call one another; leave one plain")
            if not isinstance(x, (Traced, Number, bool, int, float)):
                raise InvalidDTypeError(f"array.fuse: wanted an Array or a Python number, got {type(x).__name__}")
            kinds.append(x.dtype if isinstance(x, Traced) else x.kind if isinstance(x, Number) else bool if isinstance(x, bool) else int if isinstance(x, int) else float)
        compute, result = array_signature(f, kinds)
        registers = []
        for k, x in enumerate(given):
            want = types.bool if f == WHERE and k == 0 else compute
            if isinstance(x, Traced):
                registers.append(self.register(self.cast(x, want)))
            else:
                number = x if isinstance(x, Number) else constant(x)
                registers.append(self._slot(number.key, want, number.of))
        ndim = builtins.max(x.ndim for x in given if isinstance(x, Traced))
        return Traced(self, self._step(f, compute, compute, registers), result, ndim)

    def fold(self, kind: str, x: Traced, axis, keepdims: bool, to) -> Folded:
        to = x.dtype if to is None else types.dtype_of(to)
        axes = list(range(x.ndim)) if axis is None else [axis] if isinstance(axis, int) else list(axis)
        for a in axes:
            if not isinstance(a, int) or not -x.ndim <= a < x.ndim:
                raise InvalidArgumentError(f"array.{kind}: axis {a} of an array of {x.ndim} axes")
        axes = [a % x.ndim for a in axes]
        if len(set(axes)) != len(axes):
            raise InvalidArgumentError(f"array.{kind}: an axis is named twice")
        return Folded(self, self.cast(x, types.float32 if to in NARROW else to), kind, axes, keepdims, types.int64 if kind.startswith("arg") else to)

    def program(self, x: Traced, pinned: int = 0) -> tuple[ArrayProgram, list[Source]]:
        """Of x, and what its operands are. What was computed and is not used is left out; the first `pinned` operands stay."""
        root = self.register(x)
        order: list[int] = []

        def visit(register):
            if register in order:
                return
            if register >= FIRST_STEP:
                for r in self.steps[register - FIRST_STEP][3:]:
                    visit(r)
            order.append(register)

        visit(root)
        operands = sorted({r for r in order if r < FIRST_STEP} | set(range(pinned)))
        steps = [r for r in order if r >= FIRST_STEP]
        at = {r: i for i, r in enumerate(operands)} | {r: FIRST_STEP + i for i, r in enumerate(steps)}
        made = [(*self.steps[r - FIRST_STEP][:3], *(at[s] for s in self.steps[r - FIRST_STEP][3:])) for r in steps]
        return ArrayProgram([self.operands[r] for r in operands], made, x.dtype), [self.sources[r] for r in operands]


ARRAYS = (Array, Traced)


def constant(value) -> Number:
    kind = next(k for k in (bool, int, float) if isinstance(value, k))
    return Number(kind, ("constant", kind.__name__, repr(value)), lambda args: value)


def kinds_of(args: tuple, call: str) -> tuple:
    """What a trace depends on: an Array's dtype and axes, a number's type."""
    found = []
    for x in args:
        kind = (x.dtype, x.ndim) if type(x) is Array else next((k for k in (bool, int, float) if isinstance(x, k)), None)
        if kind is None:
            raise InvalidDTypeError(f"array.{call}: wanted Arrays and Python numbers, got {type(x).__name__}")
        found.append(kind)
    return tuple(found)


def leaves(trace: Trace, kinds: tuple, call: str) -> list:
    def number(i, kind):
        return Number(kind, ("argument", i), lambda args: args[i])

    if not any(isinstance(k, tuple) for k in kinds):
        raise InvalidDTypeError(f"array.{call}: wanted an Array among the operands")
    return [trace.leaf(i, *k) if isinstance(k, tuple) else number(i, k) for i, k in enumerate(kinds)]


def traced(function: Callable, values: list, call: str):
    """What the function returns of such values. A refusal keeps its words; what Python does not do with them is one, too."""
    try:
        return function(*values)
    except (AttributeError, TypeError) as e:
        if isinstance(e, Error) and Traced.__name__ not in str(e):
            raise
        why = str(e).split(". ")[0]  # of a signature that does not fit, not the signature
        raise UnsupportedError(f"array.{call}: {getattr(function, '__name__', 'the function')}() does what is not fused: {why}") from e
