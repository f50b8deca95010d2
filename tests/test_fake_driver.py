"""Bad machines, by a driver that a C compiler makes here: chips without kernels, old drivers, GPUs that are not
there, no compiler for kernels. Every call of the fake succeeds and does nothing, except that memory is refused in
any other size than a real driver takes."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CC = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")

# Two devices: a Turing chip and a Hopper one. Attributes 75 and 76 are the compute capability, 97 a block's shared memory.
ANSWERS = {
    "cuInit": "(unsigned f) { return 0; }",
    "cuDriverGetVersion": "(int* v) { const char* e = getenv(\"FAKE_CUDA\"); *v = e ? atoi(e) : 13000; return 0; }",
    "cuDeviceGetCount": "(int* n) { *n = 2; return 0; }",
    "cuDeviceGet": "(int* d, int ordinal) { *d = ordinal; return 0; }",
    "cuDeviceGetName": "(char* s, int n, int d) { snprintf(s, n, d ? \"Fake Hopper\" : \"Fake Turing\"); return 0; }",
    "cuDeviceGetUuid_v2": "(unsigned char* u, int d) { memset(u, d, 16); return 0; }",
    "cuDeviceTotalMem_v2": "(size_t* n, int d) { *n = 1ul << 34; return 0; }",
    "cuDeviceGetAttribute": "(int* v, int a, int d) { *v = a == 75 ? (d ? 9 : 7) : a == 76 ? (d ? 0 : 5) : a == 97 ? 232448 : 1000; return 0; }",
    "cuDevicePrimaryCtxRetain": "(void** c, int d) { *c = (void*)(size_t)(16 + d); return 0; }",
    "cuCtxGetCurrent": "(void** c) { *c = 0; return 0; }",
    "cuCtxGetStreamPriorityRange": "(int* a, int* b) { *a = 0; *b = -5; return 0; }",
    "cuMemGetInfo_v2": "(size_t* free, size_t* total) { *free = *total = 1ul << 34; return 0; }",
    "cuMemGetAllocationGranularity": "(size_t* n, void* prop, int option) { *n = 1 << 21; return 0; }",
    "cuMemAddressReserve": "(size_t* at, size_t n, size_t align, size_t wish, size_t f) { static size_t next = 1ul << 40; *at = next; next += n; return 0; }",
    "cuMemCreate": "(size_t* h, size_t n, void* prop, size_t f) { *h = 1; return n == 0 || n % (1 << 21) ? 1 : 0; }",
    "cuMemMap": "(size_t at, size_t n, size_t offset, size_t h, size_t f) { return at % (1 << 21) || n % (1 << 21) ? 1 : 0; }",
    "cuMemHostAlloc": "(void** p, size_t n, unsigned f) { *p = calloc(1, n); return 0; }",
    "cuMemFreeHost": "(void* p) { free(p); return 0; }",
    "cuGetErrorName": "(int e, const char** s) { *s = \"FAKE\"; return 0; }",
    "cuGetErrorString": "(int e, const char** s) { *s = \"fake\"; return 0; }",
    # Kernels: of one parameter of so many bytes. What a stream is told is told on stderr where the test asks for it.
    "cuKernelGetParamInfo": "(void* k, size_t i, size_t* at, size_t* n) { const char* e = getenv(\"FAKE_PARAMETER\"); *at = 0, *n = e ? atoi(e) : 8; return i > 0; }",
    "cuKernelGetAttribute": "(int* v, int a, void* k, int d) { *v = a == 0 ? 1024 : 32; return 0; }",
    "cuPointerGetAttribute": "(int* v, int a, size_t at) { const char* e = getenv(\"FAKE_OWNER\"); *v = !e ? 0 : a == 2 ? 2 : atoi(e); return 0; }",
    "cuStreamCreateWithPriority": "(void** s, unsigned f, int p) { static size_t last = 0; *s = (void*)(++last << 8); return 0; }",
    "cuStreamBatchMemOp_v2": "(void* s, unsigned n, void* ops, unsigned f) { if (getenv(\"FAKE_TELLS\")) fprintf(stderr, \"%zu wait %u\\n\", (size_t)s, n); return 0; }",
    "cuLaunchKernelEx": "(const struct config* c, void* f, void** p, void** x) { if (getenv(\"FAKE_TELLS\")) { int early = 0; for (unsigned i = 0; i < c->attributes; ++i) early |= c->attribute[i].id == 6 && c->attribute[i].flag; fprintf(stderr, \"%zu launch %s\\n\", (size_t)c->stream, early ? \"early\" : \"behind\"); } return 0; }",
}
TYPES = "struct config { unsigned grid[3], block[3], smem; void* stream; struct { int id, pad, flag, rest[15]; }* attribute; unsigned attributes; };\n"
NVRTC = """
#include <stddef.h>
int nvrtcVersion(int* a, int* b) { *a = 13, *b = 0; return 0; }
int nvrtcGetNumSupportedArchs(int* n) { *n = 1; return 0; }
int nvrtcGetSupportedArchs(int* a) { *a = 90; return 0; }
int nvrtcCreateProgram(void** p) { *p = 0; return 0; }
int nvrtcDestroyProgram() { return 0; }
int nvrtcAddNameExpression() { return 0; }
int nvrtcGetLoweredName(void* p, const char* e, const char** s) { *s = "kernel"; return 0; }
int nvrtcCompileProgram() { return 0; }
int nvrtcGetCUBINSize(void* p, size_t* n) { *n = 5; return 0; }
int nvrtcGetCUBIN(void* p, char* to) { __builtin_memcpy(to, "cubin", 5); return 0; }
int nvrtcGetProgramLogSize(void* p, size_t* n) { *n = 1; return 0; }
int nvrtcGetProgramLog(void* p, char* to) { *to = 0; return 0; }
const char* nvrtcGetErrorString(int e) { return "fake"; }
"""
PRELUDE = """
import vivace
from tests.dlpack_fake import CUDA, Fake
from vivace import device, ops
def on(gpu, dtype="f32", at=0x7F0000000000, shape=(4, 8)):
    return Fake(at, dtype, shape, device=CUDA, device_id=gpu)
