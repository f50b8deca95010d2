"""The face of arrays: interchange with NumPy and DLPack, who owns memory, refusals by type and by name, what captures say."""
import copy
import gc
import itertools
import pickle
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

import vivace
from tests import dlpack_fake
from vivace import array as xp
from vivace import ops
from vivace.errors import (
    AliasError, ClosedError, FailedPreconditionError, InvalidArgumentError, InvalidDeviceError, InvalidDTypeError, InvalidLayoutError, InvalidShapeError,
    UnsupportedError,
)


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setattr("vivace.array.creation._default", "cpu")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_numpy_both_ways_without_a_copy(dtype):
    host = np.arange(24).reshape(4, 6).astype(dtype)
    a = xp.from_dlpack(host)
    assert a.device == "cpu" and a.dtype == getattr(xp, dtype)
    assert a.data_ptr == host.ctypes.data and np.array_equal(a.numpy(), host)
    for view in (a, a.T, a[::-1, ::2], a[1:1], a[2, 3]):
        for back in (np.asarray(view), np.from_dlpack(view)):
            assert np.array_equal(back, view.numpy()) and (view.size == 0 or np.shares_memory(back, host))
    strided = xp.from_dlpack(host[::2, ::-1])
    assert np.array_equal(strided.numpy(), host[::2, ::-1]) and strided.strides == (12, -1)
    assert np.array_equal(xp.from_numpy(host, "cpu").numpy(), host)


def test_numpy_without_a_buffer_format_comes_as_ml_dtypes():
    host = np.arange(6).astype(ml_dtypes.bfloat16)
    a = xp.asarray(host)
    assert a.dtype == "bf16" and np.asarray(a).dtype == ml_dtypes.bfloat16 and np.array_equal(np.asarray(a), host)
    with pytest.raises(BufferError, match="no such dtype"):
        memoryview(a)


def test_read_only_memory_stays_read_only():
    a = xp.from_dlpack(dlpack_fake.of(np.arange(6, dtype=np.float32), read_only=True))
    assert a.readonly and a.copy().readonly is False
    for write in (lambda: a.__setitem__(0, 1), lambda: a.__iadd__(1), lambda: xp.add(a, 1, out=a), lambda: a.copy_from(np.zeros(6, np.float32))):
        with pytest.raises(InvalidArgumentError, match="read-only"):
            write()
    assert memoryview(a).readonly and not np.from_dlpack(a).flags.writeable
    with pytest.raises(BufferError, match="max_version"):
        a.__dlpack__()


def test_memory_lives_as_long_as_what_reads_it():
    class Owner(dlpack_fake.Fake):
        pass

    host = np.arange(6, dtype=np.float32)
    owner = Owner(host.ctypes.data, "f32", (6,))
    alive = weakref.ref(owner)
    a = xp.from_dlpack(owner)
    view, out = a[2:], np.from_dlpack(a[4:])
    del owner, a
    gc.collect()
    assert alive() is not None and view.tolist() == [2, 3, 4, 5]
    view.close()
    del view
    gc.collect()
    assert alive() is not None and out.tolist() == [4, 5]
    del out
    gc.collect()
    assert alive() is None
    made = xp.arange(1000)
    held = memoryview(made)
    made.close()
    others = [xp.zeros(1000, "i64") for _ in range(8)]
    assert held[999] == 999 and others
    with pytest.raises(ClosedError, match="close"):
        made + 1


def test_ops_take_cpu_arrays():
    x = xp.asarray(np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32))
    out, want = xp.empty_like(x), np.empty((3, 64), np.float32)
    ops.norm(x, out=out)
    ops.norm(x.numpy(), out=want)
    assert np.array_equal(out.numpy(), want)


def test_namespace_and_info():
    x = xp.ones(3)
    assert x.__array_namespace__() is xp and x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(UnsupportedError, match="1999"):
        x.__array_namespace__(api_version="1999.12")
    info = xp.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 6}
    assert info.default_device() == "cpu" and "cpu" in info.devices() and info.dtypes(kind="bool") == {"bool": xp.bool}
    missing = [n for n in xp.__all__ if not hasattr(xp, n)]
    assert not missing


def test_dtypes_are_their_names():
    assert xp.float32 == "f32" and "f32" == xp.float32 and xp.float32 != "f64" and hash(xp.float32) == hash("f32") and str(xp.bfloat16) == "bf16"
    assert {"f32": 1}[xp.ones(1).dtype] == 1 and xp.ones(1).dtype is xp.float32 and xp.zeros(1, "float64").dtype is xp.float64
    assert pickle.loads(pickle.dumps(xp.uint16)) is xp.uint16 and copy.deepcopy(xp.int8) is xp.int8
    assert xp.finfo(xp.bfloat16).max == float(ml_dtypes.finfo(ml_dtypes.bfloat16).max) and xp.finfo("f32").eps == np.finfo(np.float32).eps
    assert (xp.iinfo("u64").max, xp.iinfo("i8").min) == (2**64 - 1, -128)


