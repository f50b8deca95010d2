"""tests/kernels.json is of the sources as they are: whoever changes a kernel makes the table again (tools/kernel_table compiles what
changed, up to a quarter of an hour on two cores)."""
import subprocess
import sys
from pathlib import Path

from tools import fingerprint

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_what_the_sources_give():
    assert not (stale := fingerprint.outdated(ROOT)), f"sources of {', '.join(sorted(stale))} changed: run tools/kernel_table and commit {fingerprint.TABLE}"
    done = subprocess.run([sys.executable, "tools/kernel_table", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run tools/kernel_table and commit {fingerprint.TABLE}:\n{done.stdout}{done.stderr[-2000:]}"


def test_every_op_with_kernels_is_in_the_table():
    from vivace import ops

    ops_with_kernels = {r["name"] for r in ops.ops_table()["ops"] if r["gpu"]}
    listed = fingerprint.table(ROOT)["ops"]
    assert set(listed) <= {r["name"] for r in ops.ops_table()["ops"]} and len(ops_with_kernels - set(listed)) == 0
