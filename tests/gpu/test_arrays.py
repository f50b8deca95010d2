"""Arrays on a GPU: drawn calls are the CPU's, views and exchange cost nothing."""
import gc

import numpy as np
import pytest

from tests.test_gpu_face import gpus
from vivace import array, ops
from vivace.errors import InvalidDeviceError, InvalidDTypeError, UnsupportedError

pytestmark = pytest.mark.skipif(gpus() == 0, reason="no GPU")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int32", "int64", "float16", "float32", "float64"])
def test_to_the_gpu_and_back(dtype):
    host = np.random.default_rng(1).integers(0, 2, (7, 33)).astype(dtype)
    there = array.asarray(host, device="cpu").to_device("cuda")
    assert there.device == "cuda:0" and there.dtype == getattr(array, dtype) and np.array_equal(there.numpy(), host)
    assert np.array_equal(there.to_device("cpu").numpy(), host) and np.array_equal(there[2:5].numpy(), host[2:5])
    assert np.array_equal(np.from_dlpack(there, device="cpu"), host)


def test_views_are_free_and_devices_do_not_mix():
    a = array.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
    before = array.pool_stats()["allocations"]
    assert a[1].data_ptr == a.data_ptr + 16 and a.T.shape == (4, 3) and a.reshape(12).strides == (1,)
    with pytest.raises(InvalidDeviceError):
        a + array.ones((3, 4), device="cpu")
    assert array.pool_stats()["allocations"] <= before + 1  # ones() is on the CPU


def drawn(rng, shape, dtype):
    """The same values on both devices."""
    if dtype == "bool":
        host = rng.integers(0, 2, shape).astype(bool)
    elif dtype in array.types.REAL:
        host = (rng.standard_normal(shape) * 3).astype(np.float64 if dtype == "f64" else np.float32)
    else:
        host = rng.integers(0 if dtype[0] == "u" else -100, 100, shape)
    x = array.asarray(host, device="cpu").astype(dtype)
    return x, x.to_device("cuda")


def bits(values):
    """Bytes a value, and where it is NaN: which one is a device's own."""
    values = values.reshape(-1)
    nan = np.isnan(values.astype(np.float64)) if values.dtype.kind not in "biu" else np.zeros(values.shape, bool)
    return values.view(np.uint8).reshape(len(values), values.itemsize), nan


def same(cpu, gpu, ulps=0.0, size=0.0):
    """To the bit, or within so many units of the larger of the value and `size`."""
    assert (cpu.dtype, cpu.shape, gpu.device) == (gpu.dtype, gpu.shape, "cuda:0")
    x, y = cpu.numpy(), gpu.numpy()
    if not ulps:
        (x, seen), (y, there) = map(bits, (x, y))
        assert (seen == there).all() and np.array_equal(x[~seen], y[~seen])
        return
    x, y, eps = x.astype(np.float64), y.astype(np.float64), array.finfo(cpu.dtype).eps
    with np.errstate(invalid="ignore"):
        close = np.abs(x - y) <= ulps * eps * np.maximum(np.abs(x), size)
    assert (close | (x == y) | (np.isnan(x) & np.isnan(y))).all()


