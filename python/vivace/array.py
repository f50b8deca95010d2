"""Tensors in GPU memory, for programs that use no framework.

    from vivace import array, ops
    x = array.from_numpy(host)            # one copy; memory comes from Vivace's pool
    out = array.empty(x.shape, x.dtype)
    ops.norm(x, out=out)
    out.numpy()                           # waits, then copies back

An Array goes wherever an op takes a port, and to and from other libraries by DLPack without a copy
(torch.from_dlpack(a), array.from_dlpack(t)). It is dense and holds memory: no arithmetic, no slicing.
"""
from vivace._core import Array, pool_stats
from vivace.options import dims, one, text

__all__ = ["Array", "empty", "from_dlpack", "from_numpy", "pool_stats", "zeros"]


def _made(call, shape, dtype, device, zeroed) -> Array:
    axes = one(call, "shape", dims, [shape] if isinstance(shape, int) else shape)
    return Array._make(axes, one(call, "dtype", text, dtype), one(call, "device", text, device), zeroed)


def empty(shape, dtype="f32", device="cuda") -> Array:
    """An Array with whatever was in the memory. `dtype` as in the op table: "f32", "bf16", "e4m3", ..."""
    return _made("empty", shape, dtype, device, False)


def zeros(shape, dtype="f32", device="cuda") -> Array:
    return _made("zeros", shape, dtype, device, True)


def from_numpy(host, device="cuda") -> Array:
    """A copy of contiguous host memory (NumPy, vivace.View, or host DLPack), finished when this returns."""
    return Array._from_numpy(host, one("from_numpy", "device", text, device))


def from_dlpack(tensor) -> Array:
    """The same device memory as another library's contiguous tensor, which stays alive with the Array."""
    return Array._from_dlpack(tensor)
