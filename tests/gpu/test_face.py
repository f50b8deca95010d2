"""Arrays and user kernels on a GPU: contents, lifetime, DLPack both ways, streams, errors."""
import gc

import numpy as np
import pytest

import vivace
from vivace import array, device, jit, ops
from vivace.errors import ClosedError, Error, InvalidArgumentError, InvalidDTypeError, InvalidDeviceError
from tests.test_gpu_face import SOURCE, gpus

pytestmark = pytest.mark.skipif(gpus() == 0, reason="no GPU")


def test_round_trip_and_ops():
    x = np.random.default_rng(1).standard_normal((7, 100)).astype(np.float32)
    a, out, want = array.from_numpy(x), array.zeros(x.shape), np.empty_like(x)
    assert a.shape == (7, 100) and a.dtype == "f32" and a.device == "cuda:0" and a.nbytes == x.nbytes
    assert np.array_equal(a.numpy(), x) and not out.numpy().any()
    ops.norm(a, out=out, eps=1e-5)
    ops.norm(x, out=want, eps=1e-5)
    assert np.allclose(out.numpy(), want, rtol=1e-5, atol=1e-6)
    assert array.empty((0, 5)).numpy().shape == (0, 5)
    with pytest.raises(InvalidDTypeError):
        a.copy_from(x.astype(np.float16))


def test_use_after_close_and_memory_returns():
    used = array.pool_stats()["used"]
    a = array.zeros((1 << 20,))
    assert array.pool_stats()["used"] - used >= 4 << 20
    a.close()
    a.close()
    assert array.pool_stats()["used"] == used
    for use in (a.numpy, lambda: a.data_ptr, a.__dlpack__, lambda: ops.norm(a, out=a)):
        with pytest.raises((ClosedError, InvalidArgumentError), match="close"):
            use()


def test_dlpack_both_ways_keeps_memory_alive():
    torch = pytest.importorskip("torch")
    a = array.from_numpy(np.arange(1000, dtype=np.float32))
    t = torch.from_dlpack(a)
    assert t.data_ptr() == a.data_ptr and t.device.type == "cuda"
    a.close()
    del a
    gc.collect()
    others = [array.zeros(1000) for _ in range(8)]
    assert torch.equal(t.cpu(), torch.arange(1000.0)) and others
    b = array.from_dlpack(t)
    address = t.data_ptr()
    del t
    gc.collect()
    torch.zeros(1000, device="cuda")
    assert b.data_ptr == address and np.array_equal(b.numpy(), np.arange(1000, dtype=np.float32))
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch.from_dlpack(array.from_numpy(np.ones(64, np.float32))).sum().item() == 64
    turned = torch.arange(12.0, device="cuda").reshape(3, 4).t()
    c = array.from_dlpack(turned)
    assert c.data_ptr == turned.data_ptr() and c.shape == (4, 3) and np.array_equal(c.numpy(), turned.cpu().numpy())


def test_user_kernel_launch():
    k = vivace.jit(SOURCE, "axpy")
    x, y = array.from_numpy(np.arange(1000, dtype=np.float32)), array.zeros(1000)
    k(y, x, 2.0, 1000, grid=4, block=256)
    assert np.array_equal(y.numpy(), 2 * np.arange(1000, dtype=np.float32))
    with pytest.raises(InvalidArgumentError, match="4 arguments, 3 came"):
        k(y, x, 2.0, grid=4, block=256)
    with pytest.raises(InvalidDTypeError, match="argument 1"):
        k(y, array.zeros(1000, "f16"), 2.0, 1000, grid=4, block=256)
    with pytest.raises(InvalidArgumentError, match="argument 3"):
        k(y, x, 2.0, 1 << 40, grid=4, block=256)
    with pytest.raises(InvalidArgumentError, match="argument 2"):
        k(y, x, y, 1000, grid=4, block=256)
    with pytest.raises(Error, match="block"):
        k(y, x, 2.0, 1000, grid=4, block=4096)
    with pytest.raises(InvalidDeviceError):
        k(y, np.zeros(1000, np.float32), 2.0, 1000, grid=4, block=256)


def test_prewarm_loads_everything_of_an_op():
    seen = []
    jit.prewarm(["count_tokens"], progress=lambda done, total, kernel: seen.append((done, total)))
    wanted = {e for _, e in vivace._core.gpu_instances("count_tokens", device.get_sm_version())}
    assert wanted <= set(vivace._core.loaded_kernels())
    assert seen and seen[-1][0] == seen[-1][1] == len(wanted)