X = dict(i=[1, 2], f=[1.0, 2.0], b=[True, False])


@pytest.mark.parametrize("call, error, words", [
    (lambda: xp.ones((2, 3)) + xp.ones((4, 3)), InvalidShapeError, r"shapes do not fit:\n +2 3\n +4 3"),
    (lambda: xp.broadcast_to(xp.ones(3), (2, 4)), InvalidShapeError, r"cannot be broadcast:\n +3\n +2 4"),
    (lambda: xp.ones((2, 3)) @ xp.ones((4, 3)), InvalidShapeError, r"\[2, 3\] @ \[4, 3\]: 3 columns meet 4 rows"),
    (lambda: xp.concat([xp.ones((2, 3)), xp.ones((2, 4))]), InvalidShapeError, r"\(2, 3\)\n +\(2, 4\)"),
    (lambda: xp.ones(4).reshape((3, -1)), InvalidShapeError, "reshape"),
    (lambda: xp.asarray([[1], [2, 3]]), InvalidShapeError, r"inside are \(1,\) and \(2,\)"),
    (lambda: xp.asarray(X["i"]) + xp.asarray(X["f"]), InvalidDTypeError, "i64 with f32: arrays of integers and floats do not mix; astype"),
    (lambda: xp.asarray(X["i"]) + 1.5, InvalidDTypeError, "i64 with a Python float"),
    (lambda: xp.asarray(X["b"]) + xp.asarray(X["b"]), InvalidDTypeError, "add: wanted numbers"),
    (lambda: xp.sin(xp.asarray(X["b"])), InvalidDTypeError, "sin: wanted floats, got bool"),
    (lambda: xp.asarray([1], dtype="u64") + xp.asarray([1], dtype="i8"), InvalidDTypeError, "no integer holds both"),
    (lambda: xp.asarray([1], dtype="u8") + 300, InvalidArgumentError, "300 does not fit u8"),
    (lambda: xp.asarray([300], dtype="i8"), InvalidArgumentError, "300 does not fit i8"),
    (lambda: xp.asarray([1]) + 2**80, InvalidArgumentError, "beyond 64 bits"),
    (lambda: xp.ones(2) + np.ones(2), InvalidDTypeError, "an Array with numpy.ndarray: asarray"),
    (lambda: xp.add(1, 2), InvalidDTypeError, "wanted an Array among"),
    (lambda: xp.add(xp.ones(1), "x"), InvalidDTypeError, "got str"),
    (lambda: xp.asarray(1j), InvalidDTypeError, "complex"),
    (lambda: xp.asarray("text"), InvalidDTypeError, "got str"),
    (lambda: xp.zeros(3, "complex64"), InvalidDTypeError, "no dtype 'complex64'"),
    (lambda: xp.zeros((2, 2), "e4m3") + 1, InvalidDTypeError, "e4m3 stores, and has no arithmetic"),
    (lambda: xp.sum(xp.zeros((2, 2), "e5m2")), InvalidDTypeError, "e5m2 stores"),
    (lambda: xp.ones(3)[xp.asarray([True, False])], InvalidShapeError, "a mask of"),
    (lambda: xp.ones((3, 2))[xp.asarray([True, False, True]), 0], UnsupportedError, "stands alone"),
    (lambda: xp.ones((3, 3))[xp.asarray([0]), 1:], UnsupportedError, "take"),
    (lambda: xp.ones((3, 3, 3))[xp.asarray([0]), 0], InvalidShapeError, "2 indices of 3 axes"),
    (lambda: xp.ones((3, 3))[xp.asarray([0]), 3], InvalidArgumentError, "index 3 of an axis of 3"),
    (lambda: xp.nonzero(xp.ones(())), InvalidShapeError, "of no axes"),
    (lambda: xp.unique_values([1]), InvalidDTypeError, "got list"),
    (lambda: xp.ones(3)[3], IndexError, "index 3 of axis 0, which has 3"),
    (lambda: xp.ones(3)[0, 0], IndexError, "2 indices of 1 axes"),
    (lambda: xp.ones(3)["x"], IndexError, "an index is str"),
    (lambda: xp.take(xp.ones(3), xp.asarray([5]), axis=0), InvalidArgumentError, "index 5 of an axis of 3"),
    (lambda: xp.sum(xp.ones(3), axis=1), InvalidArgumentError, "sum: axis 1 of an array of 1 axes"),
    (lambda: xp.sum(xp.ones((3, 3)), axis=(0, 0)), InvalidArgumentError, "named twice"),
    (lambda: xp.max(xp.zeros((0, 3))), InvalidShapeError, "extreme of no elements"),
    (lambda: xp.broadcast_to(xp.ones(1), (3,)).__setitem__(0, 1), AliasError, "broadcast"),
    (lambda: xp.add(xp.ones(3), 1, out=xp.ones(4)), InvalidShapeError, r"out is \[4\], the result \[3\]"),
    (lambda: xp.add(xp.ones(3), 1, out=xp.zeros(3, "i32")), InvalidDTypeError, "astype"),
    (lambda: xp.zeros(3, "i32").__setitem__(0, 1.5), InvalidDTypeError, "Python float into i32"),
    (lambda: xp.zeros(3, "i32").__setitem__(0, xp.ones(())), InvalidDTypeError, "f32 into i32"),
    (lambda: xp.ones((2, 2)).T.copy_from(np.ones((2, 2), np.float32)), InvalidLayoutError, "dense"),
    (lambda: bool(xp.ones(2)), InvalidShapeError, r"bool\(\) wants one element"),
    (lambda: [1, 2][xp.ones(())], InvalidDTypeError, "is no index"),
    (lambda: xp.empty((1 << 40, 1 << 40)), InvalidShapeError, "overflows"),
    (lambda: xp.empty((1,) * 7), InvalidShapeError, "7 axes, at most 6"),
    (lambda: xp.set_default_device("tpu"), InvalidDeviceError, "wanted cpu, cuda or cuda:N"),
    (lambda: xp.ones(2).__dlpack__(dl_device=(2, 0)), InvalidDeviceError, "it is on cpu"),
    (lambda: xp.ones(2).__dlpack__(stream=5), InvalidArgumentError, "CPU memory has none"),
    (lambda: xp.repeat(xp.ones(2), xp.asarray([1, 2, 3])), InvalidShapeError, "axis 0 of"),
    (lambda: xp.repeat(xp.ones(2), xp.asarray([1, -2])), InvalidArgumentError, "-2 times"),
    (lambda: xp.repeat(xp.ones(2), xp.ones(2)), InvalidDTypeError, "wanted integers"),
])
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("name", ["linalg", "fft", "argwhere", "unique", "complex64", "imag", "median"])
def test_refused_names_say_the_way_out(name):
    assert not hasattr(xp, name) and getattr(xp, name, 7) == 7
    with pytest.raises(UnsupportedError, match=f"vivace.array.{name}: refused: "):
        getattr(xp, name)


