"""tools/make_reference.py: a page and a stub for every op, which say what the table says."""
import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vivace.ops import ops_table

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    done = subprocess.run([sys.executable, ROOT / "tools/make_reference.py", folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_op_has_a_page(written):
    table = ops_table()
    assert {p.stem for p in (written / "docs/ops").glob("*.md")} == {r["name"] for r in table["ops"]} | {"index"}
    index = (written / "docs/ops/index.md").read_text()
    for row in table["ops"]:
        text = (written / f"docs/ops/{row['name']}.md").read_text()
        assert f"({row['name']}.md)" in index and row["source"] in text
        for thing in row["ports"] + row["attrs"]:
            assert re.search(rf"^\| `{thing['name']}` \|.*\|$", text, re.M), f"{row['name']}: no row for {thing['name']}"
        columns = {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("| `")}
        assert columns <= {6, 5}, f"{row['name']}: a cell breaks its table"
        for alias in table["aliases"]:
            assert (f"`{alias['name']}`" in text) == (alias["op"] == row["name"])


def test_stubs_parse_and_match(written):
    tree = ast.parse((written / "stubs/vivace/ops.pyi").read_text())
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    table = ops_table()
    rows = {r["name"]: r for r in table["ops"]}
    for name, row, fixed in [(r["name"], r, "") for r in table["ops"]] + [(a["name"], rows[a["op"]], a["attrs"]) for a in table["aliases"]]:
        a = functions[name].args
        gone = {s.split("=")[0] for s in fixed.split(",")}
        assert [x.arg for x in a.args + a.kwonlyargs] == [x["name"] for x in row["ports"] + row["attrs"] if x["name"] not in gone]
