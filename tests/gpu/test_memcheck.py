"""What memcheck says of copies within a cluster: why no kernel sends itself what it sends others."""
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.op_data import device

TOOL = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
pytestmark = pytest.mark.skipif(not (device and device.ON_GPU) or not Path(TOOL).exists(), reason="needs --device cuda and compute-sanitizer")
CASE = Path(__file__).with_name("copy_case.py")


def run(name, *tool):
    done = subprocess.run([*tool, sys.executable, CASE, name], capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_memcheck_takes_a_copy_to_the_own_block_for_an_error():
    memcheck = [TOOL, "--tool", "memcheck", "--report-api-errors", "no"]
    assert "right" in run("own") and "right" in run("peer"), "the copies themselves"
    peer = run("peer", *memcheck)
    assert "right" in peer and "ERROR SUMMARY: 0 errors" in peer, peer[-1500:]
    assert "Out-of-range shared" in run("beyond", *memcheck), "the tool no longer sees a real one"
    own = run("own", *memcheck)
    assert "not located in remote CTA" in own, "this version of the tool knows such copies: say so in docs/design/050-racecheck.md. " + own[-1500:]
