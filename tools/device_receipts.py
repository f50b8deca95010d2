#!/usr/bin/env python3
"""Test receipts of a GPU run, from the rows its parts left: device_receipts.py ROWS_FOLDER FACTS_FILE OUT COMMAND.

Rows of ops-*.jsonl go to OUT/tests/results/<chip>/ops.json, gpu-*.jsonl to gpu.json, and so on. COMMAND is the call that made them.
"""
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.conftest import MODELS  # noqa: E402
from tools.receipt import Receipt  # noqa: E402

KERNELS = ["vivace/base/*.h", "vivace/kernels/**/*.h", "vivace/kernels/**/*.cuh", "vivace/ops/*.h", "vivace/ops/ops.def", "vivace/ops/gpu.cc"]
CASES = ["tests/op_data.py", "tests/op_run.py", "tests/ref/*.py"]
HARNESS = [*CASES, "tests/gpu/test_*.py", "tests/gpu/*_case.py", "tests/gpu/kernels.py", "tests/gpu/memory.py"]
SANITIZED = ["tests/gpu/sanitized.py", "tests/gpu/tool_views.py"]
NATIVE = ["vivace/base/*.h", "vivace/base/*.cc", "vivace/device/*.h", "vivace/device/*.cc", "vivace/exec/*.h", "vivace/exec/*.cc", "vivace/jit/*.h", "vivace/jit/*.cc",
          "vivace/capi/*", "tests/capi/*.cc", "tests/device/*.cc", "tests/exec/*.cc", "tests/exec/*.h", "tests/jit/*.cc"]
SUITES = {
    "gtest": ("vivace_tests", NATIVE),
    "ops": ("pytest tests/test_ops.py --device cuda", [*KERNELS, *CASES, "tests/test_ops.py"]),
    "gpu": ("pytest tests/gpu --device cuda", [*KERNELS, *HARNESS]),
    "replays": ("pytest tests/gpu/test_gpu.py -k replays --device cuda", [*KERNELS, *CASES, "tests/gpu/test_gpu.py"]),
    "models": ("pytest tests of whole models --device cuda", [*KERNELS, "vivace/models/**/*.cc", "vivace/models/**/*.h", "vivace/engine/*.cc", "vivace/engine/*.h", "vivace/serve/*.cc", *(f"tests/test_{f}.py" for f in MODELS)]),
    "bad": ("pytest tests/test_ops_bad.py --device cuda", [*KERNELS, *CASES, "tests/test_ops_bad.py"]),
    "faults": ("python tests/planted_gpu.py", [*KERNELS, *HARNESS, *SANITIZED, "tests/planted_gpu.py"]),
    "sanitize": ("compute-sanitizer python tests/gpu/sanitized.py", [*KERNELS, *CASES, *SANITIZED]),
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
    for suite, (command, sources) in SUITES.items():
        rows = [row for f in sorted(folder.glob(f"{suite}*.jsonl")) for row in rows_of(f)]
        if not rows:
            continue
        r = Receipt(suite, command=f"{command}, by {call}", sources=sources, **facts)
        for row in rows:
            r.row(**row)
        r.root = out
        failed = sum(not row["pass"] for row in rows)
        print(f"{r.write('tests')}: {len(rows)} rows, {failed} failed")


if __name__ == "__main__":
    main()
