"""Kernels compiled by helper processes: the same bytes as those of this process, and nothing lost where helpers fail."""
import subprocess
import sys

import pytest

import vivace
from vivace import _core, jit

try:
    jit.find_nvrtc()
    _core.nvrtc_info()
except vivace.Error:
    pytest.skip("needs NVRTC", allow_module_level=True)

PACK = """
import sys
from vivace import _core, jit, pack
jit.find_nvrtc()
if sys.argv[2:]:
    _core.set_helper_command(sys.argv[2:])
print(pack.build(sys.argv[1], ["sm_90a"], ["fill", "repeat_heads"], jobs=2)["kernels"])
"""


def packed(tmp_path, name, *command):
    env = {"VIVACE_CACHE": str(tmp_path / f"{name}-cache"), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", PACK, tmp_path / name, *map(str, command)], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= 16, "too few kernels for helpers"
    return (tmp_path / name).read_bytes()


def helper(tmp_path, before):
    """A program that notes that it ran, and after `before` does what helpers do."""
    words = jit._helper_command()
    script = tmp_path / "helper.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')\n{before}\n{words[-1]}\n")
    return [*words[:-2], script]


def test_a_helper_gives_the_same_binaries(tmp_path):
    helped = packed(tmp_path, "helped", *helper(tmp_path, ""))
    assert (tmp_path / "ran").read_text() == "x", "one process for the one thread beside the caller's"
    assert helped == packed(tmp_path, "alone", "/nonexistent/program")


@pytest.mark.parametrize("ends", ["import sys; sys.exit(3)", "import os; os.read(0, 100); os._exit(0)", "import os; os.write(0, b'\\xff' * 64); os._exit(0)"])
def test_what_a_helper_does_not_do_is_done_here(tmp_path, ends):
    assert packed(tmp_path, "helped", *helper(tmp_path, ends)) == packed(tmp_path, "alone", "/nonexistent/program")
    assert (tmp_path / "ran").exists()


def test_an_error_of_a_helper_is_the_compilers(tmp_path):
    """Headers that do not compile: the error names source and line, whoever compiled."""
    folder = tmp_path / "kernels/vivace/kernels/copy"
    folder.mkdir(parents=True)
    (folder / "fill.cuh").write_text("int wrong = ;\n")
    code = PACK.replace("import sys\n", f"import sys, os\nos.environ['VIVACE_KERNEL_DIR'] = {str(tmp_path / 'kernels')!r}\n", 1)
    env = {"VIVACE_CACHE": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "pack", *map(str, helper(tmp_path, ""))], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "fill.cuh" in done.stderr and "int wrong = ;" in done.stderr, done.stderr[-1500:]


def test_a_program_that_embeds_python_has_no_helpers(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/opt/robot/controller")
    assert jit._helper_command() == []
    monkeypatch.setattr(sys, "executable", None)
    assert jit._helper_command() == []
