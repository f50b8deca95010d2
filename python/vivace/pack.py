"""`vivace pack`: compiled kernels of the ops in one file, for machines with a driver and no NVRTC."""
from __future__ import annotations

import os
import time

from vivace import _core, jit


def build(path: str, archs: list[str], ops: list[str] = (), *, jobs: int = 0, progress=None) -> dict:
    """Compiles every instance of `ops` (all by default) for each chip, without a GPU, and writes the pack."""
    jit.find_nvrtc()
    start = time.perf_counter()
    kernels = _core.pack_kernels(os.fspath(path), list(archs), list(ops), jobs, progress)
    return {"path": os.fspath(path), "archs": list(archs), "kernels": kernels, "bytes": os.path.getsize(path),
            "seconds": round(time.perf_counter() - start, 2)}