EXACT = ["abs", "negative", "square", "floor", "round", "sign", "sqrt", "isnan", "logical_not", "bitwise_invert"]
# CUDA's bounds of the libraries' functions, in units of f32, and the same again for the CPU's; f16 and bf16 round once more.
NEAR = ["exp", "expm1", "log1p", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu", "atan", "asinh", "sinh"]


@pytest.mark.parametrize("dtype", ["bool", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"])
def test_functions_are_the_cpus(dtype):
    rng = np.random.default_rng(3)
    for shape in ((1,), (37,), (64, 129), (3, 5, 8, 130)):
        (x, gx), (y, gy) = drawn(rng, shape, dtype), drawn(rng, shape, dtype)
        for name in EXACT:
            f = getattr(array, name)
            try:
                want = f(x)
            except InvalidDTypeError:
                continue
            same(want, f(gx))
        for name in ("add", "subtract", "multiply", "maximum", "minimum", "floor_divide", "remainder", "bitwise_and", "bitwise_left_shift", "logical_or", "less", "equal"):
            f = getattr(array, name)
            try:
                want = f(x, y)
            except InvalidDTypeError:
                continue
            same(want, f(gx, gy))
        same(array.where(x == y, x, y), array.where(gx == gy, gx, gy))
        for to in ("f32", "i32", "u8", "bf16", "bool", "f64"):
            same(x.astype(to), gx.astype(to))
        if dtype in array.types.REAL:
            for name in NEAR:
                same(getattr(array, name)(x), getattr(array, name)(gx), 8, 1.0)


def test_views_broadcasts_and_writes_are_the_cpus():
    rng = np.random.default_rng(4)
    for _ in range(60):
        m, n = (int(v) for v in rng.integers(1, 300, 2))
        dtype = str(rng.choice(["f32", "bf16", "i64", "u8"]))
        (x, gx), (y, gy) = drawn(rng, (m, 2 * n), dtype), drawn(rng, (n, m), dtype)
        at = int(rng.integers(0, 2))
        for cut, other in ((lambda a: a[:, at::2], lambda b: b.T), (lambda a: a[::-1, :n], lambda b: b.T[:1]), (lambda a: a[:, n:], lambda b: b.T[:, :1])):
            same(cut(x) + other(y), cut(gx) + other(gy))
            into, there = array.zeros((m, n), dtype, "cpu"), array.zeros((m, n), dtype)
            into[:, ::-1], there[:, ::-1] = cut(x), cut(gx)
            same(into, there)
        x[1:], gx[1:] = x[:-1], gx[:-1]  # over itself
        x[x > 3], gx[gx > 3] = 1, 1
        same(x, gx)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin", "any", "all"])
@pytest.mark.parametrize("dtype", ["bool", "u8", "i32", "i64", "bf16", "f32", "f64"])
def test_folds_are_the_cpus_and_the_same_each_time(kind, dtype):
    if (dtype == "bool") != (kind in ("any", "all")):
        pytest.skip("not of this dtype")
    rng = np.random.default_rng(5)
    for shape in ((1,), (5, 3), (1, 400_000), (3000, 700), (7, 64, 130), (0, 4) if kind in ("sum", "prod", "any", "all") else (2, 2)):
        x, gx = drawn(rng, shape, dtype)
        if kind == "prod":
            x = (x / 100 + 1).astype(dtype) if dtype in array.types.REAL else x
            gx = x.to_device("cuda")
        if kind in ("max", "argmax") and dtype in array.types.REAL and x.size:
            x[..., -1] = float("nan")
            gx[..., -1] = float("nan")
        for axis in (None, *range(len(shape))):
            want, got = getattr(array, kind)(x, axis=axis), getattr(array, kind)(gx, axis=axis)
            exact = kind not in ("sum", "prod") or dtype not in array.types.REAL
            count = x.size if axis is None else shape[axis]
            # Two orders of adding: the root of the count many values of some 3, a rounding each.
            same(want, got, 0 if exact else 64, 3.0 * count**0.5 if kind == "sum" else 0.0) if kind != "prod" or exact else None
            again = getattr(array, kind)(gx, axis=axis)
            assert np.array_equal(got.numpy().reshape(-1).view(np.uint8), again.numpy().reshape(-1).view(np.uint8))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "i32", "u8"])
def test_products_are_the_cpus(dtype):
    rng = np.random.default_rng(6)
    for left, right in (((5, 7), (7, 3)), ((64, 256), (256, 128)), ((300, 200), (200, 100)), ((7,), (7, 3)), ((2, 1, 40, 70), (3, 70, 50)), ((3, 0), (0, 4))):
        (a, x), (b, y) = drawn(rng, left, dtype), drawn(rng, right, dtype)
        k = left[-1]
        exact = dtype not in array.types.REAL
        # Sums of k products of some 9, in f32 (f64) and another order, rounded once.
        same(a @ b, x @ y, 0 if exact else 16, 9.0 * max(k, 1) ** 0.5)
        if len(right) == 2:
            turned, there = b.T.copy(), y.T.copy()
            same(a @ turned.T, x @ there.T, 0 if exact else 16, 9.0 * max(k, 1) ** 0.5)


def test_functions_of_ones_own():
    rng = np.random.default_rng(7)
    (x, gx), (y, gy) = drawn(rng, (50, 400), "f32"), drawn(rng, (400, 50), "f32")
    f = array.elementwise("float x, float y", "float z", "z = x * y + 1")
    same(x * y.T + 1, f(gx, gy.T))  # not contracted: the CPU's bits
    same(x * 3 + 1, f(gx, 3))
    (k, gk) = drawn(rng, (70,), "bf16")
    g = array.elementwise("bf16 v, i32 n", "bf16 r", "if (i % n == 0) r = -v; else r = v")
    same(array.where(array.arange(70, device="cpu") % 3 == 0, -k, k), g(gk, 3))
    with pytest.raises(InvalidDTypeError, match="declared f32, got bf16"):
        f(gx, gk)
    with pytest.raises(UnsupportedError, match="cpu"):
        f(x, y.T)


def test_fused_functions_are_the_functions():
    rng = np.random.default_rng(8)
    (x, gx), (y, gy), (h, gh), (k, gk) = drawn(rng, (300, 700), "f32"), drawn(rng, (700,), "f32"), drawn(rng, (300, 700), "bf16"), drawn(rng, (300, 700), "i32")

    def chain(x, y, s):
        return array.maximum(x * y + s, -1.5) * (1 - s) + array.where(x < y, x, -y)

    fused = array.fuse(chain)
    same(chain(x, y, 0.25), fused(gx, gy, 0.25))
    same(chain(x, y[::-1], 0.5), fused(gx, gy[::-1], 0.5))
    into = array.zeros((300, 1400))
    fused(gx, gy, 0.75, out=into[:, ::2])
    same(chain(x, y, 0.75), into[:, ::2].copy())

    def near(h, x):
        return array.tanh(h * h + h).astype("f32") * array.exp(-x)

    same(near(gh, gx).to_device("cpu"), array.fuse(near)(gh, gx))  # one kernel rounds as several do
    for kind in ("sum", "max", "argmin"):
        for axis in (None, 0, 1):
            def fold(k, s):
                return getattr(k * 3 + s, kind)(axis=axis)  # noqa: B023 - called here

            same(fold(k, 5), array.fuse(fold)(gk, 5))


def test_reductions_of_ones_own():
    rng = np.random.default_rng(9)
    modulo = array.reduction(lambda x: x % 1009, lambda a, b: (a + b) % 1009, lambda v: v * 2 + 1, 0)
    far = array.reduction(lambda x, y: array.abs(x - y), array.maximum, None, 0.0)
    norm = array.reduction(lambda x: x * x, lambda a, b: a + b, array.sqrt, 0.0)
    for shape in ((7, 33), (400, 3000), (1, 2_000_000), (2_000_000, 1)):
        (k, gk), (x, gx), (y, gy) = drawn(rng, shape, "i32"), drawn(rng, shape, "f32"), drawn(rng, shape[-1:], "f32")
        for axis in (None, 0, 1):
            same(modulo(k, axis=axis), modulo(gk, axis=axis))
            same(far(x, y, axis=axis), far(gx, gy, axis=axis))
            # Two orders of adding positive values: the root of their number, a rounding each.
            same(norm(x, axis=axis), norm(gx, axis=axis), 64 * (x.size if axis is None else shape[axis]) ** 0.5)


def test_random_numbers_are_the_cpus():
    for dtype in ("f32", "bf16", "f64"):
        ours, theirs = array.random.Generator(2**63 + 5, 2**32 - 50), array.random.Generator(2**63 + 5, 2**32 - 50)
        same(ours.uniform(-1, 3, (300, 700), dtype=dtype, device="cpu"), theirs.uniform(-1, 3, (300, 700), dtype=dtype, device="cuda"))
        same(ours.integers(-5, 2**31, 100_000, device="cpu"), theirs.integers(-5, 2**31, 100_000, device="cuda"))
        same(ours.normal(2, 0.5, 100_000, dtype=dtype, device="cpu"), theirs.normal(2, 0.5, 100_000, dtype=dtype, device="cuda"), 8, 1.0)


def test_a_steady_loop_maps_no_memory_and_streams_are_ordered():
    torch = pytest.importorskip("torch")
    a, b = array.ones((1 << 16,)), array.ones((1 << 16,))
    c = a + b
    before = array.pool_stats()["maps"]
    for _ in range(10_000):
        c = a + b
    assert array.pool_stats()["maps"] == before and float(c.sum()) == 2 << 16
    side = torch.cuda.Stream()
    for n in range(50):
        x = array.full((1 << 22,), float(n))          # the legacy stream
        with array.stream(side):
            y = x + 1                                  # another, which the legacy stream does not order
            z = y * 2
        assert float((z + x).max()) == 3 * n + 2
        del x, y, z


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
    strided = torch.arange(24, device="cuda", dtype=torch.float32).reshape(4, 6)[1:, ::2].T
    seen = array.from_dlpack(strided)
    assert seen.data_ptr == strided.data_ptr() and seen.strides == tuple(strided.stride()) and seen.tolist() == strided.tolist()
    assert ((seen + 1).tolist(), seen.sum(axis=0).tolist()) == ((strided + 1).tolist(), strided.sum(0).tolist())
    back = array.from_dlpack(torch.arange(5, device="cuda"), device="cpu")
    assert back.device == "cpu" and back.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(BufferError):
        array.from_dlpack(torch.arange(5, device="cuda"), device="cpu", copy=False)
    cupy = pytest.importorskip("cupy")
    c = cupy.asarray(a)
    assert c.data.ptr == a.data_ptr and c.shape == (4, 6)
