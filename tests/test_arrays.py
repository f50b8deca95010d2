"""What goes in as a tensor: NumPy arrays of every dtype, views, DLPack; and what is refused, by type."""
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import vivace
from tests import dlpack_fake
from vivace import ops


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_dlpack_is_numpy(dtype):
    """The same memory through __dlpack__, old and new, gives the same bits as the array itself."""
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(dtype)
    name = {np.float32: "f32", np.float16: "f16"}.get(dtype, "bf16")
    want = np.zeros_like(x)
    ops.norm(x, out=want)
    for versioned in (True, False):
        got = np.zeros_like(x)
        ops.norm(dlpack_fake.of(x, dtype=name, versioned=versioned), out=dlpack_fake.of(got, dtype=name, versioned=versioned))
        assert np.array_equal(got.view(np.uint8), want.view(np.uint8))


def test_dlpack_dense_without_strides():
    x, y = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32), np.zeros((3, 40), np.float32)
    ops.norm(dlpack_fake.Fake(x.ctypes.data, "f32", (3, 40)), out=y)
    want = np.zeros_like(x)
    ops.norm(x, out=want)
    assert np.array_equal(y, want)


def test_dlpack_refusals():
    x = np.ones((2, 8), np.float32)
    bad = [
        (vivace.InvalidArgumentError, "read-only", dict(out=dlpack_fake.of(x, read_only=True))),
        (vivace.UnsupportedError, "DLPack version 2", dict(out=dlpack_fake.of(x, major=2))),
        (vivace.InvalidDTypeError, "2 lanes", dict(out=dlpack_fake.of(x, lanes=2))),
        (vivace.InvalidDeviceError, "device type 4", dict(out=dlpack_fake.of(x, device=dlpack_fake.OPENCL))),
    ]
    for error, words, changes in bad:
        with pytest.raises(error, match=f"norm: port out: .*{words}"):
            ops.norm(x, **changes)

    class Breaks:
        def __dlpack__(self, **options):
            raise BufferError("requires grad")

    with pytest.raises(vivace.InvalidArgumentError, match="norm: port x: Breaks.__dlpack__ failed: BufferError: requires grad"):
        ops.norm(Breaks(), out=x)
    assert (x == 1).all()


@pytest.mark.parametrize("base", [dlpack_fake.Fake, dlpack_fake.Table])
def test_negative_views_are_refused(base):
    """torch has tensors whose values are their memory's, negated; DLPack hands that memory out as it is. Twice: the second call knows the type."""
    class Lazy(base):
        says = False

        def is_neg(self):
            if isinstance(self.says, Exception):
                raise self.says
            return self.says

    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    want, got = np.zeros_like(x), np.zeros_like(x)
    ops.norm(x, out=want)
    for _ in range(2):
        given, out = dlpack_fake.of(x, Lazy), dlpack_fake.of(got, Lazy)
        ops.norm(given, out=out)
        assert np.array_equal(got, want)
        got[...] = 7
        for negated, port in ((given, "x"), (out, "out")):
            negated.says = True
            with pytest.raises(vivace.InvalidLayoutError, match=f"norm: port {port}: it is a negative view: a Lazy whose .*resolve_neg"):
                ops.norm(given, out=out)
            with pytest.raises(vivace.InvalidLayoutError, match="view: it is a negative view"):
                vivace.view(negated, dtype="f32", shape=(2, 8))
            negated.says = RuntimeError("broken")
            with pytest.raises(vivace.InvalidArgumentError, match=f"port {port}: Lazy.is_neg.. failed: RuntimeError: broken"):
                ops.norm(given, out=out)
            negated.says = False
        assert (got == 7).all()


def test_lazy_views_of_torch():
    torch = pytest.importorskip("torch")
    x, out = torch.ones(2, 8), torch.zeros(2, 8)
    turned = torch.complex(x, x).conj()
    for lazy, error in ((turned.imag, vivace.InvalidLayoutError), (torch._neg_view(x), vivace.InvalidLayoutError), (turned, vivace.InvalidDTypeError)):
        with pytest.raises(error, match="port x"):
            ops.norm(lazy, out=out)
    assert not out.any()
    ops.norm(turned.imag.resolve_neg(), out=out)
    assert torch.allclose(out, -x, atol=1e-5)


def test_dlpack_capsule_lives_until_replay():
    class Owner(dlpack_fake.Fake):
        pass

    x, y = np.ones((2, 8), np.float32), np.zeros((2, 8), np.float32)
    owner = Owner(x.ctypes.data, "f32", (2, 8))
    alive = weakref.ref(owner)
    with vivace.Capture() as c:
        ops.norm(owner, out=y)
    del owner
    gc.collect()
    assert alive() is not None and not y.any()
    c.replay()
    assert np.allclose(y, 1)
    del c
    gc.collect()
    assert alive() is None


def test_numpy_subclass_and_memmap(tmp_path):
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 8))
    x[...] = 2
    y = np.zeros((2, 8), np.float32)
    ops.norm(x, out=y)
    assert np.allclose(y, 1)


