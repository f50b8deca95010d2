"""Sorting, searching, gathers, running sums, and what has a shape that data decides: on the CPU against NumPy, and the GPU's kernels
(emulated) against the CPU's. Drawn shapes, types, ties, NaNs and zeros of both signs."""
import shutil
import textwrap

import numpy as np
import pytest

from tests import emulated
from tests.test_array_emulated import PRELUDE
from vivace import array
from vivace.errors import InvalidArgumentError, InvalidDTypeError, InvalidShapeError, UnsupportedError

DTYPES = ["bool", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "f32", "f64"]


def drawn(rng, shape, dtype):
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in ("f16", "f32", "f64"):
        x = rng.integers(-4, 5, shape) * rng.choice([0.5, -0.0, 1e3, np.nan, np.inf], shape, p=[0.5, 0.1, 0.2, 0.1, 0.1])
        return x.astype(np.dtype(dtype[0] + str(int(dtype[1:]) // 8)))
    info = np.iinfo(np.dtype(dtype[0] + str(int(dtype[1:]) // 8)))
    return rng.choice([info.min, info.max, 0, 1, 2, 3, 5], shape).astype(info.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unique_is_numpys(dtype):
    rng = np.random.default_rng(DTYPES.index(dtype))
    for shape in [(0,), (1,), (), (7,), (3, 5), (2, 0), (40,), (2, 3, 9)]:
        host = drawn(rng, shape, dtype)
        x = array.asarray(host, device="cpu")
        want, first, inverse, counts = np.unique(host, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
        got = array.unique_all(x)
        assert np.array_equal(got.values.numpy(), want, equal_nan=True) and got.values.dtype == x.dtype
        assert got.counts.tolist() == counts.tolist() and got.indices.tolist() == first.tolist()
        assert got.inverse_indices.shape == host.shape and np.array_equal(array.take(got.values, got.inverse_indices.reshape(-1)).numpy(), host.reshape(-1), equal_nan=True)
        real = host.dtype.kind != "f" or not np.isnan(host).any()
        assert not real or got.inverse_indices.tolist() == inverse.reshape(host.shape).tolist()
        assert array.unique_values(x).shape == got.values.shape and array.unique_counts(x).counts.tolist() == counts.tolist()
        assert array.unique_inverse(x).inverse_indices.tolist() == got.inverse_indices.tolist()


def test_nonzero_masks_and_repeats_are_numpys():
    rng = np.random.default_rng(3)
    for case in range(60):
        shape = tuple(int(n) for n in rng.integers(0 if case % 7 == 0 else 1, 6, int(rng.integers(1, 4))))
        host = drawn(rng, shape, DTYPES[case % len(DTYPES)])
        x = array.asarray(host, device="cpu")
        got = array.nonzero(x)
        assert [g.tolist() for g in got] == [w.tolist() for w in np.nonzero(host)] and all(g.dtype == "i64" for g in got)
        cut = int(rng.integers(1, len(shape) + 1))
        mask = rng.integers(0, 2, shape[:cut]).astype(bool)
        assert np.array_equal(x[array.asarray(mask, device="cpu")].numpy(), host[mask], equal_nan=host.dtype.kind == "f")
        assert x[array.zeros((0,) * cut, dtype="bool", device="cpu")].shape == (0, *shape[cut:])
        axis = int(rng.integers(-len(shape), len(shape)))
        counts = rng.integers(0, 4, shape[axis])
        if shape[axis] != 1:
            assert np.array_equal(array.repeat(x, array.asarray(counts, device="cpu"), axis=axis).numpy(), np.repeat(host, counts, axis=axis), equal_nan=host.dtype.kind == "f")
        if 0 not in shape:
            wide = (3, 1)[: int(rng.integers(0, 3))]
            key = tuple(rng.integers(-n, n, wide) if rng.integers(0, 2) else int(rng.integers(-n, n)) for n in shape)
            if any(isinstance(k, np.ndarray) for k in key):
                ours = tuple(array.asarray(k, device="cpu") if isinstance(k, np.ndarray) else k for k in key)
                assert np.array_equal(x[ours].numpy(), host[key], equal_nan=host.dtype.kind == "f")


def test_bad_use():
    x = array.ones((3, 2), dtype="f32", device="cpu")
    whole = lambda *v: array.asarray(list(v), dtype="i64", device="cpu")
    for call, error, words in [
        (lambda: array.nonzero(np.ones(2)), InvalidDTypeError, "got ndarray"), (lambda: array.nonzero(x[0, 0]), InvalidShapeError, "no axes"),
        (lambda: x[x[0] > 0], InvalidShapeError, "a mask of"), (lambda: x[x[0] > 0], IndexError, "a mask of"), (lambda: x[whole(0), whole(2)], InvalidArgumentError, "index 2 of an axis of 2"),
        (lambda: x[whole(-4), 0], InvalidArgumentError, "index -4 of an axis of 3"), (lambda: array.repeat(x, whole(1, 2), axis=0), InvalidShapeError, "has 3 elements"),
        (lambda: array.repeat(x, whole(1, -2), axis=1), InvalidArgumentError, "-2 times"), (lambda: array.repeat(x, x[:2, 0], axis=1), InvalidDTypeError, "wanted integers"),
        (lambda: array.unique_all(3), InvalidDTypeError, "got int"), (lambda: array.take(x[:0], whole(0)), InvalidArgumentError, "axis"),
    ]:
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_kernels_compile_without_spills(arch):
    """By NVRTC itself, where there is one: what a C++ compiler takes is not all that it takes."""
    from vivace import _core, jit

    jit.find_nvrtc()
    try:
        _core.nvrtc_info()
    except UnsupportedError as e:
        pytest.skip(str(e))
    elem = "vivace::kernels::Elem::"
    for text in (f"sort_tiles<{elem}f32, true, 256>", f"sort_tiles<{elem}u64, false, 32>", f"sort_tiles<{elem}bf16, false, 256>", "merge_runs<uint64_t>", f"scan_totals<{elem}f64, true>", f"scan_partials<{elem}u8, false>",
                 f"scan_rows<{elem}i16, false, 256>", f"search<{elem}f16, true, true>", "gather<16, false, int64_t, int>", "gather<1, true, uint32_t, int64_t>"):
        made = _core.jit_kernel('#include "vivace/kernels/map/order.cuh"\n', f"vivace::kernels::{text}", "order.cu").compile(arch)
        assert made["spill_bytes"] == made["stack_bytes"] == 0 and made["registers"] <= 80 and not made["warnings"], (text, made)


GPU = pytest.mark.skipif(emulated.CXX is None or emulated.CC is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    folder = emulated.build(tmp_path_factory.mktemp("emulated"))
    return lambda text, **env: emulated.run(folder, PRELUDE.replace("SEED", "0") + textwrap.dedent(text), **env)


ORDERS = """
    from tests.test_array_order import drawn
    def pair(shape, dtype):
        x = array.asarray(drawn(rng, shape, "f32" if dtype == "bf16" else dtype), device="cpu").astype(dtype)
        return x, x.to_device("cuda")
    def values(name, cpu, gpu):  # zeros of either sign are one, NaNs too
        x, y = cpu.numpy(), gpu.numpy()
        assert x.dtype == y.dtype and np.array_equal(x.astype("f8"), y.astype("f8"), equal_nan=True), (name, x, y)
"""


@GPU
@pytest.mark.parametrize("dtypes", [("bool", "u8", "i16", "bf16"), ("i64", "u64", "f64"), ("f16", "f32", "u32")])
def test_orders_on_a_gpu_are_the_cpus(gpu, dtypes):
    gpu(ORDERS + """
    for dtype in %r:
        for shape in ((1,), (5, 7), (3, 256), (2, 300), (1, 2049), (1, 9000), (0, 4), (3, 0), (4, 3, 5)):
            x, g = pair(shape, dtype)
            for descending in (False, True) if shape[-1] != 9000 else (False,):
                axis = -1 if len(shape) < 3 else 1
                same(("argsort", dtype, shape), array.argsort(x, axis=axis, descending=descending), array.argsort(g, axis=axis, descending=descending))
                values(("sort", dtype, shape), array.sort(x, axis=axis, descending=descending), array.sort(g, axis=axis, descending=descending))
    """ % (dtypes,))


@GPU
def test_searches_and_gathers_on_a_gpu_are_the_cpus(gpu):
    gpu(ORDERS + """
    for dtype in ("i32", "f32", "f64", "u8"):
        x, g = pair((300,), dtype)
        v, gv = pair((2, 77), dtype)
        order, there = array.argsort(x), array.argsort(g)
        for side in ("left", "right"):
            same("sorter", array.searchsorted(x, v, side=side, sorter=order), array.searchsorted(g, gv, side=side, sorter=there))
            same("search", array.searchsorted(array.sort(x), v, side=side), array.searchsorted(array.sort(g), gv, side=side))
        same("none", array.searchsorted(x[:0], v), array.searchsorted(g[:0], gv))
    for dtype in ("bool", "bf16", "f32", "i64"):
        for shape, axis in (((5, 8), 0), ((5, 8), 1), ((3, 4, 16), 1), ((7, 3), 0), ((2, 3, 5), -1)):
            x, g = both(shape, dtype)
            n = shape[axis]
            at = array.asarray(rng.integers(-n, n, 9), device="cpu")
            same(("take", dtype, shape), array.take(x, at, axis=axis), array.take(g, at.to_device("cuda"), axis=axis))
            same(("view", dtype, shape), array.take(x[::-1], at, axis=axis), array.take(g[::-1], at.to_device("cuda"), axis=axis))
            along = list(shape); along[axis] = 4
            at = array.asarray(rng.integers(-n, n, along), device="cpu")
            same(("along", dtype, shape), array.take_along_axis(x, at, axis=axis), array.take_along_axis(g, at.to_device("cuda"), axis=axis))
    x, g = both((4, 3), "f32")
    at = array.asarray([2, 0], device="cpu")
    same("indexed", x[at], g[at.to_device("cuda")])
    """)


@GPU
def test_running_sums_on_a_gpu_are_the_cpus(gpu):
    gpu("""
    for dtype in ("i8", "i32", "f32", "f64", "u64", "bf16"):
        for shape, axis in (((1,), 0), ((5, 7), 1), ((3, 256), 1), ((3, 257), 1), ((2, 5000), 1), ((9, 4), 0), ((0, 3), 0), ((3, 0), 1)):
            x, g = both(shape, dtype)
            for first in (False, True):
                same(("sum", dtype, shape), array.cumulative_sum(x, axis=axis, include_initial=first), array.cumulative_sum(g, axis=axis, include_initial=first), 64, 300.0)
            small = [p %% 3 if dtype[0] in "iu" else p * 0.1 + 1 for p in (x, g)]
            small = [array.asarray(small[0], device="cpu"), small[0].to_device("cuda")]
            same(("product", dtype, shape), *(array.cumulative_prod(p[:, :20] if p.ndim > 1 else p, axis=axis) for p in small), 64, 300.0)
            same("again", array.cumulative_sum(g, axis=axis).to_device("cpu"), array.cumulative_sum(g, axis=axis))
    x, g = (array.asarray([-0.0, 1.0], device=d) for d in ("cpu", "cuda"))
    same("zero", array.cumulative_sum(x), array.cumulative_sum(g))
    """.replace("%%", "%"))


@GPU
def test_shapes_that_data_decides_on_a_gpu_are_the_cpus(gpu):
    gpu(ORDERS + """
    for dtype in ("i32", "f32", "bool"):
        for shape in ((0,), (1,), (40,), (6, 9), (2, 3, 5)):
            x, g = pair(shape, dtype)
            for a, b in zip(array.nonzero(x), array.nonzero(g)): same("nonzero", a, b)
            for name in ("unique_all", "unique_counts", "unique_inverse"):
                for k, (a, b) in enumerate(zip(getattr(array, name)(x), getattr(array, name)(g))):
                    (values if k == 0 else same)((name, dtype, shape), a, b)
            values("unique_values", array.unique_values(x), array.unique_values(g))
            same("masked", x[x != 0], g[g != 0])
    x, g = both((4, 6), "f32")
    k = array.asarray([0, 3, 1, 2], device="cpu")
    same("repeat", array.repeat(x, k, axis=0), array.repeat(g, k.to_device("cuda"), axis=0))
    same("picked", x[k, 2], g[k.to_device("cuda"), 2])
    same("both", x[k, k], g[k.to_device("cuda"), k.to_device("cuda")])
    """)


@GPU
def test_an_index_out_of_range_is_told_at_the_next_reading(gpu):
    gpu("""
    from vivace.errors import InvalidArgumentError, InvalidDeviceError, InvalidDTypeError
    def refused(call, error, words):
        try: call()
        except error as e: assert words in str(e), e
        else: raise AssertionError("it ran")
    x = array.asarray([[1.0, 2.0], [3.0, 4.0]], device="cuda")
    at = lambda *v: array.asarray(list(v), device="cuda")
    y = array.take(x, at(0, 2, -3), axis=0)        # queued; nothing waits
    z = x + 1
    refused(lambda: z.numpy(), InvalidArgumentError, "out of range: ")
    assert y.tolist() == [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]] and z.tolist()[0] == [2.0, 3.0]  # told once; the nearest element stands there
    array.take_along_axis(x, at(7).reshape((1, 1)), axis=1)
    refused(lambda: x.sum().item(), InvalidArgumentError, "7 on cuda:0")
    array.searchsorted(x[0], x[1], sorter=at(0, 9))
    refused(lambda: bool(x.sum() > 0), InvalidArgumentError, "9 on cuda:0")
    refused(lambda: array.take(x[:0], at(0), axis=0), InvalidArgumentError, "without elements")
    refused(lambda: array.take(x, array.asarray([0], device="cpu"), axis=0), InvalidDeviceError, "cpu")
    refused(lambda: array.searchsorted(x[0], array.asarray([0.0], device="cpu")), InvalidDeviceError, "cpu")
    refused(lambda: array.take(x, x[0], axis=0), InvalidDTypeError, "wanted integers")
    refused(lambda: array.sort(array.zeros((2, 2), "e4m3", "cuda")), InvalidDTypeError, "stores")
    """)


@GPU
@pytest.mark.parametrize("right,wrong", [
    ("if (a[mid] <= b[d - 1 - mid])", "if (a[mid] < b[d - 1 - mid])"),
    ("const bool turn = k[i + 1] < k[i];", "const bool turn = k[i + 1] <= k[i];"),
    ("if (c != c) return ~Key(0);", ""),
    ("c == C(0) ? C(0) : c", "c"),
    ("static_cast<Key>(c) ^ kTop", "static_cast<Key>(c)"),
    ("carry = Op::join(carry, all);", "carry = all;"),
    ("const C before = me > 0 ? shared[me - 1] : Op::none();", "const C before = me > 1 ? shared[me - 1] : Op::none();"),
    ("const int64_t at = i < 0 ? i + length : i;", "const int64_t at = i < 0 ? i + length - 1 : i;"),
    ("kRight ? !stands_before(v, m) : stands_before(m, v)", "kRight ? stands_before(m, v) : stands_before(m, v)"),
    ("* a.length + at) * a.inner + i", "* a.length + at) * a.inner"),
])
def test_planted_faults_are_seen(gpu, tmp_path, right, wrong):
    for part in ("base", "kernels/map", "kernels/tile"):
        shutil.copytree(emulated.ROOT / "vivace" / part, tmp_path / "vivace" / part)
    path = tmp_path / "vivace/kernels/map/order.cuh"
    assert path.read_text().count(right) == 1
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(AssertionError, match="AssertionError"):
        gpu(ORDERS + """
    x, g = pair((2, 3000), "f32")
    same("order", array.argsort(x), array.argsort(g))
    x, g = pair((3, 40), "i16")
    same("whole", array.argsort(x), array.argsort(g))
    x, g = both((1, 5000 * 256), "u8") if "carry" in %r else both((1, 5000), "u8")
    same("sum", array.cumulative_sum(x, axis=1, dtype="u8"), array.cumulative_sum(g, axis=1, dtype="u8"))
    v, gv = pair((50,), "f32")
    same("search", array.searchsorted(array.sort(v), v, side="right"), array.searchsorted(array.sort(gv), gv, side="right"))
    x, g = both((3, 5, 3), "i32")
    at = array.asarray([-1, 0, 2], device="cpu")
    same("take", array.take(x, at, axis=1), array.take(g, at.to_device("cuda"), axis=1))
        """ % right, VV_EMULATED_ROOT=str(tmp_path), VIVACE_CACHE=str(tmp_path / "cache"))
