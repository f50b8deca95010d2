#!/usr/bin/env python3
"""Runs FlashInfer's own tests against vivace.compat.flashinfer and counts them by file.

    python tools/flashinfer_judge.py --tests DIR [--out rows.jsonl] [--device cuda|cpu] [--seconds N] [--jobs N] [WORD ...]

DIR holds FlashInfer's `tests` folder (its attention, page, norm, sampling, quantization, gemm and MoE tests and test_helpers; docs/flashinfer.md
says how to fetch it). Files run in processes of their own, each for N seconds at most: every test of a small file, of a
large one a drawn sample, so that each test function has its turns. WORDs choose files. The table that is printed:

    pass     FlashInfer's own assertions held
    refused  a vivace error said what is not served; reasons are listed below the table
    wrong    an assertion failed            error  any other exception, or a crash
    late     the file's time was over in this test
    skip     FlashInfer's test skipped itself on this chip
    memory   the GPU's memory was full (other processes hold most of it)
"""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ("pass", "refused", "wrong", "error", "late", "skip", "memory")
MORE = ("utils/test_quantization.py", "utils/test_fp4_kv_quantization.py", "utils/test_pod_kernels.py", "utils/test_jit_example.py", "utils/test_triton_cascade.py",
        "utils/test_norm.py", "utils/test_activation.py", "utils/test_sampling.py", "gemm/test_bmm_bf16.py", "gemm/test_bmm_fp8.py", "gemm/test_mm_bf16.py", "gemm/test_group_gemm.py",
        "gemm/test_groupwise_scaled_gemm_fp8.py", "moe/test_trtllm_cutlass_fused_moe.py")


def files_of(tests, words):
    found = sorted((tests / "tests/attention").glob("test_*.py")) + sorted((tests / "tests/quantization").glob("test_*.py")) + [tests / "tests" / m for m in MORE]
    return [f for f in found if f.exists() and (not words or any(w in f.name for w in words))]


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def judge(file, args, folder):
    """A file's rows. A process that dies takes its test's result with it, and the next one goes on."""
    rows, log = folder / f"{file.stem}.jsonl", folder / f"{file.stem}.log"
    rows.unlink(missing_ok=True)
    end = time.monotonic() + args.seconds
    for _ in range(30):
        left = end - time.monotonic()
        if left < 1:
            break
        settings = {"device": args.device, "rows": str(rows), "seed": args.seed, "seconds": left}
        # Their `tests` package comes before any of the same name: the folder that Python starts in is the first of its path.
        env = os.environ | {"VIVACE_JUDGE": json.dumps(settings), "PYTHONPATH": os.pathsep.join([str(args.tests), os.environ.get("PYTHONPATH", ""), str(ROOT), str(ROOT / "tools/judge/alone")]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": ""}
        command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-p", "tools.judge.plugin", "--rootdir", str(args.tests), "-c", os.devnull, "--tb=short", "-W", "ignore", str(file)]
        with log.open("a") as f:
            try:
                status = subprocess.run(command, cwd=args.tests, env=env, stdout=f, stderr=subprocess.STDOUT, timeout=left + args.grace).returncode
            except subprocess.TimeoutExpired:
                status = 124
        found = rows_of(rows)
        ended = {r["id"] for r in found if "id" in r}
        cut = [r["begins"] for r in found if "begins" in r and r["begins"] not in ended]
        with rows.open("a") as f:
            for test in cut:
                result, reason = ("late", "no time to end") if status == 124 else ("error", f"the process ended in this test, status {status}")
                f.write(json.dumps({"id": test, "result": result, "reason": reason, "seconds": 0}) + "\n")
        if 0 <= status <= 5:
            break
    return rows_of(rows)


def brief(reason):
    """A reason without its numbers, so that those of many tests are one line."""
    return re.sub(r"-?\d[\d.e+-]*", "#", reason)[:190]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tests", type=Path, required=True)
    p.add_argument("--out", type=Path, help="a row a file and result, for a receipt")
    p.add_argument("--work", type=Path, default=Path("/tmp/flashinfer-judge"), help="where logs and a row a test go")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--grace", type=float, default=60, help="seconds more that a test in flight has")
    p.add_argument("--jobs", type=int, default=4)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("words", nargs="*")
    args = p.parse_args()
    args.tests, args.work = args.tests.resolve(), args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    files = files_of(args.tests, args.words)
    if not files:
        p.error(f"no test files of FlashInfer in {args.tests}")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        judged = dict(zip(files, pool.map(lambda f: judge(f, args, args.work), files)))

    reasons, out, totals = collections.Counter(), [], collections.Counter()
    print(f"{'file':<44}{'of':>8}" + "".join(f"{r:>9}" for r in RESULTS))
    for file, rows in judged.items():
        counts = collections.Counter(r["result"] for r in rows if "result" in r)
        totals += counts
        collected = max([r["collected"] for r in rows if "collected" in r], default=0)
        print(f"{file.stem:<44}{collected:>8}" + "".join(f"{counts[r]:>9}" for r in RESULTS))
        reasons.update((r["result"], file.stem, brief(r["reason"])) for r in rows if r.get("result") in ("refused", "wrong", "error", "late", "memory"))
        metrics = {"pass": counts["pass"], "refused": counts["refused"], "wrong": counts["wrong"] + counts["error"]}
        if sum(metrics.values()):
            out += [{"op": "flashinfer", "case": f"file={file.stem},metric={m}", "tool": "tools/flashinfer_judge.py", "n": n, "pass": m != "wrong" or n == 0} for m, n in metrics.items()]
    print(f"{'all':<52}" + "".join(f"{totals[r]:>9}" for r in RESULTS))
    for (result, file, reason), n in sorted(reasons.items(), key=lambda x: (x[0][0], -x[1])):
        print(f"{n:>6} {result:<8}{file:<40} {reason}")
    print(", ".join(f"{totals[r]} {w}" for r, w in zip(RESULTS, ("passed", "refused", "wrong", "errors", "late", "skipped", "without memory"))))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(json.dumps(r) + "\n" for r in out))
    return 1 if totals["wrong"] + totals["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
