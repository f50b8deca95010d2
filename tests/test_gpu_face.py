"""Arrays, user kernels, packs, torch ops and the device queries, as far as they go without a GPU."""
import json
import subprocess
import sys

import numpy as np
import pytest

import vivace
from vivace import _core, array, device, jit, ops
from vivace.errors import CompileError, Error, FailedPreconditionError, InvalidArgumentError, InvalidDeviceError, InvalidDTypeError, InvalidShapeError, NotFoundError, UnsupportedError

SOURCE = """
#include <cuda_bf16.h>
extern "C" __global__ void axpy(float* y, const float* x, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
template <class T> __global__ void fill(T* p, T v) { p[threadIdx.x] = v; }
"""


def gpus():
    try:
        return device.count()
    except Error:
        return 0


def has_nvrtc():
    jit.find_nvrtc()
    try:
        return _core.nvrtc_info() is not None
    except Error:
        return False


no_gpu = pytest.mark.skipif(gpus() > 0, reason="there is a GPU")
nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")


@pytest.mark.parametrize("shape,dtype,where,error", [
    ((4, -1), "f32", "cuda", InvalidShapeError),
    ((1 << 40, 1 << 40), "f32", "cuda", InvalidShapeError),
    ((1,) * 20, "f32", "cuda", InvalidShapeError),
    ((4, 30), "q4_1", "cuda", InvalidShapeError),
    ((4,), "float128", "cuda", InvalidDTypeError),
])
def test_array_plans_are_checked_before_the_device(shape, dtype, where, error):
    with pytest.raises(error, match="array"):
        array.empty(shape, dtype, where)


