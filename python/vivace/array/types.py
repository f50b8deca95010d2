"""Element types: names of the op table ("f32", "bf16") and three more, what holds what, and what an array library is asked about itself."""
from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable
from typing import Any

from vivace import _core
from vivace._core import Array, DType, dtype
from vivace.errors import InvalidDTypeError

bool = dtype("bool")
uint8, uint16, uint32, uint64 = dtype("u8"), dtype("u16"), dtype("u32"), dtype("u64")
int8, int16, int32, int64 = dtype("i8"), dtype("i16"), dtype("i32"), dtype("i64")
float16, bfloat16, float32, float64 = dtype("f16"), dtype("bf16"), dtype("f32"), dtype("f64")

SIGNED, UNSIGNED = (int8, int16, int32, int64), (uint8, uint16, uint32, uint64)
REAL = (float16, bfloat16, float32, float64)
KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (bool,), "signed integer": SIGNED, "unsigned integer": UNSIGNED, "integral": SIGNED + UNSIGNED, "real floating": REAL,
    "complex floating": (), "numeric": SIGNED + UNSIGNED + REAL,
}
ARITHMETIC = (bool, *KINDS["numeric"])
LONG = {"bool": bool, "int8": int8, "int16": int16, "int32": int32, "int64": int64, "uint8": uint8, "uint16": uint16, "uint32": uint32, "uint64": uint64,
        "float32": float32, "float64": float64}


@dataclasses.dataclass(frozen=True)
class FloatInfo:
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclasses.dataclass(frozen=True)
class IntInfo:
    bits: int
    max: int
    min: int
    dtype: DType


def named(name: str) -> DType:
    """For pickle: its functions are Python's."""
    return dtype(name)


def dtype_of(x) -> DType:
    return x.dtype if isinstance(x, Array) else dtype(x)


def finfo(type, /) -> FloatInfo:
    d = dtype_of(type)
    if d not in REAL:
        raise InvalidDTypeError(f"array.finfo: wanted a float dtype, got {d!r}")
    mantissa, least = {float16: (10, -14), bfloat16: (7, -126), float32: (23, -126), float64: (52, -1022)}[d]
    most = (2 - 2.0**-mantissa) * 2.0 ** (1 - least)
    return FloatInfo(8 * d.itemsize, 2.0**-mantissa, most, -most, 2.0**least, d)


def iinfo(type, /) -> IntInfo:
    d = dtype_of(type)
    if d not in SIGNED + UNSIGNED:
        raise InvalidDTypeError(f"array.iinfo: wanted an integer dtype, got {d!r}")
    n = 8 * d.itemsize - (d in SIGNED)
    return IntInfo(8 * d.itemsize, 2**n - 1, -(2**n) if d in SIGNED else 0, d)


def isdtype(dtype, kind) -> builtins.bool:
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if kind in KINDS and kind != bool:
        return dtype in KINDS[kind]
    if kind not in ARITHMETIC:
        raise InvalidDTypeError(f"array.isdtype: no kind {kind!r}; there are {', '.join(KINDS)} and the dtypes")
    return dtype == kind


def can_cast(from_, to, /) -> builtins.bool:
    """Whether promotion takes `from_` to `to`: no value is lost."""
    a = dtype_of(from_)
    try:
        return _core.array_promote(a, to) == to
    except InvalidDTypeError:
        if a not in ARITHMETIC or to not in ARITHMETIC:
            raise
        return False


def result_type(*arrays_and_dtypes) -> DType:
    """The dtype that arithmetic gives: arrays and dtypes are promoted first, Python numbers then follow."""
    strong = [dtype_of(x) for x in arrays_and_dtypes if isinstance(x, (Array, str, DType))]
    weak = [x for x in arrays_and_dtypes if not isinstance(x, (Array, str, DType))]
    if not strong or any(not isinstance(x, (int, float)) for x in weak):
        raise InvalidDTypeError("array.result_type: wanted Arrays, dtypes and Python numbers, one Array or dtype among them")
    found = strong[0]
    for d in strong:
        found = _core.array_promote(found, d)
    for x in weak:
        if isinstance(x, float) and found not in REAL:
            raise InvalidDTypeError(f"array.result_type: {found} with a Python float: astype() the array first, or give an integer")
        if not isinstance(x, builtins.bool) and found == bool:
            found = int64
    return found


def astype(x, dtype, /, *, copy=True, device=None) -> Array:
    return x.astype(dtype, copy=copy, device=device)


class Info:
    """What __array_namespace_info__() answers."""

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 6}

    def default_device(self) -> str:
        return default_device()

    def default_dtypes(self, *, device=None) -> dict[str, DType | None]:
        return {"real floating": float32, "complex floating": None, "integral": int64, "indexing": int64}

    def dtypes(self, *, device=None, kind=None) -> dict[str, DType]:
        """The standard's; float16 and bfloat16 are beside it."""
        return {n: d for n, d in LONG.items() if kind is None or isdtype(d, kind)}

    def devices(self) -> list[str]:
        return ["cpu", *(f"cuda:{i}" for i in range(gpus()))]


def gpus() -> int:
    from vivace import device
    try:
        return device.count()
    except _core.UnsupportedError:
        return 0


default_device: Callable[[], str] = lambda: "cuda"  # noqa: E731  (creation has the word)


def __array_namespace_info__() -> Info:
    return Info()
