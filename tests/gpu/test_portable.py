"""Products by the tactics that chips without a table of their own have (VIVACE_PORTABLE=1), which are chosen where a process begins: the
table-driven cases of each op, in a process of their own, on the device that is there."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.op_data import contents, device, reference
from tests.op_run import Run
from vivace import _core

ROOT = Path(__file__).resolve().parents[2]
OPS = ("gemm", "gated_gemm", "grouped_gemm")


def picked(op):
    """The kernels that an H200 would take for the op's cases in this process."""
    return {_core.picked_kernel(op, 90, **Run(op, case, contents(op, case, "normal")).arguments()) for case in reference(op).CASES if "T=0" not in case.id and "=q" not in case.id}


def forced(*words):
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=os.environ | {"VIVACE_PORTABLE": "1"}, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("op", OPS[:1])
def test_forced_picks_are_portable(op):
    done = forced("-c", f"from tests.gpu.test_portable import picked; print(*picked({op!r}), sep='\\n')")
    assert done.returncode == 0, done.stderr[-1500:]
    assert "gemm_stream" in done.stdout and "gemm_tile" in done.stdout and "wgmma" not in done.stdout, done.stdout


@pytest.mark.skipif(not (device and device.ON_GPU), reason="--device cuda runs these")
@pytest.mark.parametrize("op", OPS)
def test_portable_path(op):
    done = forced("-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "cuda", "tests/test_ops.py", "-k", f"test_result and [{op}- and normal")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-1500:]
