"""vivace.jax_ops on CUDA: the bits of vivace.ops, command buffers, order behind XLA's writes, donation, vmap. Needs --device cuda and JAX's CUDA plugin."""
import ctypes
import os

import ml_dtypes
import numpy as np
import pytest

from tests.op_data import OPS, device, reference

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_enable_command_buffer=+CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
jax = pytest.importorskip("jax")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)
if jax.default_backend() not in ("gpu", "cuda"):
    pytest.skip("JAX has no CUDA here", allow_module_level=True)

import jax.numpy as jnp  # noqa: E402

from tests.test_jax_ops import Both, different  # noqa: E402
from vivace import _core, array, jax_ops, ops  # noqa: E402

SEVERAL = ("norm", "gemm", "gated_gemm", "act_mul", "rope", "kv_append", "attention", "softmax", "argmax", "sample", "quantize", "cast", "embedding",
           "moe_mlp", "norm_gemm", "quantize_tensor")


def served(op):
    """Cases with plain dtypes that a CUDA kernel serves."""
    unserved = getattr(reference(op), "unserved_on_gpu", lambda case: None)
    cases = [c for c in reference(op).CASES if not unserved(c) and 0 not in c.dims.values()]
    return different([c for c in cases if all(isinstance(x, np.ndarray) for x in Both(op, c).mine.values())], 3)


@pytest.mark.parametrize("op", SEVERAL)
def test_the_same_bits_as_vivace_ops_on_the_gpu(op, record_property):
    for case in served(op):
        both = Both(op, case)
        got = both()
        assert all("cuda" in str(y.device).lower() for y in got.values())
        mine = {n: array.from_numpy(x, "cuda:0") for n, x in both.mine.items()}
        getattr(ops, op)(**mine, **case.attrs)
        for name in set(both.names) - set(getattr(reference(op), "SCRATCH", ())):
            both.judge(name, got[name], mine[name].numpy())
    record_property("note", f"{len(served(op))} cases")


def test_all_ops_with_kernels_are_in_the_table():
    assert all(op in OPS for op in SEVERAL)


def counted():
    """The CUDA handlers behind one that counts executions: {"n": calls}."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    real = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(pointer(_core.xla_handlers()["CUDA"]["execute"], None))
    seen = {"n": 0}

    class Frame(ctypes.Structure):
        _fields_ = [("head", ctypes.c_void_p * 4), ("stage", ctypes.c_int32)]

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def handler(frame):
        seen["n"] += Frame.from_address(frame).stage == 3
        return real(frame)

    seen["kept"] = real, handler
    capsule = jax.ffi.pycapsule(handler)
    jax.ffi.register_ffi_target("vivace.counted", {"initialize": capsule, "execute": capsule}, platform="CUDA", api_version=1)
    return seen


def test_a_command_buffer_holds_the_calls(record_property):
    """A replay launches what was captured: the handler is not called again, and the numbers are the same."""
    seen, runs = counted(), 40
    x = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)

    def f(x):
        for _ in range(6):
            x = jax.ffi.ffi_call("vivace.counted", jax.ShapeDtypeStruct(x.shape, x.dtype))(x, vivace_op="norm", vivace_ports="x,out", eps=1e-5, kind="layer") * 3
        return x

    want, step = jnp.asarray(x), jax.jit(f, donate_argnums=0)  # donated: the same addresses in each run
    for _ in range(6 * runs):
        want = jax_ops.norm(want, eps=1e-5, kind="layer") * 3
    y = jnp.asarray(x)
    for _ in range(runs):
        y = step(y)
    assert np.array_equal(y, want)
    record_property("note", f"{seen['n']} of {6 * runs} calls were not replays")
    assert 6 <= seen["n"] <= 6 * runs // 2, f"{seen['n']} calls of the handler in {runs} runs of 6: captured never, or anew each time"


@pytest.mark.parametrize("between", [False, True])
def test_a_weight_is_written_just_before(between, record_property):
    """Each product takes what a cast, which lets its successor start early, or XLA's own kernel has just written."""
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.standard_normal((1024, 2048)), jnp.bfloat16)
    written = [jnp.asarray(rng.standard_normal((2048, 2048)), jnp.float32) for _ in range(2)]
    want = [jax.block_until_ready(jax_ops.gemm(x, jax.block_until_ready(w.astype(jnp.bfloat16)))) for w in written]

    @jax.jit
    def chain(x, a, b):
        made, normed = [], x
        for i in range(8):
            w = (a, b)[i % 2]
            w = jax_ops.cast(w * (1 + 0 * made[-1][0, 0].astype(jnp.float32)) if made else w, dtype="bf16") if i < 4 else (w + 0 * made[-1][0, 0].astype(jnp.float32)).astype(jnp.bfloat16)
            normed = jax_ops.norm(x) if between else normed
            made.append(jax_ops.gemm(x, w))
        return made, normed

    turns, wrong = 100, 0
    for _ in range(turns):
        made, _ = chain(x, *written)
        wrong += sum(int((y != want[i % 2]).any()) for i, y in enumerate(made))
    record_property("note", f"{8 * turns} products")
    assert wrong == 0, f"{wrong} of {8 * turns} products took what was there before"


def test_donated_caches_are_updated_where_they_are():
    k, pos = jnp.full((2, 2, 64), 3, jnp.bfloat16), jnp.asarray([3, 4], jnp.int32)
    step = jax.jit(lambda kc, vc: jax_ops.kv_append(k, k, pos, k_cache=kc, v_cache=vc), donate_argnums=(0, 1))
    kc, vc = (jax.block_until_ready(jnp.zeros((1, 16, 2, 64), jnp.bfloat16)) for _ in range(2))
    at = kc.unsafe_buffer_pointer(), vc.unsafe_buffer_pointer()
    kc, vc = step(kc, vc)
    assert (kc.unsafe_buffer_pointer(), vc.unsafe_buffer_pointer()) == at
    assert np.asarray(kc, np.float32)[0, :, 0, 0].tolist() == [0, 0, 0, 3, 3] + [0] * 11


def test_vmap_and_blocks():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((3, 4, 256)).astype(ml_dtypes.bfloat16)
    codes = rng.integers(0, 64, (32, 256 // 32 * 34), np.uint8)
    codes[:, 1::34] &= 0x3B
    f = jax.jit(lambda x: jax_ops.gemm(x, jax_ops.packed(codes, "q8_0"), dtype="f32"))
    got = jax.vmap(f)(x)
    assert np.array_equal(got, np.stack([f(one) for one in x])) and np.asarray(got).any()


def test_the_example_trains(capsys):
    from examples.python import jax_lora

    plain, fp8 = jax_lora.main(120)
    assert fp8[-1] < 0.25 * fp8[0] and abs(fp8[0] - plain[0]) < 0.1 * plain[0]
