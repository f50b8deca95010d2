"""What makes a row of a receipt stale, and what does not: comments, layout and names never do, code always does."""
import json
import struct

import pytest

from tools import fingerprint, kernel_code, receipt, receipt_rows

KERNEL = '#pragma once\n#include "vivace/kernels/tile.cuh"\n// Doubles.\n__global__ void twice(float* x) { x[0] *= 2; }\n'
REFERENCE = '"""Doc."""\nimport numpy as np\n\n\ndef ref(x):\n    """Twice."""\n    return {"out": 2 * x}\n\n\nCASES = [1, 2]\n'
TEST = 'N = 3\n\n\ndef help():\n    return N\n\n\ndef test_one():\n    assert help()\n\n\ndef test_two():\n    assert N\n'


@pytest.fixture
def tree(tmp_path):
    files = {
        "vivace/ops/twice.h": '#include "vivace/kernels/twice.cuh"\n', "vivace/kernels/twice.cuh": KERNEL, "vivace/kernels/tile.cuh": "int tile;\n",
        "tests/ref/twice.py": REFERENCE, "tests/test_x.py": TEST, "tests/harness.py": "A = 1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    write_table(tmp_path, {"11111111": "a" * 12, "22222222": "b" * 12})
    return tmp_path


def write_table(tree, kernels):
    row = {"header": "vivace/kernels/twice.cuh", "sources": fingerprint.kernel_sources(tree, "twice", "vivace/kernels/twice.cuh"), "kernels": kernels}
    (tree / "tests/kernels.json").write_text(json.dumps({"arch": "sm_90a", "compiler": "13.0", "ops": {"twice": row}}))


def made(tree, **row):
    r = receipt.Receipt("x", chip="NVIDIA H200", root=tree, sources=["tests/harness.py"], tests=["tests/test_x.py"], references=True, command="c", tactics=None)
    r.row(**({"op": "twice", "case": "T=1", "tool": "pytest", "note": "test_one", "pass": True} | row))
    r.depend(tree)
    return r.data


def edit(tree, name, old, new):
    path = tree / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("name,old,new", [
    ("vivace/kernels/twice.cuh", "// Doubles.", "/* Two\n times. */\n\n"), ("vivace/kernels/twice.cuh", "x[0] *= 2;", "x[0]  *=\n  2 ;"),
    ("tests/ref/twice.py", "Twice.", "Two times."), ("tests/ref/twice.py", "CASES = [1, 2]", "CASES = [1]\nCASES += [7]"),
    ("tests/harness.py", "A = 1", "# one\nA  =  1"), ("tests/test_x.py", "def test_two():\n    assert N", "def test_two():\n    assert not N"),
])
def test_nothing_is_stale_after_a_comment_or_another_case(tree, name, old, new):
    data, before = made(tree), fingerprint.kernel_sources(tree, "twice", "vivace/kernels/twice.cuh")
    edit(tree, name, old, new)
    assert receipt_rows.stale(tree, data).total() == 0 and fingerprint.kernel_sources(tree, "twice", "vivace/kernels/twice.cuh") == before


@pytest.mark.parametrize("name,old,new,why", [
    ("tests/ref/twice.py", "2 * x", "3 * x", "the reference of twice"), ("tests/harness.py", "A = 1", "A = 2", "sources of the whole suite"),
    ("tests/test_x.py", "assert help()", "assert not help()", "test test_one"), ("tests/test_x.py", "N = 3", "N = 4", "test test_one"),
])
def test_code_makes_rows_stale(tree, name, old, new, why):
    data = made(tree)
    edit(tree, name, old, new)
    assert receipt_rows.stale(tree, data) == {why: 1}


def test_a_kernel_stales_its_own_rows(tree):
    whole, own = made(tree), made(tree, kernel="a" * 12)
    write_table(tree, {"11111111": "a" * 12, "22222222": "c" * 12})  # the other kernel of the op
    assert receipt_rows.stale(tree, whole) == {"kernels of twice": 1} and not receipt_rows.stale(tree, own)
    write_table(tree, {"99999999": "d" * 12, "22222222": "b" * 12})
    assert receipt_rows.stale(tree, own) == {"kernels of twice": 1}


def test_renamed_kernels_and_files_are_the_same(tree):
    data = made(tree, kernel="a" * 12 + "+" + "b" * 12)
    write_table(tree, {"aaaaaaaa": "a" * 12, "bbbbbbbb": "b" * 12})  # other names, the same code
    assert not receipt_rows.stale(tree, data)
    assert fingerprint.sources(tree, ["tests/harness.py", "vivace/kernels/tile.cuh"]) == fingerprint.sources(tree, ["vivace/kernels/tile.cuh", "tests/harness.py"])


@pytest.mark.parametrize("name", ["vivace/kernels/twice.cuh", "vivace/kernels/tile.cuh", "vivace/ops/twice.h"])
def test_changed_sources_ask_for_the_table_anew(tree, name):
    assert fingerprint.outdated(tree) == []
    (tree / name).write_text((tree / name).read_text() + "int more;\n")
    assert fingerprint.outdated(tree) == ["twice"]


def test_a_part_that_ran_again_is_merged(tree):
    old = made(tree)
    old["rows"] += [{"op": "other", "case": "T=2", "tool": "pytest", "note": "test_one", "pass": True}, {"op": "all", "case": "part=x", "tool": "pytest", "pass": True}]
    edit(tree, "tests/test_x.py", "assert help()", "assert help() == N")
    new = made(tree, case="T=9") | {"commit": "b" * 40}
    both = receipt.merge(old, new)
    assert [(r["op"], r["case"], r.get("run")) for r in both["rows"]] == [("twice", "T=9", None), ("other", "T=2", 0), ("all", "part=x", 0)]
    assert receipt.errors(both) == [] and len(both["runs"]) == 1 and both["runs"][0]["commit"] == old["commit"]
    assert receipt_rows.stale(tree, both) == {"test test_one": 1}  # the row of the first run alone
    third = receipt.merge(both, new)
    assert len(third["runs"]) == 1 and [r.get("run") for r in third["rows"]] == [None, 0, 0]
    with pytest.raises(ValueError, match="different chip"):
        receipt.merge(old, new | {"chip": "cpu"})


def test_modes_of_drawn_calls_are_merged_one_by_one(tree):
    old, new = made(tree), made(tree) | {"commit": "b" * 40}
    old["rows"] = [{"op": "twice", "case": f"op=twice,metric=calls{mode}", "tool": "fuzz", "n": 1, "pass": True} for mode in ("", ",mode=chains")]
    new["rows"] = [old["rows"][1] | {"n": 2}]
    assert [(r["case"], r["n"], r.get("run")) for r in receipt.merge(old, new)["rows"]] == [("op=twice,metric=calls,mode=chains", 2, None), ("op=twice,metric=calls", 1, 0)]


def test_cases_that_a_bench_was_asked_for_are_merged_one_by_one(tree):
    old, new = made(tree), made(tree) | {"commit": "b" * 40}
    old["rows"] = [{"op": "twice", "case": f"mask={mask}", "tool": "graph of calls", "n": 1} for mask in ("full", "causal")]
    new["rows"] = [old["rows"][0] | {"n": 2}]
    kept = lambda command: [(r["case"], r["n"], r.get("run")) for r in receipt.merge(old, new | {"command": command})["rows"]]  # noqa: E731
    assert kept("python bench/bench_twice.py --only mask=full") == [("mask=full", 2, None), ("mask=causal", 1, 0)]
    assert kept("python bench/bench_twice.py") == [("mask=full", 2, None)]


def elf(*named, info=1 << 24):
    """An ELF file of sections (name, bytes)."""
    names, body, heads = b"\0", b"", [bytes(64)]
    for name, data in [*named, (".shstrtab", None)]:
        at, names = len(names), names + name.encode() + b"\0"
        data = names if data is None else data
        heads.append(struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, 64 + len(body), len(data), 0, info, 0, 0))
        body += data
    head = b"\x7fELF\x02" + bytes(0x28 - 5) + struct.pack("<Q", 64 + len(body)) + bytes(0x3A - 0x30) + struct.pack("<HHH", 64, len(heads), len(heads) - 1)
    return head + body + b"".join(heads)


def test_machine_code_counts_and_names_do_not():
    one = kernel_code.fingerprint(elf((".text.a", b"code"), (".nv.constant0.a", b"1234"), (".nv.info.a", b"x")))
    assert one == kernel_code.fingerprint(elf((".text.longer", b"code"), (".nv.constant0.longer", b"5678"), (".nv.info.longer", b"yy")))
    for other in (elf((".text.a", b"coda"), (".nv.constant0.a", b"1234")), elf((".text.a", b"code"), (".nv.constant0.a", b"12345")),
                  elf((".text.a", b"code"), (".nv.constant0.a", b"1234"), info=2 << 24), elf((".text.a", b"code"), (".nv.constant0.a", b"1234"), (".nv.shared.a", b"12"))):
        assert kernel_code.fingerprint(other) != one
    with pytest.raises(ValueError, match="one kernel"):
        kernel_code.fingerprint(elf((".text.a", b"code"), (".text.b", b"code")))
