"""What racecheck says of named barriers that groups of warps pass unequally often: the reason for tool_views.py."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.op_data import device

TOOL = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
pytestmark = pytest.mark.skipif(not (device and device.ON_GPU) or not Path(TOOL).exists(), reason="needs --device cuda and compute-sanitizer")


def test_racecheck_takes_uneven_named_barriers_for_a_race():
    done = subprocess.run([TOOL, "--tool", "racecheck", sys.executable, Path(__file__).with_name("barrier_case.py")], capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert "RACECHECK SUMMARY" in said, said[-500:]
    reported = set(re.findall(r"(?:Write|Read) access at (\w+)", said))
    assert "racing" in reported, "the tool no longer sees a real race: " + said[-500:]
    assert not reported & {"equal", "evened"}, said[-1500:]
    assert "unequal" in reported, "this version of the tool follows uneven barriers: drop EVEN of tool_views.py and run the kernels as they are"
