"""Methods of Array that are Python: the protocols of other libraries, lists, iteration. The reductions' are by their functions."""
from __future__ import annotations

from vivace._core import Array
from vivace.errors import InvalidDTypeError, UnsupportedError

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
TYPESTR = {"bool": "|b1", "u8": "|u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i8": "|i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "f16": "<f2",
           "f32": "<f4", "f64": "<f8"}


def _namespace(self, *, api_version=None):
    import vivace.array
    if api_version not in (None, *VERSIONS):
        raise UnsupportedError(f"array: array API {api_version!r}: there are {', '.join(VERSIONS)}")
    return vivace.array


def _array(self, dtype=None, copy=None):
    if self.device != "cpu":
        raise InvalidDTypeError(f"array: it is on {self.device}, and NumPy would copy it in secret; numpy() copies it")
    host = self.numpy()
    if copy is False:
        raise ValueError("array: __array__(copy=False): this dtype has no buffer; numpy() copies it")
    return host if dtype is None else host.astype(dtype)


def _cuda(self):
    if self.device == "cpu" or self.dtype not in TYPESTR:
        raise AttributeError(f"Array of {self.dtype} on {self.device} has no __cuda_array_interface__", name="__cuda_array_interface__")
    return {"shape": self.shape, "typestr": TYPESTR[self.dtype], "data": (self.data_ptr if self.size else 0, self.readonly), "version": 3,
            "strides": None, "stream": 1}


def _iter(self):
    if self.ndim == 0:
        raise TypeError("array: iteration over 0 axes")
    return (self[i] for i in range(self.shape[0]))


def _tolist(self):
    """Nested lists of Python numbers. Waits."""
    return self.item() if self.ndim == 0 else self.numpy().tolist()


Array.__array_namespace__ = _namespace
Array.__array__ = _array
Array.__array_ufunc__ = None  # numpy + Array is a TypeError, not an array of objects
Array.__cuda_array_interface__ = property(_cuda)
Array.__iter__ = _iter
Array.__hash__ = None
Array.tolist = _tolist
