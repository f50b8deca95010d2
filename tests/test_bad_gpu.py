"""Bad input that has to do with GPUs, by tensors that say they are on one: no GPU is needed, for none is reached.

What else the list holds and where: no driver, old driver, driver without symbols: tests/device/driver_test.cc;
chips without kernels, old drivers and no NVRTC from
Python: tests/test_fake_driver.py, with a real GPU tests/gpu/test_driver_only.py; wrong dtype, rank, size, layout, alignment,
null, read-only and overlapping ports of every op: tests/test_ops_bad.py; strides and host memory among device
tensors of every op: tests/gpu/test_gpu.py; arrays after close: tests/gpu/test_face.py.
"""
import numpy as np
import pytest

import vivace
from tests.dlpack_fake import CUDA, Fake
from tests.test_gpu_face import gpus, no_gpu
from vivace import ops

SOMEWHERE = 0x7F0000000000  # aligned, never read: every call here fails or has nothing to do


def on_gpu(shape, dtype="f32", at=SOMEWHERE, device_id=0, strides=None):
    return Fake(at, dtype, shape, strides, device=CUDA, device_id=device_id)


@no_gpu
def test_a_good_call_without_a_driver():
    with pytest.raises(vivace.UnsupportedError, match="driver"):
        ops.cast(x=on_gpu((4, 8)), out=on_gpu((4, 8), "f16", SOMEWHERE + 4096))


@no_gpu
def test_what_is_wrong_with_the_call_is_said_first():
    with pytest.raises(vivace.InvalidShapeError, match="^cast: port out"):
        ops.cast(x=on_gpu((4, 8)), out=on_gpu((4, 9), "f16", SOMEWHERE + 4096))


def test_tensors_on_two_gpus():
    with pytest.raises(vivace.InvalidDeviceError, match="^cast: port out: it is on GPU 1, the tensors before it on GPU 0"):
        ops.cast(x=on_gpu((4, 8)), out=on_gpu((4, 8), "f16", SOMEWHERE + 4096, device_id=1))


@no_gpu
def test_a_gpu_that_is_not_there():
    with pytest.raises(vivace.Error, match="driver|device 7"):
        ops.cast(x=on_gpu((4, 8), device_id=7), out=on_gpu((4, 8), "f16", SOMEWHERE + 4096, device_id=7))


def test_host_and_device():
    with pytest.raises(vivace.InvalidDeviceError, match="^cast: port out is in host memory, the ports before it in device memory"):
        ops.cast(x=on_gpu((4, 8)), out=np.zeros((4, 8), np.float16))
    with pytest.raises(vivace.InvalidDeviceError, match="^cast: port out is in device memory, the ports before it in host memory"):
        ops.cast(x=np.zeros((4, 8), np.float32), out=on_gpu((4, 8), "f16"))


def test_layout_alignment_and_overlap():
    out = on_gpu((4, 8), "f16", SOMEWHERE + 4096)
    with pytest.raises(vivace.InvalidLayoutError, match="^cast: port x: axis 1 has stride 4"):
        ops.cast(x=on_gpu((4, 8), strides=(1, 4)), out=out)
    with pytest.raises(vivace.InvalidLayoutError, match="^cast: port x: data is not aligned"):
        ops.cast(x=on_gpu((4, 8), at=SOMEWHERE + 2), out=out)
    with pytest.raises(vivace.AliasError, match="^cast: port out overlaps port x"):
        ops.cast(x=on_gpu((4, 8)), out=on_gpu((4, 8), "f16", SOMEWHERE + 16))


@no_gpu
def test_more_than_2_to_the_31_elements():
    """Axes are below 2^31, tensors are not: the call is good, and fails for want of a GPU alone."""
    far = SOMEWHERE + (1 << 36)
    with pytest.raises(vivace.UnsupportedError, match="driver"):
        ops.cast(x=on_gpu((1 << 20, 1 << 12)), out=on_gpu((1 << 20, 1 << 12), "f16", far))
    with pytest.raises(vivace.InvalidShapeError, match=r"^cast: port x: axis 1 of \[1, 2147483648\] is not in \[0, 2147483647\]"):
        ops.cast(x=on_gpu((1, 1 << 31)), out=on_gpu((1, 1 << 31), "f16", far))
    with pytest.raises(vivace.InvalidShapeError, match="overflows"):
        ops.embedding(table=on_gpu((1 << 30, 1 << 30)), ids=on_gpu((1,), "i32"), out=on_gpu((1, 1 << 30), at=far))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_nothing_to_do(shape):
    """Empty tensors are whole ones: their strides, which NumPy and others set as they like, reach nothing."""
    for strides in (None, (0, 0), (8, 1), (1, 77)):
        x = np.lib.stride_tricks.as_strided(np.zeros(0, np.float32), shape, None if strides is None else tuple(4 * s for s in strides))
        ops.cast(x=x, out=np.zeros(shape, np.float16))
    ops.cast(x=np.zeros(shape, np.float32), out=np.zeros(shape, np.float16))
    if gpus() == 0:
        with pytest.raises(vivace.UnsupportedError, match="driver"):
            ops.cast(x=on_gpu(shape, strides=(0, 0)), out=on_gpu(shape, "f16", 0, strides=(0, 0)))
