"""Arrays from nothing, from Python's lists, from NumPy and from other libraries."""
from __future__ import annotations

import builtins
import math

from vivace import _core
from vivace._core import Array
from vivace.array import types
from vivace.array.elementwise import where
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError
from vivace.options import dims, one, text

_default = "cuda"


def set_default_device(device: str) -> None:
    """Where functions without device= make arrays from now on: "cuda" at first, "cuda:1", "cpu"."""
    global _default
    _core.Array._make([0], "u8", device, False)  # it must be there
    _default = device


def get_default_device() -> str:
    return _default


types.default_device = get_default_device


def _made(call, shape, dtype, device, zeroed) -> Array:
    axes = one(call, "shape", dims, [shape] if isinstance(shape, int) else shape)
    return Array._make(axes, dtype if isinstance(dtype, types.DType) else one(call, "dtype", text, dtype), one(call, "device", text, _default if device is None else device), zeroed)


def empty(shape, dtype="f32", device=None) -> Array:
    """An Array with whatever was in the memory. `dtype` as in the op table: "f32", "bf16", "e4m3", ..."""
    return _made("empty", shape, dtype or "f32", device, False)


def zeros(shape, dtype="f32", device=None) -> Array:
    return _made("zeros", shape, dtype or "f32", device, True)


def from_numpy(host, device="cuda") -> Array:
    """A copy of contiguous host memory (NumPy, vivace.View, or host DLPack), finished when this returns."""
    return Array._from_numpy(host, one("from_numpy", "device", text, device))


def from_dlpack(x, /, *, device=None, copy=None) -> Array:
    """The same memory as another library's tensor, which stays alive with the Array, with its strides."""
    return Array._from_dlpack(x, device, copy)


def _kind(value) -> types.DType:
    if isinstance(value, builtins.bool):
        return types.bool
    return types.float32 if isinstance(value, float) else types.int64


def full(shape, fill_value, *, dtype=None, device=None) -> Array:
    """Python's True, 1 and 1.0 make bool, i64 and f32 where no dtype is named."""
    if isinstance(fill_value, Array):
        dtype, fill_value = dtype or fill_value.dtype, fill_value.item()
    if not isinstance(fill_value, (int, float)):
        raise InvalidDTypeError(f"array.full: wanted a Python number, got {type(fill_value).__name__}")
    made = _made("full", shape, dtype or _kind(fill_value), device, False)
    made[...] = fill_value
    return made


def ones(shape, *, dtype="f32", device=None) -> Array:
    return full(shape, 1, dtype=dtype or "f32", device=device)


def empty_like(x, /, *, dtype=None, device=None) -> Array:
    return empty(x.shape, dtype or x.dtype, device or x.device)


def zeros_like(x, /, *, dtype=None, device=None) -> Array:
    return zeros(x.shape, dtype or x.dtype, device or x.device)


def ones_like(x, /, *, dtype=None, device=None) -> Array:
    return full(x.shape, 1, dtype=dtype or x.dtype, device=device or x.device)


def full_like(x, /, fill_value, *, dtype=None, device=None) -> Array:
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def asarray(obj, /, *, dtype=None, device=None, copy=None) -> Array:
    """An Array, as it is where it can be; a Python number; nested lists of them; NumPy and what has __dlpack__ (a copy, but with copy=False)."""
    if isinstance(obj, Array):
        where_to = obj.device if device is None else device
        if copy is False and (dtype not in (None, obj.dtype) or where_to != obj.device):
            raise InvalidArgumentError(f"array.asarray: copy=False: {obj.dtype} on {obj.device} is not {dtype or obj.dtype} on {where_to}")
        made = obj if where_to == obj.device else obj.to_device(where_to)
        if dtype not in (None, made.dtype):
            return made.astype(dtype)
        return made.copy() if copy and made is obj else made
    if isinstance(obj, (int, float)):
        return full((), obj, dtype=dtype, device=device)
    if isinstance(obj, complex):
        raise InvalidDTypeError("array.asarray: complex numbers have no dtype here; keep real and imaginary parts in two arrays")
    if isinstance(obj, (list, tuple)):
        return _from_lists(obj, dtype, device)
    made = from_dlpack(obj, copy=copy) if copy is False else _copied(obj, device)
    return made if dtype in (None, made.dtype) else made.astype(dtype)


def _copied(obj, device) -> Array:
    if hasattr(obj, "__dlpack__") or hasattr(obj, "__array__"):
        if hasattr(obj, "__array__"):
            import numpy
            obj = numpy.ascontiguousarray(obj).reshape(numpy.shape(obj))
        return Array._from_numpy(obj, _default if device is None else device)
    try:
        view = memoryview(obj)
    except TypeError:
        raise InvalidDTypeError(f"array.asarray: wanted an Array, a number, lists of numbers, NumPy or DLPack, got {type(obj).__name__}") from None
    import numpy
    return Array._from_numpy(numpy.ascontiguousarray(view), _default if device is None else device)


def _shape(obj) -> tuple[int, ...]:
    if isinstance(obj, Array):
        return obj.shape
    if not isinstance(obj, (list, tuple)):
        return ()
    inner = {_shape(x) for x in obj}
    if len(inner) > 1:
        raise InvalidShapeError(f"array.asarray: lists of one shape are wanted, inside are {' and '.join(map(str, sorted(inner)))}")
    return (len(obj), *(inner.pop() if inner else ()))


