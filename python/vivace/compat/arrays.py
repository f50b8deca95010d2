"""What the compatibility modules need of an array library: torch (any device) or NumPy, whichever the caller's
tensors are of."""
import numpy as np

from vivace.errors import InvalidDTypeError, InvalidShapeError


def is_torch(x) -> bool:
    return type(x).__module__.split(".")[0] == "torch"


def check(x, name):
    if not is_torch(x) and not isinstance(x, np.ndarray):
        raise InvalidDTypeError(f"{name}: wanted a torch tensor or a NumPy array, got {type(x).__name__}")
    return x


def dtype_name(x) -> str:
    """float16, bfloat16, float8_e4m3fn, uint8, ... in either library; of an array or of a dtype."""
    return str(getattr(x, "dtype", x)).rsplit(".", 1)[-1]


def dtype_like(name, like):
    """The dtype of that name in the library of `like`."""
    if is_torch(like):
        import torch

        return getattr(torch, name)
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def cast(x, dtype):
    """x in that type; x itself where it has it."""
    return x.to(dtype) if is_torch(x) else x.astype(dtype, copy=False)


def seen_as(x, name):
    """The same bytes under another dtype of their size."""
    return x.view(dtype_like(name, x))


def taken(x, which):
    """x[which], along the first axis: libraries index bytes, not every library float8."""
    name = dtype_name(x)
    return seen_as(seen_as(x, "uint8")[which], name) if name.startswith("float8") else x[which]


def empty(shape, like, dtype=None):
    """A new array beside `like`, of its dtype or of another of its library."""
    dtype = like.dtype if dtype is None else dtype
    if is_torch(like):
        import torch

        return torch.empty(shape, dtype=dtype, device=like.device)
    return np.empty(shape, dtype)


def f32(like):
    return dtype_like("float32", like)


def on_host(x) -> np.ndarray:
    """Small integer arrays, for planning; waits for a GPU if they are on one."""
    return x.cpu().numpy() if is_torch(x) else np.asarray(x)


def beside(host, like):
    """A NumPy array where `like` is."""
    host = np.ascontiguousarray(host)
    if is_torch(like):
        import torch

        return torch.from_numpy(host).to(like.device)
    return host


def moved(x, like):
    """x where `like` is: torch tensors of a host beside those of a GPU are copied there."""
    return x.to(like.device) if is_torch(x) else x


def arange(start, stop, like, dtype="int32"):
    """Made where `like` is: a graph that is captured can hold it."""
    if is_torch(like):
        import torch

        return torch.arange(start, stop, dtype=getattr(torch, dtype), device=like.device)
    return np.arange(start, stop, dtype=dtype)


def as_i32(x):
    if is_torch(x):
        import torch

        return x.to(torch.int32).contiguous()
    return np.ascontiguousarray(x, np.int32)


def copy_into(to, host):
    """New contents at the same address, which a captured graph has seen."""
    if is_torch(to):
        import torch

        to.copy_(torch.from_numpy(np.ascontiguousarray(host)))
    else:
        to[...] = host


def strides(x):
    """In elements."""
    return tuple(x.stride()) if is_torch(x) else tuple(s // x.itemsize for s in x.strides)


def rows_dense(x) -> bool:
    """Whether all axes but the outermost are dense, as ops want them."""
    step = 1
    for size, stride in zip(reversed(x.shape[1:]), reversed(strides(x)[1:])):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _collapses(x) -> bool:
    """Whether all axes but the last are one, of rows that lie dense."""
    steps, shape = strides(x), tuple(x.shape)
    kept = [i for i in range(len(shape) - 1) if shape[i] != 1]
    return (shape[-1] == 1 or steps[-1] == 1) and all(steps[i] == steps[j] * shape[j] for i, j in zip(kept, kept[1:]))


def matrices(*arrays):
    """Tuples of [T, H] views of arrays [..., H] of equal leading axes, which together cover them; None stays None. One tuple where each
    array's leading axes are one; else one for each place of the last of these, a head say. Rows that are not dense are an error."""
    shape = arrays[0].shape
    if any(x is not None and (len(x.shape) != len(shape) or len(shape) < 1 or x.shape[:-1] != shape[:-1]) for x in arrays):
        raise InvalidShapeError(f"flashinfer: arrays of {[list(x.shape) for x in arrays if x is not None]}: wanted the same but in the last axis")
    if 0 in shape:
        return
    if len(shape) < 3 or all(x is None or _collapses(x) for x in arrays):
        yield tuple(None if x is None else x.reshape(-1, x.shape[-1]) if len(shape) != 2 else x for x in arrays)
        return
    for place in range(shape[-2]):
        yield from matrices(*(None if x is None else x[..., place, :] for x in arrays))


def dense(x):
    """x, or a copy where an axis within a row is strided."""
    return x if rows_dense(x) or 0 in x.shape else x.contiguous() if is_torch(x) else np.ascontiguousarray(x)


def where(condition, a, b):
    if is_torch(condition):
        import torch

        return torch.where(condition, a, b)
    return np.where(condition, a, b)


def repeat(x, times, axis):
    return x.repeat_interleave(times, axis) if is_torch(x) else np.repeat(x, times, axis)


def with_rows(x, n):
    """x [T, ...] with rows of zeros after its own, in a new array of n."""
    out = empty((n, *x.shape[1:]), x)
    out[: x.shape[0]] = x
    out[x.shape[0] :] = 0
    return out


def into(given, x):
    """x, or what was given for it with x in it."""
    if given is None:
        return x
    given[...] = x
    return given


def joined(a, b):
    """a [..., m] and b [..., n] in a new array [..., m + n]."""
    if is_torch(a):
        import torch

        return torch.cat((a, b), -1)
    return np.concatenate((a, b), -1)


def side_by_side(a, b):
    """The array [..., m + n] that a [..., m] and b [..., n] are the two parts of, without a copy; None where they are not."""
    steps = strides(a)
    if a.dtype != b.dtype or a.shape[:-1] != b.shape[:-1] or steps[:-1] != strides(b)[:-1] or 1 not in (steps[-1], a.shape[-1]):
        return None
    bytes_each = a.element_size() if is_torch(a) else a.itemsize
    start = [x.data_ptr() if is_torch(x) else x.__array_interface__["data"][0] for x in (a, b)]
    if start[1] - start[0] != a.shape[-1] * bytes_each or is_torch(a) and a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return None
    shape = (*a.shape[:-1], a.shape[-1] + b.shape[-1])
    whole = a.as_strided(shape, steps) if is_torch(a) else np.lib.stride_tricks.as_strided(a, shape, a.strides)
    return whole if rows_dense(whole) else None
