"""Random numbers of a counter and a key: the same on every device, whatever threads, shapes before it or machines."""
from __future__ import annotations

import functools
import math

from vivace._core import Array, ArrayProgram, array_cast_function, array_functions, array_index, array_most_operands
from vivace.array import creation, types
from vivace.errors import InvalidArgumentError, InvalidDTypeError
from vivace.options import dims, one

U32, U64, I64, F32, F64 = types.uint32, types.uint64, types.int64, types.float32, types.float64


class _Steps:
    """A program that begins with 64 bits of Philox an element; operands 0 and 1 are the first counter and the key."""

    def __init__(self, operands):
        self.operands, self.steps = (U64, U64, *operands), []
        number = self.cast(array_index, I64, U64)
        self.bits = self.call("philox", U64, self.call("add", U64, number, 0), 1)

    def _step(self, f, kind, source, registers):
        self.steps.append((f, kind, source, *registers, *(registers[0],) * (3 - len(registers))))
        return array_most_operands + len(self.steps) - 1

    def call(self, name, kind, *registers):
        return self._step(array_functions[name][0], kind, kind, registers)

    def cast(self, register, source, to):
        return register if source == to else self._step(array_cast_function, to, source, [register])

    def program(self, register, kind, to):
        self.cast(register, kind, to)
        return ArrayProgram(list(self.operands), self.steps, to)


@functools.cache
def _uniform(to) -> ArrayProgram:
    wide = F64 if to == F64 else F32
    s = _Steps((U64, wide, wide, wide))  # the bits that go, their unit, high - low, low
    unit = s.call("multiply", wide, s.cast(s.call("bitwise_right_shift", U64, s.bits, 2), U64, wide), 3)
    return s.program(s.call("add", wide, s.call("multiply", wide, unit, 4), 5), wide, to)


@functools.cache
def _normal(to) -> ArrayProgram:
    """Box and Muller: sqrt(-2 log(u)) cos(2 pi v) of 32 bits each, u at the middle of its step, and never 0."""
    wide = F64 if to == F64 else F32
    s = _Steps((U64, wide, wide, wide, wide, wide))  # 32, a step, half of one, 2 pi of one, the deviation, the mean
    u = s.call("add", wide, s.call("multiply", wide, s.cast(s.call("bitwise_right_shift", U64, s.bits, 2), U64, wide), 3), 4)
    angle = s.call("multiply", wide, s.cast(s.cast(s.bits, U64, U32), U32, wide), 5)
    log = s.call("log", wide, u)
    radius = s.call("sqrt", wide, s.call("abs", wide, s.call("add", wide, log, log)))
    value = s.call("multiply", wide, radius, s.call("cos", wide, angle))
    return s.program(s.call("add", wide, s.call("multiply", wide, value, 6), 7), wide, to)


@functools.cache
def _integers(to) -> ArrayProgram:
    s = _Steps((U64, I64))  # how many values, the least
    value = s.cast(s.call("remainder", U64, s.bits, 2), U64, I64)
    return s.program(s.call("add", I64, value, 3), I64, to)


class Generator:
    """Numbers of Philox4x32-10 with the key `seed` (0 to 2^64 - 1): element i of a draw is made of counter `offset` + i alone, and the draw moves
    `offset` on by its size. So a Generator of the same seed and offset draws the same numbers on the CPU and on CUDA: uniform and integers to
    the bit, normal to the last places of the device's log and cos."""

    def __init__(self, seed: int, offset: int = 0):
        for name, value in (("seed", seed), ("offset", offset)):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
                raise InvalidArgumentError(f"array.random.Generator: {name}: wanted an integer of 0 to 2^64 - 1, got {value!r}")
        self.seed, self.offset = seed, offset

    def _draw(self, program: ArrayProgram, numbers: list, shape, device) -> Array:
        axes = one("random", "shape", dims, [shape] if isinstance(shape, int) else shape)
        made = program.create([self.offset, self.seed, *numbers], axes, creation.get_default_device() if device is None else device)
        self.offset = (self.offset + made.size) % 2**64
        return made

    def _real(self, call: str, dtype, **numbers):
        kind = types.dtype_of(dtype)
        if kind not in types.REAL:
            raise InvalidDTypeError(f"array.random.{call}: dtype: wanted a float, got {kind}")
        for name, value in numbers.items():
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise InvalidArgumentError(f"array.random.{call}: {name}: wanted a finite number, got {value!r}")
        return kind

    def uniform(self, low: float = 0.0, high: float = 1.0, shape=(), *, dtype="f32", device=None) -> Array:
        """low + (high - low) u, u of [0, 1) in steps of 2^-24 (f64: 2^-53). f16 and bf16 are rounded from f32: `high` may come out."""
        kind = self._real("uniform", dtype, low=low, high=high)
        if not high >= low:
            raise InvalidArgumentError(f"array.random.uniform: high {high} is below low {low}")
        bits = 53 if kind == F64 else 24
        return self._draw(_uniform(kind), [64 - bits, 2.0**-bits, float(high) - float(low), float(low)], shape, device)

    def normal(self, mean: float = 0.0, std: float = 1.0, shape=(), *, dtype="f32", device=None) -> Array:
        """mean + std z, z of the standard normal distribution, made of 64 bits: at most 6.8 in size."""
        kind = self._real("normal", dtype, mean=mean, std=std)
        if std < 0:
            raise InvalidArgumentError(f"array.random.normal: std is {std}, wanted 0 or more")
        return self._draw(_normal(kind), [32, 2.0**-32, 2.0**-33, 2 * math.pi * 2.0**-32, float(std), float(mean)], shape, device)

    def integers(self, low: int, high: int, shape=(), *, dtype="i64", device=None) -> Array:
        """Of [low, high), at most 2^32 different ones: each is at most 2^-32 more likely than another, relatively."""
        kind = types.dtype_of(dtype)
        if kind not in types.KINDS["integral"]:
            raise InvalidDTypeError(f"array.random.integers: dtype: wanted an integer, got {kind}")
        info = types.iinfo(kind)
        if not isinstance(low, int) or not isinstance(high, int) or not 0 < high - low <= 2**32:
            raise InvalidArgumentError(f"array.random.integers: wanted integers low < high, at most 2^32 apart, got {low!r} and {high!r}")
        if low < info.min or high - 1 > info.max or high - 1 >= 2**63:
            raise InvalidArgumentError(f"array.random.integers: {low} to {high - 1} do not fit {kind}" + (" (of u64 the lower half)" if kind == U64 else ""))
        return self._draw(_integers(kind), [high - low, low], shape, device)

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, offset={self.offset})"
