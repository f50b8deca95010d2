"""DLPack's C exchange table of Array, called as C would, and packed 4-bit types both ways."""
import ctypes
import gc
import sys

import numpy as np
import pytest

from tests.dlpack_fake import _Exchange, _Tensor, _Versioned
from vivace import array, ops
from vivace.errors import InvalidLayoutError, InvalidShapeError

get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
TABLE = _Exchange.from_address(get(array.Array.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
Managed = ctypes.POINTER(_Versioned)
SAY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Tensor), ctypes.POINTER(Managed), ctypes.c_void_p, SAY)(TABLE.allocate)
from_object = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Managed))(TABLE.from_object)
to_object = ctypes.PYFUNCTYPE(ctypes.c_int, Managed, ctypes.POINTER(ctypes.py_object))(TABLE.to_object)
view_of_object = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))(TABLE.view_of_object)
current_stream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(TABLE.current_work_stream)


def delete(managed):
    ctypes.CFUNCTYPE(None, Managed)(managed.contents.deleter)(managed)


def exported(x):
    out = Managed()
    assert from_object(x, ctypes.byref(out)) == 0
    return out


def test_out_and_in_again():
    x = array.asarray(np.arange(12, dtype=np.float32).reshape(3, 4), device="cpu")
    assert (TABLE.major, TABLE.minor, TABLE.previous) == (1, 3, None)
    t = exported(x[::2, ::-1])
    d = t.contents.tensor
    assert (t.contents.major, d.ndim, d.code, d.bits, d.lanes, d.device_type, d.data) == (1, 2, 2, 32, 1, 1, x.data_ptr + 12)
    assert (d.shape[0], d.shape[1], d.strides[0], d.strides[1]) == (2, 4, 8, -1)
    back = ctypes.py_object()
    assert to_object(t, ctypes.byref(back)) == 0
    y = back.value
    ctypes.pythonapi.Py_DecRef(back)  # ctypes does not know that it was given the reference
    want, address = x[::2, ::-1].tolist(), x.data_ptr
    del x, t, d
    gc.collect()
    assert y.tolist() == want and y.data_ptr == address + 12  # the memory lives as long as the last of them
    assert sys.getrefcount(y) <= 4


def test_a_bare_view_lives_in_the_array():
    x, out = array.zeros((2, 5), dtype="bf16", device="cpu"), _Tensor()
    assert view_of_object(x, ctypes.byref(out)) == 0
    assert (out.data, out.code, out.bits, out.shape[1], out.strides[0]) == (x.data_ptr, 4, 16, 5, 5)
    stream = ctypes.c_void_p(3)
    assert current_stream(1, 0, ctypes.byref(stream)) == 0 and stream.value is None
    assert current_stream(2, 0, ctypes.byref(stream)) == 0 and stream.value == 1  # the legacy stream, by its handle
    host = np.zeros(4, np.float32)
    host.flags.writeable = False
    for wrong, error in ((host, TypeError), (None, TypeError), (array.from_dlpack(host), BufferError)):
        with pytest.raises(error):
            view_of_object(wrong, ctypes.byref(out))
    assert exported(array.from_dlpack(host)).contents.flags == 1
    x.close()
    with pytest.raises(TypeError, match="open"):
        view_of_object(x, ctypes.byref(out))


def test_memory_for_others():
    shape = (ctypes.c_int64 * 2)(3, 8)
    like, out, said = _Tensor(None, 1, 0, 2, 17, 4, 1, shape, None, 0), Managed(), []
    say = SAY(lambda context, kind, text: said.append(text.decode()))
    assert allocate(ctypes.byref(like), ctypes.byref(out), None, say) == 0
    assert out.contents.tensor.data and out.contents.tensor.bits == 4
    delete(out)
    for field, value in (("code", 99), ("device_type", 9), ("ndim", 99)):
        wrong = _Tensor(None, 1, 0, 2, 17, 4, 1, (ctypes.c_int64 * 99)(*[2] * 99), None, 0)
        setattr(wrong, field, value)
        assert allocate(ctypes.byref(wrong), ctypes.byref(out), None, say) == -1
    assert len(said) == 3 and all("array" in s for s in said), said


@pytest.mark.parametrize("dtype,code", [("e2m1", 17), ("i4", 0)])
def test_two_elements_a_byte(dtype, code):
    x = array.zeros((4, 8), dtype=dtype, device="cpu")
    bits = np.ctypeslib.as_array(ctypes.cast(x.data_ptr, ctypes.POINTER(ctypes.c_uint8)), (16,))
    bits[:] = np.random.default_rng(3).integers(0, 256, 16)
    t = exported(x)
    d = t.contents.tensor
    assert (d.code, d.bits, d.lanes, d.shape[1], d.strides[0], t.contents.flags) == (code, 4, 1, 8, 8, 0)
    y = array.from_dlpack(x)
    assert (y.dtype, y.shape, y.data_ptr) == (x.dtype, x.shape, x.data_ptr)
    delete(t)
    odd = exported(x)
    odd.contents.tensor.shape[1] = 7
    with pytest.raises(InvalidShapeError):
        to_object(odd, ctypes.byref(ctypes.py_object()))
    odd.contents.tensor.shape[1] = 4  # half of each row: strides of half bytes have no meaning elsewhere
    with pytest.raises(InvalidLayoutError):
        to_object(odd, ctypes.byref(ctypes.py_object()))
    delete(odd)


def test_the_table_changes_no_op():
    """Ops ask Array's own face: read-only memory stays refused where a port writes."""
    host = np.ones((2, 4), np.float32)
    host.flags.writeable = False
    x, out = array.from_dlpack(host), array.empty((2, 4), device="cpu")
    ops.cast(x=x, out=out)
    assert out.tolist() == [[1.0] * 4] * 2
    with pytest.raises(Exception, match="read-only"):
        ops.cast(x=out, out=x)