def test_view_reads_bytes_as_another_dtype():
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    y = np.zeros_like(x)
    ops.norm(vivace.view(x.view(np.uint8), dtype="f32", shape=(3, 64)), out=vivace.view(y, dtype="f32", shape=(3, 64)))
    want = np.zeros_like(x)
    ops.norm(x, out=want)
    assert np.array_equal(y, want)


def test_view_keeps_its_owner_and_says_what_it_is():
    raw = np.zeros((4, 40), np.uint8)
    alive = weakref.ref(raw)
    v = vivace.view(raw, dtype="q4_1", shape=(4, 64))
    assert (v.dtype, v.shape, v.writable) == ("q4_1", (4, 64), True) and v.owner is raw
    assert repr(v) == "View(q4_1 [4, 64])"
    del raw
    gc.collect()
    assert alive() is not None
    frozen = np.zeros(40, np.uint8)
    frozen.flags.writeable = False
    assert not vivace.view(frozen, dtype="q4_1", shape=(2, 32)).writable


@pytest.mark.parametrize("make, error, words", [
    (lambda u8: vivace.view(u8(40), dtype="q4_9", shape=(2, 32)), vivace.InvalidDTypeError, "no dtype 'q4_9'; there are f64, f32"),
    (lambda u8: vivace.view(u8(40), dtype="q4_1", shape=(2, 33)), vivace.InvalidShapeError, "last axis 33 is no multiple of the q4_1 block, 32"),
    (lambda u8: vivace.view(u8(41), dtype="q4_1", shape=(2, 32)), vivace.InvalidShapeError, r"q4_1 \[2, 32\] takes 40 bytes, the array has 41"),
    (lambda u8: vivace.view(u8(40), dtype="q4_1", shape=()), vivace.InvalidShapeError, "shape has 0 axes"),
    (lambda u8: vivace.view(u8(40), dtype="q4_1", shape=(-2, 32)), vivace.InvalidShapeError, "axis 0 of the shape is -2"),
    (lambda u8: vivace.view(u8(40), dtype="f32", shape=(2**40, 2**40)), vivace.InvalidShapeError, "overflows"),
    (lambda u8: vivace.view(u8(80)[::2], dtype="q4_1", shape=(2, 32)), vivace.InvalidLayoutError, "not dense"),
    (lambda u8: vivace.view(u8(2, 41)[:, :20], dtype="q4_1", shape=(2, 32)), vivace.InvalidLayoutError, "multiple of 20 bytes"),
    (lambda u8: vivace.view(u8(2, 20)[::-1], dtype="q4_1", shape=(2, 32)), vivace.InvalidLayoutError, "not dense"),
    (lambda u8: vivace.view([0] * 20, dtype="q4_1", shape=(1, 32)), vivace.InvalidDTypeError, "got list"),
])
def test_view_refusals(make, error, words):
    with pytest.raises(error, match=f"^view: .*{words}"):
        make(lambda *shape: np.zeros(shape, np.uint8))


def test_view_takes_rows_of_a_wider_matrix():
    wide = np.zeros((2, 60), np.uint8)
    assert vivace.view(wide[:, :20], dtype="q4_1", shape=(2, 32)).shape == (2, 32)


def test_capture_rules():
    x, y = np.ones((2, 8), np.float32), np.zeros((2, 8), np.float32)
    c = vivace.Capture()
    with pytest.raises(vivace.FailedPreconditionError, match="nothing is captured"):
        c.replay()
    with pytest.raises(KeyError), vivace.Capture():
        raise KeyError("the body's own error comes through, and capturing has ended")
    with c:
        with pytest.raises(vivace.FailedPreconditionError, match="do not nest"), vivace.Capture():
            pass
        with pytest.raises(vivace.FailedPreconditionError, match="inside a capture"):
            vivace.set_threads(1)
        with pytest.raises(vivace.InvalidShapeError):  # checked while capturing
            ops.norm(x, out=y[:1])
        ops.norm(x, out=y)
        ops.norm(y, out=y)
    assert c.launches == 2 and not y.any()
    c.replay()
    assert np.allclose(y, 1)
    with pytest.raises(vivace.FailedPreconditionError, match="already used"):
        c.__enter__()
    vivace.set_threads(vivace.threads())
    with pytest.raises(vivace.FailedPreconditionError, match="new pool"):
        c.replay()


def test_threads_take_turns():
    """Ops from many Python threads at once: each result is its own."""
    from concurrent.futures import ThreadPoolExecutor

    def work(seed):
        x = np.random.default_rng(seed).standard_normal((32, 256)).astype(np.float32)
        first, again = np.zeros_like(x), np.zeros_like(x)
        ops.norm(x, out=first)
        for _ in range(50):
            ops.norm(x, out=again)
            assert np.array_equal(first, again)
        return first, x

    with ThreadPoolExecutor(8) as pool:
        for first, x in pool.map(work, range(16)):
            alone = np.zeros_like(x)
            ops.norm(x, out=alone)
            assert np.array_equal(first, alone)


def test_set_threads():
    before = vivace.threads()
    for n in (1, 2, 3):
        vivace.set_threads(n)
        assert vivace.threads() == n
    for n in (-1, 1025):
        with pytest.raises(vivace.InvalidArgumentError, match="set_threads"):
            vivace.set_threads(n)
    vivace.set_threads(before)
