"""Arrays on a GPU: views and exchange work there, arithmetic is refused in words and allocates nothing."""
import gc

import numpy as np
import pytest

from tests.test_gpu_face import gpus
from vivace import array, ops
from vivace.errors import InvalidDeviceError, UnsupportedError

pytestmark = pytest.mark.skipif(gpus() == 0, reason="no GPU")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int32", "int64", "float16", "float32", "float64"])
def test_to_the_gpu_and_back(dtype):
    host = np.random.default_rng(1).integers(0, 2, (7, 33)).astype(dtype)
    there = array.asarray(host, device="cpu").to_device("cuda")
    assert there.device == "cuda:0" and there.dtype == getattr(array, dtype) and np.array_equal(there.numpy(), host)
    assert np.array_equal(there.to_device("cpu").numpy(), host) and np.array_equal(there[2:5].numpy(), host[2:5])
    assert np.array_equal(np.from_dlpack(there, device="cpu"), host)


def test_views_are_free_and_arithmetic_is_refused():
    a = array.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
    before = array.pool_stats()["allocations"]
    assert a[1].data_ptr == a.data_ptr + 16 and a.T.shape == (4, 3) and a.reshape(12).strides == (1,)
    for use in (lambda: a + 1, lambda: a @ a.T, lambda: a.sum(), lambda: a.astype("f16"), lambda: a.T.numpy(), lambda: a.__setitem__(0, 1)):
        with pytest.raises(UnsupportedError, match="cuda:0.*to_device"):
            use()
    with pytest.raises(InvalidDeviceError):
        a + array.ones((3, 4), device="cpu")
    assert array.pool_stats()["allocations"] == before


def test_a_view_is_a_port_and_outlives_its_array():
    x = np.random.default_rng(2).standard_normal((8, 128)).astype(np.float32)
    a, want = array.from_numpy(x), np.empty((3, 128), np.float32)
    view = a[2:5]
    a.close()
    del a
    gc.collect()
    held = [array.zeros((8, 128)) for _ in range(4)]
    out = array.empty((3, 128))
    ops.norm(view, out=out)
    ops.norm(x[2:5], out=want)
    assert np.allclose(out.numpy(), want, rtol=1e-5, atol=1e-6) and held


def test_torch_cupy_see_the_same_memory():
    torch = pytest.importorskip("torch")
    a = array.from_numpy(np.arange(24, dtype=np.float32).reshape(4, 6))
    for view in (a, a.T, a[1:, ::2]):
        t = torch.from_dlpack(view)
        assert t.data_ptr() == view.data_ptr and tuple(t.stride()) == view.strides
    back = array.from_dlpack(torch.arange(5, device="cuda"), device="cpu")
    assert back.device == "cpu" and back.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(BufferError):
        array.from_dlpack(torch.arange(5, device="cuda"), device="cpu", copy=False)
    cupy = pytest.importorskip("cupy")
    c = cupy.asarray(a)
    assert c.data.ptr == a.data_ptr and c.shape == (4, 6)