def cast(gpu):
    ops.cast(x=on(gpu), out=on(gpu, "f16", 0x7F0000010000))
def said(f, *args):
    try:
        f(*args)
    except vivace.Error as e:
        print(type(e).__name__, e)
    else:
        print("it ran")
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    names = re.findall(r"^  X\((cu\w+),", (ROOT / "vivace/device/cuda_api.h").read_text(), re.M)
    assert set(ANSWERS) <= set(names) and len(names) > 60
    text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n" + TYPES
    text += "".join(f"int {n}{ANSWERS.get(n, '() { return 0; }')}\n" for n in names if not n.startswith(("cuGreen", "cuDevRes", "cuDevSm", "cuCtxFrom")))
    (folder / "fake.c").write_text(text)
    (folder / "nvrtc.c").write_text(NVRTC)
    for library, source in (("libcuda.so.1", "fake.c"), ("libnvrtc.so", "nvrtc.c")):
        subprocess.run([CC, "-shared", "-fPIC", "-w", "-o", folder / library, folder / source], check=True)
    return folder


def run(driver, text, tmp_path, **env):
    env = os.environ | {"LD_LIBRARY_PATH": f"{driver}:{os.environ.get('LD_LIBRARY_PATH', '')}", "VIVACE_CACHE": str(tmp_path / "cache"),
                        "PYTHONPATH": os.pathsep.join([str(Path(__import__("vivace").__file__).parents[1]), str(ROOT)])} | env
    done = subprocess.run([sys.executable, "-c", PRELUDE + text], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr if "FAKE_TELLS" in env else done.stdout


def test_a_chip_without_kernels_is_named(driver, tmp_path):
    out = run(driver, "print(device.count())\nsaid(cast, 0)\nprint(device.info(1)['name'])", tmp_path)
    assert out.splitlines()[0] == "2" and out.splitlines()[2] == "Fake Hopper"
    assert re.search(r"^UnsupportedError cast: Fake Turing has compute capability 7.5; kernels exist for sm_80, .*: use the CPU backend$", out, re.M), out


def test_an_old_driver_is_told_its_version(driver, tmp_path):
    out = run(driver, "said(cast, 1)\nsaid(device.count)", tmp_path, FAKE_CUDA="11080")
    assert out.count("UnsupportedError") == 2 and out.count("the NVIDIA driver supports CUDA 11.8, Vivace needs 12.4 or newer; update the driver") == 2, out


def test_a_gpu_that_is_not_there(driver, tmp_path):
    out = run(driver, "said(cast, 7)\nsaid(device.info, 7)", tmp_path)
    assert out.count("device 7: this process sees devices 0 to 1") == 2, out


def test_no_nvrtc_and_no_pack(driver, tmp_path):
    out = run(driver, "said(cast, 1)", tmp_path, VIVACE_NVRTC="/nonexistent/libnvrtc.so")
    assert re.search(r"^UnsupportedError cast: .*/nonexistent/libnvrtc.so", out, re.M | re.S), out


def test_tensors_on_two_gpus(driver, tmp_path):
    out = run(driver, 'said(lambda: ops.cast(x=on(1), out=on(0, "f16", 0x7F0000010000)))', tmp_path)
    assert "InvalidDeviceError cast: port out: it is on GPU 0, the tensors before it on GPU 1" in out, out


def test_a_negative_size_is_refused(driver, tmp_path):
    out = run(driver, 'said(lambda: ops.cast(x=on(1, shape=(4, -8)), out=on(1, "f16", 0x7F0000010000)))', tmp_path)
    assert "InvalidShapeError cast: port x" in out, out


def test_memory_of_every_size(driver, tmp_path):
    out = run(driver, """
from vivace import array
kept = []
for edge in (1 << 10, 448 << 10, 512 << 10, 2 << 20):
    for n in (edge - 257, edge - 1, edge, edge + 1):
        kept.append(array.empty((n,), "u8", "cuda:1"))
stats = array.pool_stats(1)
print(stats["requested"] == sum(a.nbytes for a in kept), stats["mapped"] % (2 << 20))
""", tmp_path)
    assert out.split() == ["True", "0"], out


def test_the_pool_tells_all_it_counts(driver, tmp_path):
    out = run(driver, """
from vivace import array
def told():
    s = array.pool_stats(1)
    assert s["mapped"] == s["used"] + s["cached"], s
    return s
a = array.empty((1 << 20,), "u8", "cuda:1")
first = told()
a.close()
b = array.empty((1 << 20,), "u8", "cuda:1")
again = told()
b.close()
after = told()
print(first["allocations"], again["allocations"] - first["allocations"], again["reuses"] - first["reuses"], again["maps"] - first["maps"])
print(after["used"], after["cached"] == after["mapped"] > 0, after["failures"], after["peak_used"] >= 1 << 20, after["device_total"] == 1 << 34)
print(len(again["tenants"]), again["tenants"][0]["used_bytes"] == again["used"], again["tenants"][0]["quota_bytes"])
""", tmp_path)
    assert out.split() == "1 1 1 0 0 True 0 True True 1 True 0".split(), out


def test_the_pool_is_trimmed_and_limited(driver, tmp_path):
    out = run(driver, """
from vivace import array
told = lambda: array.pool_stats("cuda:1")
a, b = (array.empty((8 << 20,), "u8", "cuda:1") for _ in range(2))
rows = array.pool_snapshot(1)
print([(r["name"], r["tenant"], r["requested"], r["bytes"] >= r["requested"], r["resident"], r["leased"]) for r in rows] == [("vivace.Array", told()["tenants"][0]["name"], 8 << 20, True, True, False)] * 2)
b.close()
held = told()["mapped"]
print(array.pool_trim(1) == held - told()["mapped"] > 0, told()["cached"], told()["mapped"] == told()["used"] == held // 2, len(array.pool_snapshot(1)))
print(told()["peak_used"] == held, told()["tenants"][0]["peak_bytes"] == held)
array.pool_reset_peak("cuda:1")
print(told()["peak_used"] == held // 2, told()["tenants"][0]["peak_bytes"] == held // 2)
array.pool_set_limit(held, 1)
c = array.empty((8 << 20,), "u8", "cuda:1")
said(lambda: array.empty((8 << 20,), "u8", "cuda:1"))
c.close()
array.pool_set_limit(held // 2, 1)
print(told()["cached"], told()["mapped"] == held // 2, told()["capacity"] == held // 2, a.nbytes)
array.pool_set_limit(0, 1)
print(told()["capacity"] == told()["device_total"], array.empty((32 << 20,), "u8", "cuda:1").nbytes, told()["failures"])
said(lambda: array.pool_set_limit(-1, 1))
""", tmp_path)
    lines = out.splitlines()
    assert lines[:4] == ["True", "True 0 True 1", "True True", "True True"], out
    assert re.search(r"^OutOfMemoryError .*capacity of \d+ bytes is reached", lines[4]), out
    assert lines[-3:] == ["0 True True 8388608", "True 33554432 1", "InvalidArgumentError a pool's limit is 0 (none) or more bytes, got -1"], out


def test_views_of_arrays_on_a_gpu_allocate_nothing(driver, tmp_path):
    out = run(driver, """
from vivace import array
a = array.empty((8, 4), "f32", "cuda:1")
before = array.pool_stats(1)["allocations"]
print(array.pool_stats(1)["allocations"] - before, a[2:].T.shape, a.reshape(-1).strides, a[1].data_ptr - a.data_ptr)
""", tmp_path)
    assert out.splitlines() == ["0 (4, 6) (1,) 16"], out


def test_nothing_waits_for_the_device_while_a_scheduler_lives(driver, tmp_path):
    """What frees page-locked memory is put off until its gate has gone."""
    out = run(driver, """
import gc
from vivace import _core
waits, seen = _core.device_wide_waits, []
first = waits()
gpu = vivace.Scheduler("cuda:1")  # which tries its streams with a gate of its own
for name in "ab":
    with gpu.work(name, qos=vivace.best_effort(), worst_ms=50):
        seen.append(waits() - first)
gc.collect()
seen.append(waits() - first)
gpu.close()
del gpu
gc.collect()
print(*seen, waits() - first > 1)
""", tmp_path)
    assert out.split() == ["0", "0", "0", "True"], out


def test_no_launch_begins_before_the_gate_in_front_of_it_is_open(driver, tmp_path):
    """A kernel that may begin while the one before it ends takes its part of every SM; behind a gate it would do so while others are to have the device."""
    nvrtc = dict(VIVACE_NVRTC=str(driver / "libnvrtc.so"))
    bytes_of = re.search(r"takes 1 parameters of 8 bytes together; one argument struct of (\d+) bytes came", run(driver, "said(cast, 1)", tmp_path, **nvrtc))
    out = run(driver, """
import sys
from vivace import _core
def three(stream):
    _core.set_stream(stream)
    for _ in range(3): cast(1)
    _core.set_stream(None)
with vivace.Scheduler("cuda:1") as gpu, gpu.work("w", qos=vivace.best_effort(), worst_ms=50) as work:
    print("begin", file=sys.stderr, flush=True)
    work.run(three, three)
""", tmp_path, FAKE_TELLS="1", FAKE_PARAMETER=bytes_of[1], **nvrtc)
    told = [line.split() for line in out.partition("begin")[2].splitlines() if re.match(r"\d+ (wait|launch)", line)]
    assert [t[1:] for t in told] == 2 * [["wait", "2"], ["launch", "behind"], ["launch", "early"], ["launch", "early"]] and len({t[0] for t in told}) == 1, out


XLA = """
import sys
from tests.op_data import NUMPY, OPS, PAIRS, is_block, reference, row_bytes, shape_of
from tests.test_jax_ffi import EXECUTE, INITIALIZE, Call
from vivace import _core
def frame(op, case, stream=1280):
    sides, names = ([], []), ([], [])
    for p in OPS[op]["ports"]:
        dtype = case.dtypes.get(p["name"])
        if dtype is None: continue
        shape, packed = shape_of(op, p["name"], case), is_block(dtype) or dtype in PAIRS
        array = np.zeros((*shape[:-1], row_bytes(dtype, (1, shape[-1]))), np.uint8) if packed else np.zeros(shape, NUMPY[dtype])
        for side in (0,) * (p["io"] != "out") + (1,) * (p["io"] != "in"):
            sides[side].append(array)
            names[side].append(p["name"] + (":" + dtype) * packed)
    values = {n: v if isinstance(v, str) else float(v) for n, v in case.attrs.items()}
    return Call(*sides, "CUDA", stream=stream, vivace_op=op, vivace_ports=",".join(names[0] + names[1]), **values)
def stage(call, which, mark):
    call.frame.stage, call.failed = which, None
    print("#", mark, file=sys.stderr, flush=True)
    failed = call()
    print("#", failed, file=sys.stderr, flush=True)
    return failed
"""


def test_xlas_initialise_stage_loads_what_its_execute_stage_launches(driver, tmp_path):
    """All ops with kernels, composites too: before execution all is compiled and loaded and nothing is launched; execution loads nothing. The
    fake's kernels take another argument than most ops give, so that an execution ends at its first launch."""
    out = run(driver, "import numpy as np" + XLA + """
for op, row in OPS.items():
    if not row["gpu"]: continue
    unserved = getattr(reference(op), "unserved_on_gpu", lambda case: None)
    for case in [c for c in reference(op).CASES if not unserved(c) and c.rows is None and 0 not in c.dims.values()][:2]:
        call, before = frame(op, case), len(_core.loaded_kernels())
        assert stage(call, INITIALIZE, f"load {op}") is None, (op, case.id, call.failed)
        loaded = set(_core.loaded_kernels())
        failed = stage(call, EXECUTE, f"run {op} {len(loaded) - before}")
        assert set(_core.loaded_kernels()) == loaded and (failed is None or "argument struct of" in failed[1]), (op, case.id, failed)
""", tmp_path, FAKE_TELLS="1", FAKE_OWNER="1", VIVACE_NVRTC=str(driver / "libnvrtc.so"))
    loads, runs = re.findall(r"^# load (\w+)\n# None$", out, re.M), dict(re.findall(r"^# run (\w+) (\d+)$", out, re.M))
    assert len(set(loads)) > 45 and set(loads) == set(runs), sorted(set(runs) ^ set(loads))
    assert all(line == "1280 launch behind" or line == "1280 launch early" for line in out.splitlines() if not line.startswith("#")), out


def test_xlas_operands_are_not_read_ahead(driver, tmp_path):
    """Whatever this thread promised of its own weights, and on XLA's stream; without one the error is ours."""
    text = "import numpy as np" + XLA + """
case = next(c for c in reference("gemm").CASES if set(c.dtypes) == {"x", "w", "out"} and c.dtypes["w"] == "bf16")
with ops.constant_weights():
    stage(frame("gemm", case), EXECUTE, "gemm")
stage(frame("gemm", case, stream=None), EXECUTE, "no stream")
"""
    fake = {"FAKE_TELLS": "1", "FAKE_OWNER": "1", "VIVACE_NVRTC": str(driver / "libnvrtc.so")}
    size = re.search(r"one argument struct of (\d+) bytes came", run(driver, text, tmp_path, **fake))
    out = run(driver, text, tmp_path, **fake, FAKE_PARAMETER=size[1])
    assert re.search(r"# gemm\n1280 launch behind\n# None\n", out) and out.count("launch") == 1, out
    assert "Internal: vivace.op: XLA has no stream for this call" in out, out


def test_memory_of_the_host_is_refused_by_xlas_cuda_handler(driver, tmp_path):
    out = run(driver, "import numpy as np" + XLA + """
for which in (INITIALIZE, EXECUTE):
    stage(frame("cast", reference("cast").CASES[0]), which, "cast")
""", tmp_path, FAKE_TELLS="1")
    assert out.count("is not device memory: copy the data to the GPU first") == 2, out
