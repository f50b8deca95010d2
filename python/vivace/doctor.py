"""What `vivace doctor` examines. Each check returns what it found and, where something is wrong, the fix."""
from __future__ import annotations

import os
import stat
from pathlib import Path


def examine() -> list[dict]:
    """One row a check: check, status (ok, note, FAIL), found, fix (None if nothing is to be done)."""
    rows = []
    for check in (_build, _cpu, _op, _memory, _cache, _driver, _chip, _nvrtc, _structured, _jax, _jit_cache, _clocks, _gpu_op, _server, _robot_port):
        status, found, fix = check()
        rows.append({"check": check.__name__.strip("_"), "status": status, "found": found, "fix": fix})
    return rows


def _build():
    import vivace

    return "ok", f"vivace {vivace.__version__}, {sum(len(vivace.ops.ops_table()[k]) for k in ('ops', 'aliases'))} ops and aliases", None


def _cpu():
    flags = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
            break
    level = "avx512" if {"avx512bw", "avx512vl", "avx512_vnni"} <= flags else "avx2" if {"avx2", "fma", "f16c"} <= flags else "portable"
    forced = os.environ.get("VIVACE_CPU_ISA")
    found = f"{len(os.sched_getaffinity(0))} CPUs, kernels: {forced + ' (VIVACE_CPU_ISA)' if forced else level}"
    return ("note", found, "unset VIVACE_CPU_ISA to use this CPU fully") if forced and forced != level else ("ok", found, None)


def _op():
    """Runs a real kernel and checks its numbers."""
    import numpy as np

    import vivace

    x = np.arange(1, 65, dtype=np.float32)[None]
    out = np.empty_like(x)
    vivace.ops.norm(x=x, out=out, eps=0.0)
    error = float(np.abs(out - x / np.sqrt((x.astype(np.float64) ** 2).mean())).max())
    if error > 1e-5:
        return "FAIL", f"norm is off by {error:.2e}", "report this with the output of `vivace doctor --json`"
    return "ok", f"norm ran on the CPU, max error {error:.1e}", None


def _memory():
    info = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(info["MemAvailable"].split()[0]) // 1024
    if free < 512:
        return "note", f"{free} MB available", "close other programs, or lower context and max_batch"
    return "ok", f"{free} MB available", None


def _cache():
    from vivace import fetch

    folder = fetch.cache_dir()
    if not folder.exists():
        return "ok", f"{folder}: not made yet", None
    mode = folder.stat()
    if mode.st_uid != os.getuid() or mode.st_mode & stat.S_IWOTH:
        return "FAIL", f"{folder}: owned by uid {mode.st_uid}, mode {stat.filemode(mode.st_mode)}", f"chown and chmod o-w {folder}, or set VIVACE_CACHE"
    if not os.access(folder, os.W_OK):
        return "FAIL", f"{folder}: not writable", "fix its permissions or set VIVACE_CACHE"
    return "ok", f"{folder}: writable", None


def _driver():
    from vivace import _core
    from vivace.errors import Error

    try:
        version, count = _core.driver_version(), _core.device_count()
    except Error as e:
        return "note", f"no GPU in use: {e}", "nothing, if the CPU is to serve everything"
    return "ok", f"NVIDIA driver for CUDA {version // 1000}.{version % 1000 // 10}, {count} GPU{'s' * (count != 1)}", None


def _gpus() -> int:
    from vivace import _core
    from vivace.errors import Error

    try:
        return _core.device_count()
    except Error:
        return 0


NO_GPU = ("note", "no GPU", None)


def _chip():
    from vivace import device
    from vivace.errors import Error

    found = []
    for i in range(_gpus()):
        d = device.info(i)
        try:
            device._core.check_device(i)
        except Error as e:
            return "FAIL", str(e), "hide it with CUDA_VISIBLE_DEVICES, or use the CPU"
        m = device.state(i)
        found.append(f"cuda:{i} {d['name']} {d['arch']}, {d['sm_count']} SMs, {m['free_bytes'] >> 20} of {m['total_bytes'] >> 20} MB free")
    return ("ok", "; ".join(found), None) if found else NO_GPU


