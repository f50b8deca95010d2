"""What `vivace doctor` examines. Each check returns what it found and, where something is wrong, the fix."""
from __future__ import annotations

import os
import stat
from pathlib import Path


def examine() -> list[dict]:
    """One row a check: check, status (ok, note, FAIL), found, fix (None if nothing is to be done)."""
    rows = []
    for check in (_build, _cpu, _op, _memory, _cache, _driver):
        status, found, fix = check()
        rows.append({"check": check.__name__.strip("_"), "status": status, "found": found, "fix": fix})
    return rows


def _build():
    import vivace

    return "ok", f"vivace {vivace.__version__}, {len(vivace.ops.ops_table())} ops and aliases", None


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
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "note", "no NVIDIA driver; the CPU backend serves everything", None
    version = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return "note", "an NVIDIA driver is installed but finds no usable GPU", "check `nvidia-smi`"
    return "note", f"NVIDIA driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}; models of this version run on the CPU", None