def _leaves(obj):
    if isinstance(obj, Array):
        yield from _leaves(obj.tolist())
    elif isinstance(obj, (list, tuple)):
        for x in obj:
            yield from _leaves(x)
    elif isinstance(obj, (int, float)):
        yield obj
    else:
        raise InvalidDTypeError(f"array.asarray: wanted numbers in the lists, got {type(obj).__name__}")


def _from_lists(obj, dtype, device) -> Array:
    import numpy
    shape, values = _shape(obj), list(_leaves(obj))
    if dtype is None:
        kinds = {_kind(v) for v in values} or {types.float32}
        dtype = types.float32 if types.float32 in kinds else types.int64 if types.int64 in kinds else types.bool
    dtype = types.dtype_of(dtype)
    if dtype not in types.ARITHMETIC:
        raise InvalidDTypeError(f"array.asarray: {dtype} stores, and is not made of numbers; vivace.ops.cast makes it")
    if dtype not in types.REAL and builtins.any(isinstance(v, float) for v in values):
        raise InvalidDTypeError(f"array.asarray: Python floats as {dtype}: astype() says a change of kind")
    if dtype in types.SIGNED + types.UNSIGNED:
        limits = types.iinfo(dtype)
        for v in values:
            if not limits.min <= v <= limits.max:
                raise InvalidArgumentError(f"array.asarray: {v} does not fit {dtype}")
    on_host = {types.bfloat16: "float64", types.float16: "float64"}.get(dtype) or next(n for n, d in types.LONG.items() if d == dtype)
    host = numpy.array(values, on_host).reshape(shape)
    if dtype in (types.bfloat16, types.float16):
        made = Array._from_numpy(host, "cpu").astype(dtype)
        return made.to_device(_default if device is None else device)
    return Array._from_numpy(host, _default if device is None else device)


def arange(start, /, stop=None, step=1, *, dtype=None, device=None) -> Array:
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise InvalidArgumentError("array.arange: step is 0")
    if dtype is None:
        dtype = types.float32 if builtins.any(isinstance(v, float) for v in (start, stop, step)) else types.int64
    n = builtins.max(0, math.ceil((stop - start) / step))
    if types.dtype_of(dtype) not in types.REAL and builtins.any(not -(2**63) <= v < 2**63 or v != int(v) for v in (start, step)):
        raise InvalidArgumentError(f"array.arange: {start} and {step} are no {dtype}")
    return _core.array_count(start, step, n, dtype, _default if device is None else device)


def linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True) -> Array:
    steps = num - 1 if endpoint else num
    step = (stop - start) / steps if steps > 0 else 0.0
    made = _core.array_count(float(start), float(step), num, types.float64, _default if device is None else device)
    if endpoint and num > 1:
        made[-1] = float(stop)
    return made.astype(dtype or types.float32)


def _corner(rows: int, columns: int, k: int, device: str) -> Array:
    """Where column - row is k or less."""
    k = builtins.max(-rows, builtins.min(k, columns))
    i, j = _core.array_count(0, 1, rows, "i64", device), _core.array_count(-k, 1, columns, "i64", device)
    return j[None, :] <= i[:, None]


def eye(n_rows, n_cols=None, /, *, k=0, dtype="f32", device=None) -> Array:
    at, n_cols = _default if device is None else device, n_rows if n_cols is None else n_cols
    k = builtins.max(-n_rows, builtins.min(k, n_cols))
    i, j = _core.array_count(k, 1, n_rows, "i64", at), _core.array_count(0, 1, n_cols, "i64", at)
    return (i[:, None] == j[None, :]).astype(dtype or "f32")


def _matrices(call: str, x) -> None:
    if x.ndim < 2:
        raise InvalidShapeError(f"array.{call}: wanted two axes or more, the shape is {x.shape}")


def tril(x, /, *, k=0) -> Array:
    """x on and below diagonal k, else 0."""
    _matrices("tril", x)
    return where(_corner(x.shape[-2], x.shape[-1], k, x.device), x, zeros((), x.dtype, x.device))


def triu(x, /, *, k=0) -> Array:
    """x on and above diagonal k, else 0."""
    _matrices("triu", x)
    return where(_corner(x.shape[-2], x.shape[-1], k - 1, x.device), zeros((), x.dtype, x.device), x)


def meshgrid(*arrays, indexing="xy") -> list[Array]:
    if indexing not in ("xy", "ij"):
        raise InvalidArgumentError(f"array.meshgrid: indexing={indexing!r}: wanted 'xy' or 'ij'")
    if builtins.any(a.ndim != 1 for a in arrays):
        raise InvalidShapeError(f"array.meshgrid: wanted arrays of one axis, got {[a.shape for a in arrays]}")
    order = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        order[0], order[1] = 1, 0
    shape = [0] * len(arrays)
    for a, at in zip(arrays, order):
        shape[at] = a.shape[0]
    return [_core.array_broadcast_to(a.reshape([-1 if at == i else 1 for i in range(len(arrays))]), shape).copy() for a, at in zip(arrays, order)]
