"""Machines that have a driver and no compiler: kernels come from a pack, and what no pack has is said."""
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.op_data import device

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from vivace import _core  # noqa: E402

USE = """
import torch, vivace
from vivace import ops
x = torch.linspace(-4, 4, 1000, device="cuda").reshape(2, 500)
out = torch.empty_like(x)
ops.softmax(x=x, out=out)
assert torch.allclose(out, torch.softmax(x, -1), atol=1e-6)
print("softmax ran")
"""
OTHER = """
try:
    ops.norm(x=x, out=out)
    print("norm ran")
except vivace.Error as e:
    print(type(e).__name__, e)
"""

PARTS = """
import torch
from vivace import ops
g = torch.Generator(device="cuda").manual_seed(0)
x, w = (torch.randn(n, 1024, generator=g, device="cuda", dtype=torch.bfloat16) for n in (1, 520))
normed, out = torch.empty_like(x), torch.empty(1, 520, device="cuda", dtype=torch.bfloat16)
"""


def run(text, cache, errors=False, **env):
    base = {k: v for k, v in os.environ.items() if k not in ("CUDA_HOME", "CUDA_PATH", "VIVACE_NVRTC", "VIVACE_PACKS")}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=base | {"VIVACE_CACHE": str(cache)} | env, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stderr if errors else done.stdout


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "softmax.vvp"
    arch = next(a for a in ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a")
                if a.strip("sm_a") == str(_core.device_info(0)["capability"]))
    subprocess.run([sys.executable, "-m", "vivace.cli", "pack", "--arch", arch, "--op", "softmax", "-o", path], check=True, timeout=200)
    return path


def test_a_pack_serves_without_nvrtc(pack, tmp_path):
    said = run(USE + OTHER, tmp_path, VIVACE_NVRTC="/nonexistent/libnvrtc.so", VIVACE_PACKS=str(pack))
    assert "softmax ran" in said
    assert "UnsupportedError norm: " in said and "/nonexistent/libnvrtc.so" in said, said


def test_strict_names_what_the_pack_lacks(pack, tmp_path):
    strict = "from vivace import jit\njit.forbid_compiling()\n"
    said = run(strict + USE + OTHER, tmp_path, VIVACE_PACKS=str(pack))
    assert "softmax ran" in said
    assert "FailedPreconditionError norm: " in said and "vivace pack" in said, said


def test_a_composite_without_its_kernel_says_that_its_parts_run(tmp_path):
    """The cache has the parts' kernels alone, and there is no compiler: the parts run, and that is said once."""
    torch = pytest.importorskip("torch")
    run(PARTS + f"ops.norm(x=x, out=normed)\nops.gemm(x=normed, w=w, out=out)\ntorch.save(out, {str(tmp_path / 'parts')!r})", tmp_path)
    call = PARTS + f"for _ in range(3): ops.norm_gemm(x=x, w=w, normed=normed, out=out)\ntorch.save(out, {str(tmp_path / 'whole')!r})"
    said = run(call, tmp_path, errors=True, VIVACE_NVRTC="/nonexistent/libnvrtc.so")
    assert said.count("vivace: norm_gemm: its parts run") == 1 and "/nonexistent/libnvrtc.so" in said, said
    assert torch.equal(torch.load(tmp_path / "parts"), torch.load(tmp_path / "whole"))
    assert "its parts run" not in run(call, tmp_path, errors=True)  # with the compiler its kernel does


def test_plain_ops_find_the_wheels_compiler(tmp_path):
    """No jit call, no CUDA_HOME, no nvcc in PATH: a plain op compiles with the NVRTC of this environment."""
    folder = Path(sysconfig.get_path("platlib"))
    here = [f for f in sys.path if list(Path(f or ".").glob("nvidia/*/lib/libnvrtc.so.1*"))]
    if str(folder) not in here:
        pytest.skip("the NVRTC wheel is not installed in this environment")
    said = run(USE + "print(vivace._core.nvrtc_info())", tmp_path, PATH="/usr/bin:/bin")
    assert "softmax ran" in said and str(folder) in said, said
