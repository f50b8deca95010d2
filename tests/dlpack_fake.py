"""Objects whose __dlpack__ says whatever a test wants: null data, other devices, read-only, odd dtypes."""
import ctypes


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

CPU, CUDA, OPENCL = 1, 2, 4
CODES = {"f64": (2, 64), "f32": (2, 32), "f16": (2, 16), "bf16": (4, 16), "e4m3": (10, 8), "e5m2": (12, 8), "i64": (0, 64),
         "i32": (0, 32), "i16": (0, 16), "i8": (0, 8), "u8": (1, 8), "bool": (6, 8), "complex64": (5, 64), "u32": (1, 32)}


class Fake:
    """A producer. `versioned=False` knows no max_version, as tensors from before DLPack 1.0."""

    def __init__(self, data, dtype, shape, strides=None, device=CPU, read_only=False, versioned=True, lanes=1, major=1, device_id=0):
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides is not None else None
        code, bits = CODES[dtype]
        tensor = _Tensor(data, device, device_id, len(shape), code, bits, lanes, self.shape, self.strides, 0)
        self.versioned, self.device, self.device_id = versioned, device, device_id
        self.managed = _Versioned(major, 0, None, None, int(read_only), tensor) if versioned else _Managed(tensor, None, None)

    def __dlpack__(self, **options):
        if not self.versioned and options:
            raise TypeError("unexpected keyword argument")
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        return _new(ctypes.addressof(self.managed), name, None)

    def __dlpack_device__(self):
        return (self.device, self.device_id)


def of(array, kind=Fake, **options):
    """A NumPy array as a producer of a kind; extension dtypes (bf16, fp8) by `dtype=`."""
    options.setdefault("dtype", {"float32": "f32", "float16": "f16", "int32": "i32", "uint8": "u8"}.get(array.dtype.name))
    strides = [s // array.itemsize for s in array.strides]
    fake = kind(array.ctypes.data, shape=array.shape, strides=strides, **options)
    fake.array = array
    return fake


class _Exchange(ctypes.Structure):
    """DLPackExchangeAPI; what nobody calls here is null."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("allocate", ctypes.c_void_p), ("from_object", ctypes.c_void_p),
                ("to_object", ctypes.c_void_p), ("view_of_object", ctypes.c_void_p), ("current_work_stream", ctypes.c_void_p)]


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))
def _view_of_object(producer, out):
    out[0] = producer.managed.tensor
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def _current_work_stream(device_type, device_id, out):
    out[0] = None
    return 0


_TABLE_NAME = b"dlpack_exchange_api"  # a capsule borrows its name
_table = _Exchange(1, 3, None, None, None, None, ctypes.cast(_view_of_object, ctypes.c_void_p), ctypes.cast(_current_work_stream, ctypes.c_void_p))


class Table(Fake):
    """A producer whose type has DLPack's C exchange table, as torch's from 2.10 on; its __dlpack__ must not be asked."""

    __dlpack_c_exchange_api__ = _new(ctypes.addressof(_table), _TABLE_NAME, None)

    def __dlpack__(self, **options):
        raise AssertionError("the table is there")