def test_unknown_names_are_unknown():
    with pytest.raises(AttributeError, match="no attribute 'arrange'"):
        xp.arrange


def test_captures_refuse_arithmetic():
    x, y = xp.ones(4), xp.ones(4)
    for use in (lambda: x + y, lambda: x.numpy(), lambda: x.item(), lambda: bool(x), lambda: x.copy(), lambda: x.sum(), lambda: x.__setitem__(0, 1), lambda: x @ y):
        with pytest.raises(FailedPreconditionError, match="inside a capture"), vivace.Capture():
            use()


def test_masks_and_aliases_write_what_they_say():
    x = xp.asarray([[1.0, -2.0], [-3.0, 4.0]])
    x[x < 0] = 0
    assert x.tolist() == [[1, 0], [0, 4]]
    x[...] = x.T[::-1]
    assert x.tolist() == [[0, 4], [1, 0]]
    y = xp.arange(10, dtype="i32")
    y[1:] += y[:-1]
    assert y.tolist() == [0, 1, 3, 5, 7, 9, 11, 13, 15, 17]
    xp.multiply(y[::-1], 2, out=y)
    assert y.tolist() == [34, 30, 26, 22, 18, 14, 10, 6, 2, 0]
    z = y
    z -= 1
    assert z is y and y[0].item() == 33


def test_iteration_lists_and_contexts():
    x = xp.asarray([[1, 2], [3, 4]])
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]] and len(x) == 2 and [0, 1, 2][xp.asarray(1)] == 1
    with pytest.raises(TypeError):
        len(xp.ones(()))
    with pytest.raises(TypeError):
        iter(xp.ones(()))
    with pytest.raises(TypeError):
        hash(x)
    with xp.ones(3) as y:
        assert y.sum().item() == 3
    assert y.closed and "closed" in repr(y)


def test_zero_sizes():
    for shape in itertools.product((0, 2), repeat=2):
        x = xp.ones(shape)
        assert (x + x).shape == shape and xp.sum(x).item() == x.size and (x @ x.T).shape == (shape[0], shape[0])
        assert np.asarray(x).shape == shape and x.tolist() == np.ones(shape).tolist()
    assert xp.sum(xp.zeros((0, 3)), axis=0).tolist() == [0, 0, 0] and (xp.zeros((2, 0)) @ xp.zeros((0, 3))).tolist() == [[0] * 3] * 2


def test_threads_compute_side_by_side():
    x = xp.asarray(np.random.default_rng(1).standard_normal((200, 300)).astype(np.float32))
    want, wrong = (xp.exp(x) @ x.T).sum(axis=0).numpy(), []

    def work():
        for _ in range(10):
            if not np.array_equal((xp.exp(x) @ x.T).sum(axis=0).numpy(), want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
