"""What a device machine's results are made of: parts in shares, receipts of several calls."""
import copy
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import device_parts, device_receipts, device_run
from tools.receipt import CUT, SAME, Receipt, errors, join, results, text

ROOT = Path(__file__).resolve().parents[2]


def call(command, date, *cases):
    r = Receipt("gpu", chip="NVIDIA H200", sources=["tools/receipt.py"], command=command, sm="9.0", tactics="sha256:1", commit="a" * 40, date=date, limits={"copy_TBs": len(cases)})
    for case in cases:
        r.row(op="norm", case=case, tool="pytest", **{"pass": True})
    return r.data


ONE, TWO = call("run --share 0/2", "2026-01-01T10:00:00Z", "T=1"), call("run --share 1/2", "2026-01-01T09:00:00Z", "T=2", "T=3")


def test_results_that_say_the_same_are_one_row():
    many = call("run", "2026-01-01T10:00:00Z", "T=1", "T=2", "T=1", "T=1")
    kept = json.loads(text(many))
    assert [(r["case"], r.get("alike")) for r in kept["rows"]] == [("T=1", 3), ("T=2", None)]
    assert results(kept["rows"]) == 4 and text(kept) == text(many) and errors(kept, "gpu") == []


def test_calls_of_one_commit_are_joined():
    whole = join([ONE, TWO])
    assert whole["command"] == "run --share 1/2 (2026-01-01T09:00:00Z); run --share 0/2 (2026-01-01T10:00:00Z)"
    assert [r["case"] for r in whole["rows"]] == ["T=2", "T=3", "T=1"]
    assert whole["limits"] is None and whole["date"] == TWO["date"] and errors(whole, "gpu") == []


@pytest.mark.parametrize("field", [k for k in SAME if k != "schema"])
def test_calls_that_differ_are_refused(field):
    other = copy.deepcopy(TWO)
    other[field] = {"commit": "b" * 40, "host": {"cores": -1}, "versions": {"vivace": "9"}, "sources": TWO["sources"] | {"digest": "sha256:" + "0" * 64}}.get(field, "other")
    with pytest.raises(ValueError, match=f"different {field}"):
        join([ONE, other])


def test_a_row_of_two_calls_stays_twice():
    again = call("again", "2026-01-01T11:00:00Z", "T=1")
    again["rows"][0]["pass"] = False
    rows = [row for row in join([ONE, again])["rows"] if row["case"] == "T=1"]
    assert sorted(row["pass"] for row in rows) == [False, True]


def test_no_tree_without_a_commit():
    with pytest.raises(ValueError, match="dirty"):
        join([ONE | {"commit": "dirty"}, TWO | {"commit": "dirty"}])
    with pytest.raises(ValueError, match="at least two"):
        join([ONE])
    with pytest.raises(ValueError, match="no rows"):
        join([ONE, TWO | {"rows": []}])


def test_a_part_that_was_cut_off_may_come_in_another_call():
    def part(command, date, *rows):
        r = call(command, date)
        return r | {"rows": [{"op": "all", "case": f"part={name}", "tool": "pytest", "pass": note.startswith("ended after"), "note": note} for name, note in rows]}

    cut = part("one", "2026-01-01T10:00:00Z", ("a", f"{CUT} after 90 s"), ("b", "ended with 139 and left no rows"), ("c", f"{CUT}: no time left"))
    again = part("two", "2026-01-01T11:00:00Z", ("a", "ended after 20 s"), ("b", "ended after 9 s"))
    assert [(r["case"], r["pass"]) for r in join([cut, again])["rows"]] == [("part=b", False), ("part=c", False), ("part=a", True), ("part=b", True)]


def test_folders_become_receipts(tmp_path):
    def results(name, data):
        to = tmp_path / name / "tests/results/h200/gpu.json"
        to.parent.mkdir(parents=True)
        to.write_text(json.dumps(data))
        return tmp_path / name

    def run(*folders):
        return subprocess.run([sys.executable, ROOT / "tools/join_receipts.py", "--out", tmp_path / "out", *folders], capture_output=True, text=True)

    a, b, c = results("a", ONE), results("b", TWO), results("c", TWO | {"tactics": "sha256:2"})
    assert run(a, b).returncode == 0
    out = tmp_path / "out/tests/results/h200/gpu.json"
    assert json.loads(out.read_text()) == join([ONE, TWO])
    before = out.read_text()
    refused = run(a, c)
    assert refused.returncode == 1 and "REFUSED" in refused.stdout and "tactics" in refused.stdout and out.read_text() == before


@pytest.mark.parametrize("status, told", [(0, "ended after"), (1, "ended with 1 after")])
def test_a_part_that_fails_without_a_failed_row_has_not_passed(tmp_path, status, told):
    session = device_run.Session(tmp_path, tmp_path, 60, 1)
    row = json.dumps({"op": "norm", "case": "T=1", "tool": "pytest", "pass": True})
    session.part(device_parts.Part("ops-norm", [sys.executable, "-c", f"import sys; open(sys.argv[1], 'w').write('{row}'); sys.exit({status})", "ROWS"]))
    part = json.loads((session.rows / "ops-norm.part.jsonl").read_text())
    assert part["pass"] == (status == 0) and part["note"].startswith(told)
    assert json.loads((session.rows / "ops-norm.jsonl").read_text())["pass"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_part_is_in_one_share(count, tmp_path):
    (tmp_path / "vivace_tests").write_text("#!/bin/sh\necho GpuOne.\necho '  A'\n")
    (tmp_path / "vivace_tests").chmod(0o755)
    session, found = SimpleNamespace(carry=tmp_path, env={}, jobs=4), ["norm", "gemm", "attention", "cast", "grouped_gemm", "gated_gemm"]
    parts = [p for stage in device_parts.STAGES.values() for p in stage(session, found)]
    names = [p.name for p in parts]
    assert len(set(names)) == len(names) and all(any("ROWS" in str(c) for c in p.command) for p in parts)
    shares = [device_parts.share_of(parts, i, count) for i in range(count)]
    assert sorted(p.name for share in shares for p in share) == sorted(names)
    costs = [sum(p.cost for p in share) for share in shares]
    assert max(costs) - min(costs) <= max(p.cost for p in parts)
    assert all([p.cost for p in share] == sorted((p.cost for p in share), reverse=True) for share in shares)


def test_a_failed_gtest_says_where_without_the_machine(tmp_path):
    report = tmp_path / "gtest.jsonl"
    report.write_text(json.dumps({"testsuites": [{"name": "Link", "testsuite": [
        {"name": "Rate", "result": "COMPLETED", "failures": [{"failure": "/far/away/tests/device/a_test.cc:7\nExpected: 1"}]},
        {"name": "Copy", "result": "COMPLETED"}, {"name": "Peer", "result": "SKIPPED"}]}]}))
    assert [(r["case"], r["pass"], r["note"]) for r in device_receipts.rows_of(report)] == [
        ("test=Rate", False, "tests/device/a_test.cc:7 Expected: 1"), ("test=Copy", True, ""), ("test=Peer", False, "skipped")]
