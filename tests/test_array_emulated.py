"""The kernels of arrays on a GPU, without one: tests/emulated runs their sources, arguments and grids thread by thread, and drawn calls are held
against the CPU's. Integers, comparisons and moves to the bit; functions of reals by the distance of two libraries' roundings."""
import shutil
import textwrap

import pytest

from tests import emulated

pytestmark = pytest.mark.skipif(emulated.CXX is None or emulated.CC is None, reason="no C++ compiler")

PRELUDE = textwrap.dedent("""
    import numpy as np, vivace
    from vivace import array
    rng = np.random.default_rng(SEED)
    def host(shape, dtype):
        if dtype == "bool": return rng.integers(0, 2, shape).astype(bool)
        if dtype.startswith(("f", "bf")): return rng.standard_normal(shape).astype("f8" if dtype == "f64" else "f4") * 3
        low = 0 if dtype[0] == "u" else -100
        return rng.integers(low, 100, shape)
    def both(shape, dtype):
        x = array.asarray(host(shape, dtype), device="cpu").astype(dtype)
        return x, x.to_device("cuda")
    def same(name, cpu, gpu, ulps=0.0, size=1.0):
        assert (cpu.dtype, cpu.shape, gpu.device) == (gpu.dtype, gpu.shape, "cuda:0"), (name, cpu, gpu)
        x, y = cpu.numpy(), gpu.numpy()
        if cpu.dtype in array.types.REAL and ulps:
            eps = array.finfo(cpu.dtype).eps
            x, y = x.astype("f8"), y.astype("f8")
            bad = ~((x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= ulps * eps * np.maximum(np.abs(x), size)))
        else:
            bad = x.reshape(-1).view("u1") != y.reshape(-1).view("u1")
        assert not bad.any(), (name, x, y)
""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return emulated.build(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(scope="module")
def gpu(folder):
    return lambda text, **env: emulated.run(folder, PRELUDE.replace("SEED", "0") + textwrap.dedent(text), **env)


def test_maps_over_drawn_views(gpu):
    """One function and many views: a handful of kernels serve them all."""
    out = gpu("""
        for case in range(60):
            m, n = int(rng.integers(1, 40)), int(rng.integers(1, 70))
            a, b = both((2 * m, 2 * n), "f32"), both((2 * m, 2 * n), "f32")
            keys = []
            for k in range(2):
                cut = []
                for size in (m, n):
                    s = int(rng.choice([1, 1, 2, -1])); at = int(rng.integers(0, 2 * size - abs(s) * (size - 1)))
                    cut.append(slice(at, at + s * size, s) if s > 0 else slice(at + size - 1, at - 1 if at else None, -1))
                keys.append(tuple(cut))
            x, y = [[p[keys[k]] for p in pair] for k, pair in enumerate((a, b))]
            form = case % 4
            if form == 1: x, y = [p.T for p in x], [p.T for p in y]
            if form == 2: y = [p[:1] for p in y]
            if form == 3: y = [p[:, :1] for p in y]
            same("add", x[0] + y[0], x[1] + y[1])
            same("copy", x[0].copy(), x[1].copy())
            into = [array.zeros(tuple(p.shape), "f32", p.device) for p in x]
            for t, p in zip(into, x): t[::1, ::-1] = p
            same("set", into[0], into[1])
            for p in a: p[keys[0]] = 1.5
            same("fill", a[0], a[1])
        print(len([t for t in vivace._core.kernel_timings()]))
    """)
    assert int(out) < 80


@pytest.mark.parametrize("dtypes", [("u8", "i64", "bf16"), ("i32", "f16")])
def test_arithmetic_of_every_kind(gpu, dtypes):
    gpu("""
        for dtype in %r:
            real = dtype in array.types.REAL
            for n in (1, 37, 1024, 3000):
                (x, gx), (y, gy) = both((n,), dtype), both((n,), dtype)
                for name in ("add", "floor_divide", "maximum"):
                    f = getattr(array, name)
                    same((name, dtype), f(x, y), f(gx, gy))
                same("compare", x < y, gx < gy)
                same("scalar", x * 3, gx * 3)
                same("cast", x.astype("f32"), gx.astype("f32"))
                same("pick", array.where(x < y, x, y), array.where(gx < gy, gx, gy))
                if real:
                    same("exp", array.exp(x), array.exp(gx), 2)
                else:
                    same("or", x | y, gx | gy)
    """ % (dtypes,))


@pytest.mark.parametrize("kind,dtype", [("sum", "bf16"), ("sum", "i16"), ("max", "f32"), ("argmax", "f32")])
def test_folds_in_every_direction(gpu, kind, dtype):
    gpu("""
        kind, dtype = %r
        for case in range(10):
            shape = tuple(int(n) for n in rng.integers(1, [9, 40, 300]))
            if case == 0: shape = (1, 1, 40000)      # split, then finished
            if case == 1: shape = (1, 3000, 70)      # columns, split
            if case == 2: shape = (0, 3, 5) if kind in ("sum", "all") else (1, 1, 1)
            a = both(shape, dtype)
            if kind == "argmax" and case > 2: a[0][-1, -1, -1] = a[1][-1, -1, -1] = float("nan")
            for axis in (None, 0, 1, 2) if kind.startswith("arg") else (None, 0, 2, (0, 1), (0, 2)):
                for turned in (False, True):
                    x, g = [array.permute_dims(p, (2, 0, 1)) for p in a] if turned else a
                    want, got = getattr(x, kind)(axis=axis), getattr(g, kind)(axis=axis)
                    # Sums round once an addition, in another order; values are some 3 in size, up to 40000 of them.
                    same((kind, shape, axis), want, got, 0 if kind != "sum" or dtype == "i16" else 64, 400.0)
                    same("again", got.to_device("cpu"), getattr(g, kind)(axis=axis))
    """ % ((kind, dtype),))


def test_products_and_the_rest(gpu):
    gpu("""
        for dtype in ("i32", "f64"):
            for left, right in (((5, 7), (7, 3)), ((7,), (7, 3)), ((2, 1, 5, 7), (3, 7, 4)), ((40, 70), (70, 50)), ((2, 1, 2, 1, 3, 4), (3, 1, 2, 4, 2)), ((3, 0), (0, 4))):
                (a, x), (b, y) = both(left, dtype), both(right, dtype)
                same((left, right), a @ b, x @ y, 8, 300.0)
                if len(left) == 2: same("turned", a.T.copy().T @ b[::-1][::-1], x.T.copy().T @ y[::-1][::-1], 8, 300.0)
        (a, x), (b, y) = both((6, 11), "f64"), both((6, 11), "f64")
        same("einsum", array.einsum("ij,kj->ik", a, b), array.einsum("ij,kj->ik", x, y), 8, 300.0)
        same("softmax", array.softmax(a), array.softmax(x), 8)
        same("mean", a.mean(axis=0), x.mean(axis=0), 8, 10.0)
        same("var", array.var(a), array.var(x), 8, 10.0)
        same("tril", array.tril(a), array.tril(x))
        same("eye", array.eye(5, 7, k=1, device="cpu"), array.eye(5, 7, k=1, device="cuda"))
        same("arange", array.arange(3, 900, 7, device="cpu"), array.arange(3, 900, 7, device="cuda"))
        same("linspace", array.linspace(0, 1, 33, device="cpu"), array.linspace(0, 1, 33, device="cuda"))
        same("concat", array.concat([a, b], axis=1), array.concat([x, y], axis=1))
        for p in (a, x): p[p > 0] = -1.0
        same("mask", a, x)
        for p in (a, x): p += p.T.reshape((6, 11))
        same("overlap", a, x)
        for p in (a, x): p[1:] = p[:-1]
        same("shifted", a, x)
    """)


def test_nothing_compiles_for_a_shape_and_nothing_waits(gpu):
    out = gpu("""
        import ctypes
        driver = ctypes.CDLL("libcuda.so.1")
        x, y = array.from_numpy(np.ones((8, 64), np.float32)), array.from_numpy(np.ones(64, np.float32))
        (x + y, x.sum(axis=1))
        seen = len(vivace._core.kernel_timings())
        for n in (4, 64, 1000):
            a, b = array.zeros((n, 64)), array.zeros(64)
            for _ in range(10): c = a + b
            c.sum(axis=1)
        assert len(vivace._core.kernel_timings()) == seen
        start = driver.emulated_launches()
        for _ in range(100): c = a + b
        print(driver.emulated_launches() - start, array.pool_stats()["maps"])
        maps = array.pool_stats()["maps"]
        for _ in range(1000): c = a * 2 if _ == 0 else a + b
        assert array.pool_stats()["maps"] == maps
    """)
    assert out.split()[0] == "100"


def test_streams_and_refusals(gpu):
    gpu("""
        import vivace
        from vivace.errors import InvalidDeviceError
        x = array.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
        with array.stream(0x1234):
            y = x + 1
            with array.stream(0x5678):
                z = (y * 2).sum()
            y += 0
        assert (y + x).sum().item() == 144 and z.item() == 156
        try: x + array.ones((3, 4), device="cpu")
        except InvalidDeviceError: pass
        else: raise AssertionError("it ran")
    """)


def test_functions_of_ones_own(gpu):
    gpu("""
        from vivace.errors import CompileError, InvalidArgumentError, InvalidDTypeError
        (x, gx), (y, gy) = both((5, 40), "f32"), both((40, 5), "f32")
        f = array.elementwise("float x, float y", "float z", "z = x * y + 1;")
        for turned in (False, True):
            a, b = ((gx.T, gy) if turned else (gx, gy.T))
            same("own", (x.T * y if turned else x * y.T) + 1, f(a, b))
        same("scalar", x * 3 + 1, f(gx, 3))
        out = array.zeros((5, 80))
        assert f(gx, gx[:1], out=out[:, ::2]).shape == (5, 40)
        want = array.zeros((5, 80), device="cpu"); want[:, ::2] = x * x[:1] + 1
        same("out", want, out)
        (k, gk) = both((70,), "bf16")
        g = array.elementwise("bf16 v, i32 n", "bf16 r", "if (i % n == 0) r = -v; else r = v")
        want = array.where(array.arange(70, device="cpu") % 3 == 0, -k, k)
        same("index", want, g(gk, 3))
        def refused(error, call):
            try: call()
            except error as e: return str(e)
            raise AssertionError("it ran")
        assert "declared f32, got bf16" in refused(InvalidDTypeError, lambda: f(gx, gk))
        assert "operands" in refused(InvalidArgumentError, lambda: f(gx))
        assert "cuda" in refused(vivace.UnsupportedError, lambda: f(x, y.T))
        refused(CompileError, lambda: array.elementwise("float x", "float z", "z = nothing_like_it(x)")(gx))
        for bad in (("float", "float z", "z = 1"), ("float x, float x", "float z", "z = 1"), ("float x", "float x", "x = 1"), ("e4m3 x", "float z", "z = 1"), ("float x", "float z", " ")):
            refused(InvalidArgumentError, lambda: array.elementwise(*bad))
    """)


def test_fused_functions_and_reductions_of_ones_own(gpu):
    gpu("""
        (x, gx), (y, gy), (h, gh), (k, gk) = both((40, 70), "f32"), both((70,), "f32"), both((40, 70), "bf16"), both((40, 70), "i32")
        def chain(x, y, s): return array.maximum(x * y + s, -1.5) * (1 - s) + array.where(x < y, x, -y)
        f = array.fuse(chain)
        for a, b, s in ((x, y, 0.25), (x.T.copy().T, y[::-1], 0.5)):
            p, q = a.to_device("cuda"), b.to_device("cuda")
            same("chain", chain(a, b, s), f(p, q, s))
            same("unfused there", chain(p, q, s).to_device("cpu"), f(p, q, s))
        seen = len(vivace._core.kernel_timings())
        f(gx[:3], gy, 0.75); f(gx, gy, -2.0)
        assert len(vivace._core.kernel_timings()) == seen  # no shape and no number compiles anew
        def halves(h, x): return (h * h + h).astype("f32") * x
        same("bf16", halves(h, x), array.fuse(halves)(gh, gx))
        for kind in ("sum", "max", "argmax"):
            def fold(k, s): return getattr(k * 3 + s, kind)(axis=1)
            same(kind, fold(k, 5), array.fuse(fold)(gk, 5))
        out = array.zeros((40, 140)); f(gx, gy, 0.25, out=out[:, ::2])
        want = array.zeros((40, 140), device="cpu"); want[:, ::2] = chain(x, y, 0.25)
        same("out", want, out)
        (w, gw), (long, glong) = both((7, 33), "i32"), both((300_000,), "i32")
        modulo = array.reduction(lambda x: x, lambda a, b: (a + b) % 1009, lambda v: v * 2 + 1, 0)
        for c, g in ((k, gk), (w, gw), (long, glong)):
            for axis in (None, 0, -1):
                same("modulo", modulo(c, axis=axis), modulo(g, axis=axis))
        far = array.reduction(lambda x, y, s: array.abs(x - y * s), array.maximum, None, 0.0)
        for axis in (None, 0, 1): same("far", far(x, y, 2, axis=axis), far(gx, gy, 2, axis=axis))
        all_even = array.reduction(lambda x: x % 2 == 0, array.logical_and, None, True)
        same("bool", all_even(k * 2, axis=0), all_even(gk * 2, axis=0))
        same("empty", far(x[:0], y, 2, axis=0), far(gx[:0], gy, 2, axis=0))
    """)


def test_a_strided_tensor_of_another_library(gpu):
    gpu("""
        from tests.dlpack_fake import CUDA, Fake
        x, gx = both((40, 70), "f32")
        seen = array.from_dlpack(Fake(gx.data_ptr, "f32", (70, 20), (1, 140), device=CUDA))
        assert (seen.strides, seen.data_ptr) == ((1, 140), gx.data_ptr)
        same("strided", x[::2].T * 2, seen * 2)
        same("host", x[::2].T, seen)
    """)


def test_random_numbers_are_the_cpus(gpu):
    gpu("""
        for draw in (lambda r, d: r.uniform(-1, 3, (3, 700), dtype="bf16", device=d), lambda r, d: r.integers(-5, 2**31, 1000, device=d), lambda r, d: r.normal(2, 0.5, (999,), device=d)):
            ours, theirs = array.random.Generator(2**63 + 5, 2**32 - 50), array.random.Generator(2**63 + 5, 2**32 - 50)
            same("first", draw(ours, "cpu"), draw(theirs, "cuda"), 8 if draw(ours, "cpu").dtype == "f32" else 0)
            theirs.offset = ours.offset
            same("next", draw(ours, "cpu"), draw(theirs, "cuda"), 8 if draw(ours, "cpu").dtype == "f32" else 0)
    """)


@pytest.mark.parametrize("file,right,wrong", [
    ("map.cuh", "const int n = left < V ? static_cast<int>(left) : V;\n  Body body;", "const int n = V;\n  Body body;"),
    ("map.cuh", "if constexpr (!kFlat) place<Body::kOperands>(a.outer, line, at);", ""),
    ("fold.cuh", "for (int by = 16; by > 0; by /= 2)", "for (int by = 8; by > 0; by /= 2)"),
    ("fold.cuh", "i < a.splits; i += 32)", "i < a.splits - 1; i += 32)"),
    ("fold.cuh", "u.bits = value;", "u.bits = value ^ 1;"),
])
def test_planted_faults_are_seen(gpu, tmp_path, file, right, wrong):
    for part in ("base", "kernels/map", "kernels/tile"):
        shutil.copytree(emulated.ROOT / "vivace" / part, tmp_path / "vivace" / part)
    path = tmp_path / "vivace/kernels/map" / file
    assert path.read_text().count(right) == 1
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(AssertionError, match="AssertionError"):
        gpu("""
            (x, gx), (y, gy) = both((3, 38), "i32"), both((38, 3), "i32")
            into, there = array.zeros((3, 40), "i32", "cpu"), array.zeros((3, 40), "i32", "cuda")
            into[:, :38], there[:, :38] = x + y.T, gx + gy.T
            same("lines", into, there)
            (z, gz) = both((40001,), "i32")
            same("cut", z[1:38] + z[2:39], gz[1:38] + gz[2:39])
            same("sum", z.sum(), gz.sum())
            modulo = array.reduction(lambda x: x, lambda a, b: (a + b) % 1009, None, 0)
            same("constants", modulo(z), modulo(gz))
            flat, ours = array.zeros(48, "i32", "cpu"), array.zeros(48, "i32", "cuda")
            flat[:38], ours[:38] = z[:38], gz[:38]
            same("tail", flat, ours)
        """, VV_EMULATED_ROOT=str(tmp_path), VIVACE_CACHE=str(tmp_path / "cache"))


def test_transposed_operands_go_by_tiles(gpu):
    gpu("""
        for dtype in ("u8", "bf16", "f32", "f64", "bool"):
            for shape in ((32, 33), (64, 64), (70, 200), (3, 40, 65), (40, 3, 65), (2, 3, 64, 48)):
                x, g = both(shape, dtype)
                turns = [p.mT.copy() for p in (x, g)]
                same(("copy", dtype, shape), *turns)
                order = tuple(reversed(range(len(shape))))
                same(("all", dtype, shape), *(array.permute_dims(p, order).copy() for p in (x, g)))
                same(("cast", dtype, shape), *(p.mT.astype("f32") for p in (x, g)))
                if dtype != "bool":
                    same(("two", dtype, shape), *(p.mT + p.mT * 2 for p in (x, g)))
                    same(("row", dtype, shape), *(p.mT + p.reshape(-1)[: shape[-2]] for p in (x, g)))
                into = [array.zeros((*shape[:-2], shape[-1], shape[-2] + 3), dtype, p.device) for p in (x, g)]
                for to, p in zip(into, (x, g)): to[..., 2:-1] = p.mT
                same(("into", dtype, shape), *into)
    """)
