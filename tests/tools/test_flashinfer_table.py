"""tools/flashinfer_table.py writes docs/flashinfer.md's table from a receipt's rows."""
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_table(tmp_path):
    rows = [{"case": f"file={f},metric={m}", "n": n} for f, counts in (("test_a", (1200, 3, 0)), ("test_b", (0, 7, 0)), ("test_c", (0, 4, 2))) for m, n in zip(("pass", "refused", "wrong"), counts)]
    (tmp_path / "r.json").write_text(json.dumps({"chip": "NVIDIA H200", "date": "2026-11-22T09:38:36Z", "commit": "0123456789abcdef", "rows": rows}))
    doc = tmp_path / "doc.md"
    doc.write_text("above\n<!-- table of flashinfer_table.py -->\nold\n<!-- end of table -->\nbelow\n")
    write = lambda *args: subprocess.run([sys.executable, ROOT / "tools/flashinfer_table.py", *args, "--doc", doc], capture_output=True, text=True)  # noqa: E731
    got = write(tmp_path / "r.json")
    assert got.returncode == 0, got.stderr
    want = ["| `test_a` | 1,200 | 3 | 0 |", "| `test_c` | 0 | 4 | 2 |", "| 1 files of which nothing is served | 0 | 7 | 0 |", "| all | 1,200 | 14 | 2 |"]
    text = doc.read_text()
    assert [line for line in text.splitlines() if line.startswith("| ")][1:] == want and "NVIDIA H200, 2026-11-22, commit 012345678" in text and "old" not in text
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert write(tmp_path / "r.jsonl", "--note", "of rows").returncode == 0 and "of rows" in doc.read_text() and text.startswith("above\n") and text.endswith("-->\nbelow\n")
    doc.write_text("no markers")
    assert write(tmp_path / "r.json").returncode == 2 and doc.read_text() == "no markers"
