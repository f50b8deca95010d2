"""Each checker is seen to pass on a clean house and to fail on a planted violation."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools import receipt  # noqa: E402
from tools.checks import NAMES, source, tree  # noqa: E402

CLEAN = {
    "vivace/base/status.h": "class [[nodiscard]] Status {};\ntemplate <class T> class [[nodiscard]] Result {};\n",
    "vivace/ops/ops.def": "// The table.\nOP(scale)\nCOMPOSITE(twice)\n",
    "vivace/ops/aliases.def": 'ALIAS(scale_f32, scale, "k=1")\n',
    "vivace/ops/scale.h": '#include "vivace/kernels/pointwise/scale.h"\nStatus check(int n);\n',
    "vivace/ops/twice.h": '#include "vivace/base/status.h"\n',
    "vivace/kernels/pointwise/scale.h": '#include "vivace/base/int.h"\nstruct ScaleArgs { float k; };\n',
    "vivace/kernels/pointwise/scale.cuh": "#include <cuda_fp16.h>\n// Moves 8 bytes a value.\n",
    "vivace/cpu/pointwise/scale.cc": '#include "vivace/kernels/pointwise/scale.h"\n#include <cmath>\n',
    "vivace/exec/graph.h": '#include "vivace/base/status.h"\n// No cache and no session here: comments may say so.\n',
    "vivace/models/decoder/config.h": '#include "vivace/engine/model.h"\nint layers;  // the same under CUDA\n',
    "tests/ref/scale.py": "# y = k * x, rounded once\ndef ref(x, k):\n    return x * k\n",
    "tests/ref/twice.py": "def ref(x):\n    return x + x\n",
    "docs/index.md": "# Docs\n\n[README](../README.md), [first](#docs), [page](page.md)\n",
    "docs/page.md": '[2.00 us](../bench/results/cpu/scale.json "p50_us of T=1,H=64 as f32"), in ms\n'
                    '[0.002](../bench/results/cpu/scale.json "p50_us in ms of T=1,H=64"), a row takes 1 ms <!-- no claim: a goal -->\n',
}


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, body in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
    source.clear_cache()
    return root


@pytest.fixture
def house(tmp_path):
    """A small tree that breaks no rule."""
    files = dict(CLEAN)
    files |= {f: "x\n" for f in tree.ROOT_FILES} | {".clang-format": "ColumnLimit: 80\n"}
    folders = tree.ROOT_FOLDERS | {f"vivace/{x}" for x in tree.LAYERS} | {"python/vivace"}
    files |= {f"{f}/README.md": "IS, NOT, entry points\n" for f in folders}
    plant(tmp_path, files)
    data = receipt.Receipt("scale", chip="cpu", sources=["vivace/cpu/pointwise/*.cc"],
                           command="vivace bench scale", root=tmp_path)
    data.row(op="scale", case="T=1,H=64", dtype="f32", p50_us=2.0, limit_us=1.0, n=10)
    data.write("bench")
    return tmp_path


def found(name: str, root: Path) -> list[str]:
    source.clear_cache()
    return importlib.import_module(f"tools.checks.{name}").run(root)


@pytest.mark.parametrize("name", NAMES)
def test_clean_house_passes(house, name):
    assert found(name, house) == []


def claim(text, column="p50_us", case="T=1,H=64", suite="scale"):
    return f'[{text}](../bench/results/cpu/{suite}.json "{column} of {case} as f32")\n'


LONG = "int a;\n" * 801
COPIED = "\n".join(f"int value_{i} = f({i} * seed);" for i in range(21))
PLANTED = [
    # (checker, file, body, part of the message)
    ("layers", "vivace/base/up.h", '#include "vivace/exec/graph.h"\n', "base/ is below exec/"),
    ("layers", "vivace/jit/side.h", '#include "vivace/device/driver.h"\n', "siblings"),
    ("layers", "vivace/cpu/norm/device.cc", '#include "vivace/kernels/norm/norm.cuh"\n', "siblings"),
    ("layers", "vivace/kernels/norm/norm.h", '#include "vivace/cpu/pool.h"\n', "siblings"),
    ("layers", "vivace/kernels/norm/host.cuh", "#include <vector>\n", "no std or host header"),
    ("layers", "vivace/exec/knows.h", '#include "vivace/kernels/norm/norm.h"\n', "exec/ knows no kernel"),
    ("layers", "vivace/exec/policy.h", "struct KvCacheSlot {};\n", "exec/ holds no policy"),
    ("layers", "vivace/models/decoder/chip.cc", "if (arch == sm_90a) return;\n", "names 'sm_90a'"),
    ("layers", "vivace/models/decoder/raw.cc", "void* p = cudaMalloc(1);\n", "names 'cudaMalloc'"),
    ("layers", "vivace/engine/short.cc", '#include "model.h"\n', "from the repository root"),
    ("layers", "vivace/ops/trial.h", '#include "lab/trial.h"\n', "never includes lab/"),
    ("layers", "vivace/extras/x.h", "int x;\n", "not a layer"),
    ("size", "vivace/base/long.cc", LONG, "801 lines"),
    ("op_table", "vivace/ops/ops.def", "OP(scale)\nCOMPOSITE(twice)\nOP(shift)\n", "vivace/ops/shift.h is missing"),
    ("op_table", "vivace/ops/ops.def", "OP(scale)\nOP(scale)\nCOMPOSITE(twice)\n", "listed twice"),
    ("op_table", "vivace/ops/aliases.def", "ALIAS(a, b)\n", "no op of the table"),
    ("op_table", "vivace/ops/aliases.def", "ALIAS(twice, scale)\n", "twice is listed twice"),
    ("op_table", "vivace/ops/ops.def", "OP(scale)\nCOMPOSITE(twice)\nALIAS(a, scale)\n", "belongs in the other table"),
    ("op_table", "vivace/ops/ops.def", "OP(scale_bf16)\nCOMPOSITE(twice)\n", "'bf16' (dtype)"),
    ("op_table", "vivace/ops/ops.def", "OP(scale)\n", "no row of"),
    ("op_table", "vivace/kernels/norm/norm_v2.cuh", "\n", "'v2' (version)"),
    ("op_table", "vivace/cpu/attention/qwen3_attention.cc", "\n", "'qwen3' (model)"),
    ("launch", "vivace/kernels/norm/go.cuh", "k<<<1, 32>>>(a);\n", "raw launch"),
    ("launch", "vivace/engine/a.cc", "assert(n > 0);\n", "bare assert"),
    ("launch", "vivace/base/status.h", "class Status {};\n", "Status is not [[nodiscard]]"),
    ("launch", "vivace/base/status.h", "class Status;\nResult<int> count(int n);\n", "count() returns Result"),
    ("tree", "notes.txt", "x\n", "not an entry"),
    ("tree", "scripts/run.sh", "x\n", "not a folder of the house's root"),
    ("tree", "vivace/extras/README.md", "x\n", "not a layer"),
    ("tree", "vivace/base/README.md", "x\n" * 41, "41 lines, at most 40"),
    ("tree", "vivace/third_party/json.hpp", "x\n", "vendored"),
    ("tree", "vivace/ops/norm.cubin", "x\n", "generated"),
    ("tree", "python/vivace/stubs.py", "# Generated by tools/stubs\n", "says it is generated"),
    ("tree", "bench/big.csv", "x" * (2 << 20) + "y", "at most 2 MB"),
    ("tree", "tests/weights.gguf", "x" * (600 << 10), "KB of weights"),
    ("tree", tree.SHIPPED, "x" * (6 << 20), "at most 5 MB"),
    ("tree", tree.SHIPPED.replace("model", "another"), "x" * (600 << 10), "KB of weights"),
    ("dead_code", "vivace/base/off.h", "#if 0\nint a;\n#endif\n", "#if 0"),
    ("dead_code", "vivace/base/off.cc", "// total += weight(i) * 2;\n", "commented-out"),
    ("dead_code", "vivace/base/off.cc", "// if (ready) {\n", "commented-out"),
    ("dead_code", "vivace/base/off.cc", '// #include "vivace/base/x.h"\n', "commented-out"),
    ("dead_code", "tools/off.py", "# import numpy as np\n", "commented-out"),
    ("dead_code", "tools/off.py", "x = 1\n# print(x)\n", "commented-out"),
    ("dead_code", "tools/off.py", "# if x.ready():\n", "commented-out"),
    ("portable", "tools/a.sh", "cd /" + "root/checkout\n", "absolute path"),
    ("portable", "docs/index.md", "see https://py" + "pi.org/x\n", "package host"),
    ("copies", "vivace/base/copy.cc", COPIED + "\n\nint other;\n// again\n" + COPIED, "share a run"),
    ("words", "vivace/base/old.h", "// The copy engine brings it.\n", "say TMA"),
    ("words", "docs/old.md", "Quant" + "ised weights\n", "say quantize"),
    ("words", "vivace/base/old.cc", "int n = kv_" + "pages;\n", "say num_kv_blocks"),
    ("sentences", "README.md", "One " + "and " * 44 + "more.\n", "README.md:1: a sentence of 46 words, at most 45"),
    ("sentences", "README.md", "# A\n\n```\nx\n```\n- It is `short`.\n- " + "so " * 46 + "long.\n", "README.md:7: a sentence of 47"),
    ("sentences", "README.md", ("so " * 18 + "long. ") * 2 + "It is short.\n", "19 words a sentence in the median, at most 18"),
    ("width", "vivace/cpu/pointwise/scale.cc", "int sum = 0" + " + 1" * 20 + ";\n", "scale.cc:1: 92 characters, at most 80"),
    ("width", ".clang-format", "BasedOnStyle: Google\n", "names no ColumnLimit"),
    ("chosen", "vivace/kernels/gemm/new.cuh", "// gemm.\n#pragma once\n__global__ void gemm_new();\n", "new.cuh:1: a kernel without"),
    ("chosen", "vivace/kernels/copy/new.cuh", "// fill.\n#pragma once\n__global__ void fill_new();\n", "new.cuh:1: a kernel without"),
    ("chip", "vivace/ops/wide.h", "int kSmem = 227 * 1024;\n", "227 * 1024: a chip's shared memory"),
    ("chip", "vivace/ops/wide.h", "constexpr int kSmCount = 132;\n", "a chip's SM count"),
    ("chip", "vivace/ops/wide.h", "bool wide = arch >= Arch::sm90a;\n", "a comparison of chips"),
    ("casters", "python/src/names.cc", "#include <nanobind/stl/string.h>\nauto x = nb::cast<std::string>(a);\nauto y = nb::cast<std::vector<std::string>>(a);\n", "names.cc:3: converts a std::vector without"),
    ("receipts", "tests/results/cpu/bad.json", "{", "not JSON"),
    ("receipts", "tests/results/cpu/bad.json", json.dumps({"schema": 1}), "suite is missing"),
    ("claims", "docs/index.md", claim("2.00 us").replace("2.00", "1.90"), "[1.90 us] is 2.00 us in scale.json"),
    ("claims", "docs/index.md", claim("2.00 us at abcdef0"), "is 2.00 us in scale.json"),
    ("claims", "docs/index.md", claim("fast"), "has no figure"),
    ("claims", "docs/index.md", claim("2.00 us", column="ratio"), "the row has no ratio"),
    ("claims", "docs/index.md", claim("2.00 us", case="T=2,H=64"), "0 rows of scale.json are T=2,H=64"),
    ("claims", "docs/index.md", claim("2.00 us", suite="gone"), "gone.json cannot be read"),
    ("claims", "docs/index.md", claim("2.00 us").replace(" of ", " from "), "is not COLUMN"),
    ("claims", "docs/index.md", "A row takes 2.00 us.\n", "'2.00 us' names no receipt"),
    ("claims", "vivace/cpu/pointwise/scale.cc", "int changed;\n", "[2.00 us] is 2.00 us at "),
    ("doc_links", "docs/index.md", "[a](missing.md)\n", "leads nowhere"),
    ("doc_links", "docs/index.md", "# A\n[a](#b)\n", "no such heading"),
    ("doc_links", "docs/orphan.md", "alone\n", "no page that links here"),
]


@pytest.mark.parametrize("name,path,body,message", PLANTED, ids=[f"{p[0]}-{i}" for i, p in enumerate(PLANTED)])
def test_planted_violation_is_caught(house, name, path, body, message):
    plant(house, {path: body})
    hits = [line for line in found(name, house) if message in line]
    assert hits, f"{name} missed {path}: {found(name, house)}"


def test_every_checker_has_a_planted_violation():
    assert {p[0] for p in PLANTED} | {"commits"} == set(NAMES)


@pytest.mark.parametrize("subject, message", [
    ("Reads the header before the length " + "x" * 40, "75 characters, at most 72"), ("Refuse a length below zero.", "full stop"),
    ("Added a test of empty rows", "'Added' is not imperative"), ("serve: fixing the queue", "'fixing' is not imperative")])
def test_a_planted_commit_is_caught(house, subject, message):
    commits = importlib.import_module("tools.checks.commits")

    def git(*words):
        subprocess.run(["git", "-C", house, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "a subject of before the rule, " + "which is long and has been kept as it was. " * 2)
    git("tag", commits.BEFORE)
    git("commit", "-q", "--allow-empty", "-m", "Seed the queue of requests")
    assert commits.run(house) == []
    git("commit", "-q", "--allow-empty", "-m", subject)
    assert len(hits := commits.run(house)) == 1 and message in hits[0]


@pytest.mark.parametrize("prose", [
    "| " + "so " * 50 + "|\n", "```\n" + "so " * 50 + "\n```\n", "# " + "so " * 50 + "\n", "<!-- " + "so " * 50 + "-->\n", "`" + "so " * 50 + "` is one word.\n",
    ("It is 0.5 e.g. here. " * 20), "- " + "so " * 30 + "\n- " + "so " * 10 + "\n- it is\n- in lists\n- and so on\n", ("so " * 17 + "long [4 ms at 0123abc](x.json \"p50_us of a\").")[3 * 3:]])
def test_what_is_no_long_sentence_passes(house, prose):
    plant(house, {"README.md": prose})
    assert found("sentences", house) == []


def test_only_user_pages_are_held_to_short_sentences(house):
    long = "so " * 50 + "long.\n"
    index = "# Docs\n\n## Use\n| a | [b](b.md) | [m](models/README.md#x) |\n\n## Work\n[c](c.md), [d](design/d.md)\n"
    plant(house, {"docs/index.md": index} | dict.fromkeys(("docs/b.md", "docs/models/README.md", "docs/models/e.md", "docs/c.md", "docs/design/d.md"), long))
    assert {line.split(":")[0] for line in found("sentences", house)} == {"docs/b.md", "docs/models/README.md", "docs/models/e.md"}


def test_a_folder_of_many_files_without_a_readme_is_caught(house):
    plant(house, {f"tests/many/part{i}.py": f"x{i} = {i}\n" for i in range(9)})
    assert any("tests/many/README.md is missing: 9 files" in line for line in found("tree", house))


def test_a_missing_folder_readme_is_caught(house):
    (house / "vivace/exec/README.md").unlink()
    assert any("vivace/exec/README.md is missing" in line for line in found("tree", house))


def test_a_long_file_with_a_reason_passes(house):
    plant(house, {"vivace/base/long.cc": "// size: one table, split it and the rows lose their order\n" + LONG})
    assert found("size", house) == []


@pytest.mark.parametrize("prose", [
    "// Rows beyond T are neither read nor written; the caller owns them.\n",
    "// y = x * w + b\n",
    "// Usage:\n//    Status s = run(1);\n",
    "/// Returns f(x);\n",
    "// [T, H] row-major; if T == 0 nothing is launched.\n",
])
def test_prose_is_not_taken_for_dead_cpp(house, prose):
    plant(house, {"vivace/base/prose.h": prose})
    assert found("dead_code", house) == []


@pytest.mark.parametrize("prose", ["# softmax(x) along D\n", "# y = silu(x) * u\n", "# if needed:\n", "# shape: T\n"])
def test_prose_is_not_taken_for_dead_python(house, prose):
    plant(house, {"tools/prose.py": prose})
    assert found("dead_code", house) == []


def _edit_receipt(house, change):
    path = house / "bench/results/cpu/scale.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("change,message", [
    (lambda d: d.update(commit="yesterday"), "commit is"),
    (lambda d: d.update(suite="other"), "suite is"),
    (lambda d: d["sources"].update(digest="sha256:12"), "digest"),
    (lambda d: d["rows"][0].update(p50_us=0), "missing figure is null"),
    (lambda d: d["rows"][0].update(case="1x64"), "key=value"),
    (lambda d: d.update(rows=[]), "no rows"),
])
def test_a_malformed_receipt_is_caught(house, change, message):
    _edit_receipt(house, change)
    assert any(message in line for line in found("receipts", house))


def test_a_stale_receipt_is_named_but_no_failure(house):
    from tools.checks import receipts
    assert receipts.notes(house) == []
    plant(house, {"vivace/cpu/pointwise/scale.cc": "int changed;\n"})
    assert found("receipts", house) == []
    assert any("scale.json: 1 of 1 rows are stale (1 by sources of the whole suite)" in line for line in receipts.notes(house))


def test_receipt_rows_derive_share_and_refuse_zero(house):
    r = receipt.Receipt("x", chip="NVIDIA H200", sources=["vivace/ops/*.h"], command="c", root=house)
    r.row(op="scale", case="T=1", p50_us=4.0, limit_us=1.0, peer_p50_us=8.0)
    assert (r.data["rows"][0]["share"], r.data["rows"][0]["ratio"]) == (0.25, 2.0)
    r.row(op="scale", case="T=2", note=f"{receipt.ROOT}/tests/x.py: no")
    assert r.data["rows"][1]["note"] == "tests/x.py: no"
    with pytest.raises(ValueError, match="is null"):
        r.row(op="scale", case="T=1", p50_us=0)
    assert r.write("bench").relative_to(house).as_posix() == "bench/results/h200/x.json"


def test_entry_reports_and_exits_nonzero(house):
    plant(house, {"notes.txt": "x\n"})
    got = subprocess.run([sys.executable, ROOT / "tools/check", "--root", house], capture_output=True, text=True)
    assert got.returncode == 1 and "notes.txt: not an entry" in got.stdout
    assert got.stdout.splitlines()[-1] == f"{len(NAMES) - 1} passed, 1 failed"