def _nvrtc():
    from vivace import _core, jit
    from vivace.errors import Error

    jit.find_nvrtc()
    try:
        n = _core.nvrtc_info()
    except Error as e:
        status = "FAIL" if _gpus() and not os.environ.get("VIVACE_PACKS") else "note"
        return status, str(e).split(":")[0], "pip install 'vivace[cuda]', set CUDA_HOME, or give packs in VIVACE_PACKS (`vivace pack` makes them)"
    headers = f"headers {n['include_dirs'][0]}" if n["include_dirs"] else "no CUDA headers"
    fix = None if n["include_dirs"] else "pip install 'vivace[cuda]' if your own kernels include cuda_fp16.h and its like"
    return ("ok" if fix is None else "note"), f"{n['version']} at {n['library']}; {headers}", fix


def _structured():
    try:
        import llguidance
    except ImportError:
        return "note", "llguidance is not installed: no json_schema, regex and grammar", "pip install 'vivace[structured]'"
    return "ok", f"llguidance {llguidance.__version__}", None


def _jax():
    """Whether vivace.jax_ops has what it needs, without importing it."""
    from importlib import metadata

    try:
        found = f"jax {metadata.version('jax')} with jaxlib {metadata.version('jaxlib')}"
    except metadata.PackageNotFoundError:
        return "note", "jax is not installed: no vivace.jax_ops", "pip install jax, if JAX programs are to call the ops"
    cuda = [f"{d.name} {d.version}" for d in metadata.distributions() if (d.name or "").startswith("jax-cuda") and d.name.endswith("-plugin")]
    return "ok", f"{found}, {cuda[0] if cuda else 'no CUDA plugin'}", None


def _jit_cache():
    from vivace import _core
    from vivace.errors import Error

    try:
        return "ok", f"{_core.jit_cache()}: ours alone, writable", None
    except Error as e:
        return "FAIL", str(e), "repair it as the message says, or set VIVACE_CACHE"


def _clocks():
    from vivace import device
    from vivace.errors import Error

    found, slow = [], False
    for i in range(_gpus()):
        try:
            s = device.state(i)
        except Error as e:
            return "note", f"cuda:{i}: {e}", None
        found.append(f"cuda:{i} SM {s['sm_mhz']}/{s['max_sm_mhz']} MHz, memory {s['memory_mhz']}/{s['max_memory_mhz']} MHz, {s['temperature_c']} C")
        slow |= bool(s["throttle_reasons"] & ~1)  # 1: idle
    if not found:
        return NO_GPU
    return ("note" if slow else "ok"), "; ".join(found), "clocks are held back: check cooling and the power limit with `nvidia-smi -q -d PERFORMANCE`" if slow else None


def _gpu_op():
    """norm on each GPU, compiled or from a pack or the cache, against numbers."""
    import numpy as np

    from vivace import array, jit, ops
    from vivace.errors import Error

    jit.find_nvrtc()
    worst, n = 0.0, _gpus()
    x = np.arange(1, 4097, dtype=np.float32)[None] / 64
    want = x / np.sqrt((x.astype(np.float64) ** 2).mean())
    for i in range(n):
        try:
            with array.from_numpy(x, f"cuda:{i}") as a, array.empty(x.shape, "f32", f"cuda:{i}") as out:
                ops.norm(a, out=out, eps=0.0)
                worst = max(worst, float(np.abs(out.numpy() - want).max()))
        except Error as e:
            return "FAIL", f"cuda:{i}: {type(e).__name__}: {e}", "do as the message says"
    if worst > 1e-5:
        return "FAIL", f"norm is off by {worst:.2e}", "report this with the output of `vivace doctor --json`"
    return ("ok", f"norm ran on {n} GPU{'s' * (n != 1)}, max error {worst:.1e}", None) if n else NO_GPU


def _server():
    """What `vivace serve` needs besides the package itself."""
    from importlib import metadata

    found, missing = [], []
    for name in ("uvicorn", "httptools", "starlette", "msgspec"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return "note", f"vivace serve lacks {', '.join(missing)}", "pip install 'vivace[serve]', if it is to serve over HTTP"
    return "ok", f"vivace serve: {', '.join(found)}", None


def _robot_port():
    """Whether `vivace serve-policy` can listen where robots look for it."""
    import vivace
    from vivace.errors import Error

    try:
        with vivace.PolicyHost(port=8000) as host:
            return "ok", f"vivace serve-policy can listen on 127.0.0.1 port {host.port}", None
    except Error as e:
        return "note", str(e), "end the program that has the port, or give serve-policy another --port"
