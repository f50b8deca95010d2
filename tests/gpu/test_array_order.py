"""Sorting, searching, gathers, running sums and transposed copies on a GPU: drawn calls are the CPU's, at sizes where blocks, chunks and
merges are many; the profiler's timers see them."""
from pathlib import Path

import numpy as np
import pytest

import vivace

from tests.gpu.test_arrays import drawn, same
from tests.test_array_order import drawn as ties
from tests.test_gpu_face import gpus
from vivace import array, profiler
from vivace.errors import InvalidArgumentError, UnsupportedError

pytestmark = pytest.mark.skipif(gpus() == 0, reason="no GPU")
SHAPES = [(1,), (257,), (33, 64), (7, 2049), (1, 300_001), (3, 70_000), (4000, 12), (5, 6, 500)]


def pair(rng, shape, dtype):
    x = array.asarray(ties(rng, shape, "f32" if dtype == "bf16" else dtype), device="cpu").astype(dtype)
    return x, x.to_device("cuda")


@pytest.mark.parametrize("dtype", ["bool", "u8", "i16", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"])
def test_orders_are_the_cpus(dtype):
    rng = np.random.default_rng(11)
    for shape in SHAPES:
        x, g = pair(rng, shape, dtype)
        for descending in (False, True):
            axis = int(rng.integers(-len(shape), len(shape)))
            same(array.argsort(x, axis=axis, descending=descending), array.argsort(g, axis=axis, descending=descending))
            want, got = array.sort(x, axis=axis, descending=descending).numpy().astype("f8"), array.sort(g, axis=axis, descending=descending)
            assert np.array_equal(want, got.numpy().astype("f8"), equal_nan=True)
            assert np.array_equal(got.numpy().view("u1"), array.sort(g, axis=axis, descending=descending).numpy().view("u1"))  # the same bits each time


@pytest.mark.parametrize("dtype", ["i8", "i32", "u64", "f32", "f64", "bf16"])
def test_running_sums_are_the_cpus(dtype):
    rng = np.random.default_rng(12)
    for shape in SHAPES:
        axis = int(rng.integers(-len(shape), len(shape)))
        x, g = drawn(rng, shape, dtype)
        ulps = 0 if dtype[0] in "iu" else 4096  # of sums of up to 300001 values of some 3 in size, in another order
        same(array.cumulative_sum(x, axis=axis), array.cumulative_sum(g, axis=axis), ulps, 3000.0 if ulps else 0.0)
        assert np.array_equal(array.cumulative_sum(g, axis=axis).numpy().view("u1"), array.cumulative_sum(g, axis=axis).numpy().view("u1"))
        if dtype[0] in "iu":
            same(array.cumulative_prod(x, axis=axis), array.cumulative_prod(g, axis=axis))


def test_searches_gathers_and_shapes_that_data_decides_are_the_cpus():
    rng = np.random.default_rng(13)
    for dtype in ("i32", "f32", "f64", "bf16"):
        x, g = pair(rng, (50_000,), dtype)
        v, gv = pair(rng, (300, 77), dtype)
        for side in ("left", "right"):
            same(array.searchsorted(array.sort(x), v, side=side), array.searchsorted(array.sort(g), gv, side=side))
        for shape, axis in (((500, 80), 0), ((500, 80), 1), ((30, 40, 16), 1), ((7, 3, 5), -1)):
            x, g = drawn(rng, shape, dtype)
            at = array.asarray(rng.integers(-shape[axis], shape[axis], 900), device="cpu")
            same(array.take(x, at, axis=axis), array.take(g, at.to_device("cuda"), axis=axis))
            along = list(shape)
            along[axis] = 33
            at = array.asarray(rng.integers(-shape[axis], shape[axis], along), device="cpu")
            same(array.take_along_axis(x, at, axis=axis), array.take_along_axis(g, at.to_device("cuda"), axis=axis))
        x, g = pair(rng, (40, 300), dtype)
        for a, b in zip(array.nonzero(x), array.nonzero(g)):
            same(a, b)
        for a, b in list(zip(array.unique_all(x), array.unique_all(g)))[1:]:
            same(a, b)
        same(x[x > 0], g[g > 0])


def test_transposed_copies_go_by_tiles():
    rng = np.random.default_rng(14)
    for dtype in ("u8", "bf16", "f32", "f64"):
        for shape in ((64, 64), (1000, 333), (5, 129, 700), (4096, 1024)):
            x, g = drawn(rng, shape, dtype)
            same(x.mT.copy(), g.mT.copy())
            same(x.mT.astype("f32"), g.mT.astype("f32"))


def test_an_index_out_of_range_is_told_at_the_next_reading():
    x = array.asarray([[1.0, 2.0], [3.0, 4.0]], device="cuda")
    y = array.take(x, array.asarray([0, 9], device="cuda"), axis=0)
    with pytest.raises(InvalidArgumentError, match="out of range: 9 on cuda:0"):
        y.numpy()
    assert y.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("timer", ["events", "cupti"])
def test_the_profiler_sees_kernels(timer):
    from vivace import ops

    x, w, out = (array.zeros(s, "bf16", "cuda") for s in ((512, 4096), (4096, 4096), (512, 4096)))
    ops.gemm(x, w, out=out)
    x + x
    try:
        with profiler.profile(timer) as p:
            with profiler.kernel("part"):
                for _ in range(20):
                    ops.gemm(x, w, out=out)
            for _ in range(20):
                x + x
    except UnsupportedError as e:
        pytest.skip(str(e))
    rows = {r["op"]: r for r in p.rows}
    assert rows["gemm"]["calls"] == 20 and rows["gemm"]["region"] == "part" and rows["array.add"]["calls"] == 20, p.rows
    assert 0.05 < rows["gemm"]["fraction"] <= 1.05 and rows["gemm"]["bytes"] > 0 and rows["array.add"]["us"] > 0
    print(p.table())


def test_cupti_tells_the_kernels_of_a_graph_one_by_one():
    path = Path(__file__).parents[1] / "fixtures/tiny_gguf/llama_q4_0.gguf"
    with vivace.load_model(str(path), device="cuda") as model:
        try:
            with profiler.profile("cupti") as p:
                model.generate_ids([1, 2, 3], max_tokens=8, temperature=0.0)
        except UnsupportedError as e:
            pytest.skip(str(e))
    names = {r["op"] for r in p.rows}
    assert "gemm" in names and "graph" not in names and all(r["us"] > 0 for r in p.rows), p.table()
    print(p.table())