@pytest.mark.parametrize("where", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:00000", ""])
def test_unknown_devices(where):
    with pytest.raises(InvalidDeviceError, match="wanted cpu, cuda or cuda:N"):
        array.zeros(4, device=where)


@no_gpu
def test_without_a_gpu_the_error_says_so():
    for call in (lambda: array.zeros((2, 2)), lambda: array.from_numpy(np.zeros(3, np.float32)), device.info, device.get_sm_version,
                 device.state, jit.prewarm, _core.pool_stats, device.count):
        with pytest.raises(UnsupportedError, match="driver|GPU"):
            call()


@no_gpu
@pytest.mark.parametrize("question", [n for n in device.__all__ if n.startswith(("has_", "is_"))])
def test_without_a_gpu_it_has_nothing(question):
    assert getattr(device, question)() is False


def test_host_memory_stays_on_the_cpu():
    assert array.from_dlpack(np.zeros(3, np.float32)).device == "cpu"
    with pytest.raises(InvalidDTypeError):
        array.from_dlpack(object())


def test_jit_argument_checks():
    k = vivace.jit(SOURCE, "axpy")
    assert k.name == "axpy" and "axpy" in repr(k)
    with pytest.raises(TypeError, match="str"):
        vivace.jit(SOURCE.encode(), "axpy")
    with pytest.raises(InvalidArgumentError, match="grid"):
        k(None, grid=(1, 2, 3, 4), block=1)
    with pytest.raises(InvalidArgumentError, match="grid: axis 0 is 0"):
        k(None, grid=0, block=1)
    with pytest.raises(InvalidArgumentError, match="block"):
        k(None, grid=1, block="many")
    with pytest.raises(InvalidArgumentError, match="smem"):
        k(None, grid=1, block=1, smem=-1)
    with pytest.raises(InvalidDeviceError, match="argument 1.*host memory"):
        k(None, np.zeros(3, np.float32), grid=1, block=1)
    with pytest.raises(InvalidArgumentError, match="argument 0.*64 bits"):
        k(1 << 64, grid=1, block=1)


@nvrtc
def test_user_kernels_compile_for_any_chip():
    for arch in ("sm_80", "sm_90a", "sm_120a"):
        made = vivace.jit(SOURCE, "axpy").compile(arch)
        assert made["parameters"] == ["float*", "float const*", "float", "int"]
        assert made["registers"] > 0 and made["spill_bytes"] == 0 and made["cubin"][:4] == b"\x7fELF"
    assert vivace.jit(SOURCE, "fill<__nv_bfloat16>").compile("sm_90a")["parameters"] == ["__nv_bfloat16*", "__nv_bfloat16"]
    with pytest.raises(UnsupportedError, match="sm_70.*there are sm_80"):
        vivace.jit(SOURCE, "axpy").compile("sm_70")


@nvrtc
def test_the_first_real_error_comes_first():
    bad = SOURCE.replace("a * x[i]", "a * nowhere[i]")
    with pytest.raises(CompileError) as e:
        vivace.jit(bad, "axpy", label="mine.cu").compile("sm_90a")
    first = str(e.value).splitlines()[0]
    assert first.startswith("mine.cu(") and "nowhere" in first


def run(*args, **env):
    import os

    return subprocess.run([sys.executable, "-c", "import sys; from vivace.cli import main; sys.exit(main(sys.argv[1:]))", *map(str, args)],
                          capture_output=True, text=True, env=os.environ | env)


@nvrtc
def test_pack_has_every_instance(tmp_path):
    path = tmp_path / "some.vvp"
    done = run("pack", "--arch", "sm_90a", "--op", "count_tokens", "--op", "rope", "-o", path, "--json", VIVACE_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["kernels"] == sum(len(set(_core.gpu_instances(op, 90))) for op in ("count_tokens", "rope"))
    assert facts["bytes"] == path.stat().st_size
    again = tmp_path / "again.vvp"
    assert run("pack", "--arch", "sm_90a", "--op", "rope", "--op", "count_tokens", "-o", again, VIVACE_CACHE=str(tmp_path / "cache")).returncode == 0
    assert again.read_bytes() == path.read_bytes()  # whatever the order, and from the cache
    bad = run("pack", "--arch", "sm_90a", "--op", "nothing", "-o", again)
    assert bad.returncode == 1 and "no op named 'nothing'" in bad.stderr
    bad = run("pack", "--arch", "sm_61", "-o", again)
    assert bad.returncode == 1 and "there are sm_80" in bad.stderr


STRICT = """
import vivace
from vivace import jit
from vivace.errors import FailedPreconditionError
jit.forbid_compiling()
try:
    vivace.jit('extern "C" __global__ void k() {}', "k").compile("sm_90a")
except FailedPreconditionError as e:
    assert "vivace pack" in str(e), e
else:
    raise SystemExit("it compiled")
"""


def test_strict_forbids_compiling(tmp_path):
    import os

    subprocess.run([sys.executable, "-c", STRICT], check=True, env=os.environ | {"VIVACE_CACHE": str(tmp_path)})


def test_a_damaged_pack_is_named(tmp_path):
    path = tmp_path / "bad.vvp"
    path.write_bytes(b"not a pack")
    with pytest.raises(Error, match="bad.vvp"):
        jit.add_pack(str(path))
    with pytest.raises((NotFoundError, FailedPreconditionError), match="none.vvp"):
        jit.add_pack(str(tmp_path / "none.vvp"))


def test_doctor_covers_the_gpu():
    from vivace import doctor

    rows = {r["check"]: r for r in doctor.examine()}
    assert {"driver", "chip", "nvrtc", "jit_cache", "clocks", "gpu_op"} <= set(rows)
    assert all(r["status"] in ("ok", "note", "FAIL") and r["found"] for r in rows.values())
    assert all(r["fix"] for r in rows.values() if r["status"] == "FAIL")
    assert (rows["gpu_op"]["found"] == "no GPU") == (gpus() == 0)


def test_doctor_says_how_to_repair_the_cache(tmp_path):
    folder = tmp_path / "jit"
    folder.mkdir()
    folder.chmod(0o777)
    rows = {r["check"]: r for r in json.loads(run("doctor", "--json", VIVACE_CACHE=str(tmp_path)).stdout)["checks"]}
    assert rows["jit_cache"]["status"] == "FAIL" and rows["jit_cache"]["fix"]


def test_torch_ops():
    torch = pytest.importorskip("torch")
    from vivace import torch_ops

    assert set(torch_ops.names) == {r["name"] for r in _core.op_table()}
    x, w = torch.randn(5, 64), torch.randn(64)
    out, want = torch.empty_like(x), np.empty((5, 64), np.float32)
    torch.ops.vivace.norm(x, out, weight=w, eps=1e-5)
    ops.norm(x.numpy(), weight=w.numpy(), out=want, eps=1e-5)
    assert np.array_equal(out.numpy(), want)
    torch.library.opcheck(torch.ops.vivace.norm.default, (x, out), {"weight": w}, test_utils=("test_schema", "test_faketensor"))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def f(x, w):
        y = torch.empty_like(x)
        torch.ops.vivace.norm(x, y, weight=w, eps=1e-5)
        return y * 2

    assert np.array_equal(f(x, w).numpy(), want * 2)
    with pytest.raises(InvalidShapeError):
        torch.ops.vivace.norm(x, torch.empty(5, 63))
