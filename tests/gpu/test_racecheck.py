"""What racecheck says of small kernels that are right: the reasons for tool_views.py."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.op_data import device

TOOL = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
pytestmark = pytest.mark.skipif(not (device and device.ON_GPU) or not Path(TOOL).exists(), reason="needs --device cuda and compute-sanitizer")


def reported(case):
    """Kernels of a case that the tool reports."""
    done = subprocess.run([TOOL, "--tool", "racecheck", sys.executable, Path(__file__).with_name(case)], capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert "RACECHECK SUMMARY" in said, said[-500:]
    return set(re.findall(r"(?:Write|Read) access at (\w+)", said))


def test_racecheck_takes_uneven_named_barriers_for_a_race():
    for _ in range(3):  # it depends on which group comes first
        found = reported("barrier_case.py")
        if "unequal" in found:
            break
    assert "racing" in found, "the tool no longer sees a real race"
    assert not found & {"equal", "evened"}, found
    assert "unequal" in found, "this version of the tool follows uneven barriers: drop those of EVEN of tool_views.py and run the kernels as they are"


def test_racecheck_takes_one_lanes_arrival_for_its_warp_for_a_race():
    found = reported("arrival_case.py")
    assert not found & {"loads_all", "matrix_all"}, found
    assert found == {"loads_one", "matrix_one"}, "this version of the tool follows __syncwarp(): drop the arrivals of EVEN of tool_views.py and run the kernels as they are"


def test_racecheck_takes_copies_before_a_clusters_barrier_for_a_race():
    found = reported("cluster_case.py")
    assert "stores" not in found, found
    assert {"stores_racing", "copies_racing"} <= found, "the tool no longer sees a real race"
    assert "copies" in found, "this version of the tool orders copies: drop the stores to gemm_weight_only' ring of EVEN of tool_views.py and run the kernel as it is"
