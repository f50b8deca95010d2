"""bench/bench_arrays.py end to end on the host: its rows, beside NumPy."""
import json
import subprocess
import sys
from pathlib import Path

from tools.receipt import errors

ROOT = Path(__file__).resolve().parent.parent
FACTS = {"chip": "cpu", "commit": "dirty", "versions": {}, "limits": None}


def test_rows_of_a_run(tmp_path):
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    done = subprocess.run([sys.executable, "bench/bench_arrays.py", "--device", "cpu", "--tiny", "--facts", tmp_path / "facts.json", "--out", tmp_path],
                          cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    data = json.loads((tmp_path / "bench/results/cpu/arrays.json").read_text())
    assert not errors(data, "arrays"), errors(data, "arrays")
    rows = {(r["op"], r["case"], r["dtype"]): r for r in data["rows"]}
    assert {op for op, _, _ in rows} == {"host", "loop", "dlpack", "map", "fold", "chain", "matmul", "order"} and all(r["pass"] for r in rows.values())
    add = rows["map", "call=add,M=256,N=256", "f32"]
    assert add["peer"] == "numpy" and add["ratio"] > 0 and add["bytes"] == 3 * 256 * 256 * 4 and len([r for r in rows if r[0] == "fold"]) == 12
