"""A GPU that is not there: a driver whose memory is the host's, and an NVRTC that makes kernels by the C++ compiler, for a process of
their own. What arrays launch on a GPU, source, arguments and grid alike, then runs thread by thread. See threads.h."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CXX, CC = shutil.which("g++") or shutil.which("c++"), shutil.which("gcc") or shutil.which("cc")


def build(folder: Path) -> Path:
    """The two libraries, in a folder that also takes what is compiled with them."""
    driver = (HERE / "driver.c").read_text()
    names = re.findall(r"^  X\((cu\w+),", (ROOT / "vivace/device/cuda_api.h").read_text(), re.M)
    absent = ("cuGreen", "cuDevRes", "cuDevSm", "cuCtxFrom")
    silent = "".join(f"int {n}() {{ return 0; }}\n" for n in names if not n.startswith(absent) and f"int {n}(" not in driver)
    (folder / "driver.c").write_text(driver + silent)
    subprocess.run([CC, "-shared", "-fPIC", "-w", "-O1", "-o", folder / "libcuda.so.1", folder / "driver.c", "-ldl"], check=True)
    subprocess.run([CC, "-shared", "-fPIC", "-w", "-O1", "-o", folder / "libcupti.so.13", HERE / "cupti.c", folder / "libcuda.so.1"], check=True)
    subprocess.run([CXX, "-shared", "-fPIC", "-w", "-O1", "-o", folder / "libnvrtc.so", HERE / "nvrtc.cc"], check=True)
    # Compiled once: what every kernel includes.
    (folder / "threads.h").write_text((HERE / "threads.h").read_text() + '#include "vivace/kernels/map/held.cuh"\n')
    flags = ["-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-I", ROOT]
    subprocess.run([CXX, *flags, "-x", "c++-header", "-o", folder / "threads.h.gch", folder / "threads.h"], check=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    import vivace
    return os.environ | {
        "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}", "VIVACE_NVRTC": str(folder / "libnvrtc.so"),
        "VIVACE_CACHE": str(folder / "cache"), "VV_EMULATED_CXX": CXX, "VV_EMULATED_ROOT": str(ROOT), "VV_EMULATED_OUT": str(folder),
        "PYTHONPATH": os.pathsep.join([str(Path(vivace.__file__).parents[1]), str(ROOT)]),
    }


def run(folder: Path, text: str, timeout: float = 300, **env: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment(folder) | env, timeout=timeout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout
