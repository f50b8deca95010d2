#!/usr/bin/env python3
"""Test receipts of a GPU run, from the rows its parts left: device_receipts.py ROWS_FOLDER FACTS_FILE OUT COMMAND.

Rows of ops-*.jsonl go to OUT/tests/results/<chip>/ops.json, gpu-*.jsonl to gpu.json, and so on. COMMAND is the call that made them.
"""
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.conftest import MODELS  # noqa: E402
from tools.receipt import Receipt  # noqa: E402
from tools.soak import SOURCES as SOAKED  # noqa: E402

# What every row of a suite rests on. Kernels, references and test functions are fingerprints of a row's own (tools/receipt.py).
CALLS = ["tests/op_data.py", "tests/ref/common.py"]
CASES = [*CALLS, "tests/op_run.py"]
HARNESS = [*CASES, "tests/gpu/kernels.py", "tests/gpu/memory.py"]
SANITIZED = ["tests/gpu/sanitized.py", "tests/gpu/tool_views.py"]
NATIVE = ["vivace/base/*.h", "vivace/base/*.cc", "vivace/device/*.h", "vivace/device/*.cc", "vivace/exec/*.h", "vivace/exec/*.cc", "vivace/jit/*.h", "vivace/jit/*.cc",
          "vivace/capi/*", "tests/capi/*.cc", "tests/device/*.cc", "tests/exec/*.cc", "tests/exec/*.h", "tests/jit/*.cc"]
LAUNCH = ["vivace/exec/*.h", "vivace/exec/*.cc", "vivace/ops/gpu.cc"]  # how kernels are issued
WHOLE = ["vivace/models/**/*.cc", "vivace/models/**/*.h", "vivace/engine/*.cc", "vivace/engine/*.h", "vivace/serve/*.cc"]


class Suite(NamedTuple):
    command: str
    sources: list
    tests: tuple = ()
    references: bool = False
    kernels: bool = True


SUITES = {
    "gtest": Suite("vivace_tests", NATIVE, kernels=False),
    "ops": Suite("pytest tests/test_ops.py --device cuda", [*CASES, *LAUNCH], ("tests/test_ops.py", "tests/test_attention_grid.py"), True),
    "gpu": Suite("pytest tests/gpu --device cuda", [*HARNESS, *LAUNCH, "tests/gpu/*_case.py", "tests/gpu/decode_checks.py", "tests/gpu/rms_gemm_rows.py"], ("tests/gpu/test_*.py",), True),
    "replays": Suite("pytest tests/gpu/test_gpu.py -k replays --device cuda", [*CASES, *LAUNCH], ("tests/gpu/test_gpu.py",)),
    "models": Suite("pytest tests of whole models --device cuda", [*WHOLE, *LAUNCH], tuple(f"tests/test_{f}.py" for f in MODELS)),
    "bad": Suite("pytest tests/test_ops_bad.py --device cuda", CASES, ("tests/test_ops_bad.py",)),
    "fuzz": Suite("python -m tests.differential --device cuda", ["tests/op_data.py", "tests/ref/common.py", "tests/differential/*.py", *LAUNCH], references=True),
    "fuzz_models": Suite("python -m tests.random_models --device cuda", [*WHOLE, *LAUNCH, "tests/random_models/*.py", "tests/reference/*_numpy.py"]),
    "faults": Suite("python tests/planted_gpu.py", [*HARNESS, *SANITIZED]),
    "flashinfer": Suite("python tools/flashinfer_judge.py --device cuda", ["python/vivace/compat/**/*.py", "tools/flashinfer_judge.py", "tools/judge/**/*.py", *LAUNCH]),
    "sanitize": Suite("compute-sanitizer python tests/gpu/sanitized.py", [*CASES, *SANITIZED]),
    "stress": Suite("python -m tests.stress", ["vivace/serve/*.cc", "vivace/serve/*.h", "vivace/models/decoder/*.cc", "vivace/models/decoder/*.h", "vivace/cpu/pool.*", "python/src/model.cc", "python/src/request.cc",
                                               "python/vivace/answers.py", "python/vivace/batch.py", "python/vivace/model.py", "tests/stress.py"], kernels=False),
    "soak": Suite("tools/soak.py --device cuda", SOAKED, kernels=False),
}


def rows_of(file):
    """Rows, a line each; or those of a gtest JSON report, where what was skipped has not passed."""
    text = file.read_text()
    if '"testsuites"' not in text:
        yield from map(json.loads, text.splitlines())
        return
    for suite in json.loads(text)["testsuites"]:
        for test in suite["testsuite"]:
            failures = [f["failure"] for f in test.get("failures", [])]
            # A failure begins with where the test was compiled: only its path in the project is kept.
            note = re.sub(r"^/\S*/(?=tests/)", "", " ".join(failures[0].split()))[:200] if failures else "skipped" if test["result"] == "SKIPPED" else ""
            yield {"op": suite["name"], "case": f"test={test['name']}", "tool": "gtest", "pass": not note, "note": note}


def main():
    folder, facts, out, call = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]), sys.argv[4]
    for suite, of in SUITES.items():
        rows = [row for f in sorted(folder.glob("*.jsonl")) if re.split("[-.]", f.name)[0] == suite for row in rows_of(f)]
        if not rows:
            continue
        r = Receipt(suite, command=f"{of.command}, by {call}", sources=of.sources, tests=of.tests, references=of.references, kernels=of.kernels, **facts)
        for row in rows:
            r.row(**row)
        r.root = out
        failed = sum(not row["pass"] for row in rows)
        print(f"{r.write('tests')}: {len(rows)} rows, {failed} failed")


if __name__ == "__main__":
    main()
