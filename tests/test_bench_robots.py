"""The benches of a robot's wire and of Qwen3-VL, tried on the CPU: they run to their end and say something of each row. Times are for a machine that does nothing else."""
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("command,rows", [
    (["bench/bench_policy_wire.py", "--calls", "3"], ["frames=2x224x224,metric=over", "frames=2x224x224,metric=trip", "frames=2x480x640,metric=over", "frames=2x480x640,metric=trip"]),
    (["bench/bench_vl_device.py", "--device", "cpu", "--config", "tests/fixtures/qwen3_vl", "--precisions", "bf16", "--calls", "2", "--side", "32"], ["image=32x32,words=32,metric=first", "image=32x32,words=32,metric=step"]),
])
def test_it_runs(command, rows):
    ran = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == len(rows) and all(row in line and "p50" in line for row, line in zip(rows, lines)), ran.stdout
