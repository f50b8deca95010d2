"""Measures everything the CPU receipts hold, on a machine that should do nothing else meanwhile.

    python tools/cpu_receipts.py --gguf SMOLLM2.gguf --peer-python PEER_ENV/bin/python --tests build/test/tests/vivace_tests

Writes tests/results/cpu/{ops,smollm2,hot_path,stress}.json and bench/results/cpu/{ops,llm}.json.
"""
import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.device_receipts import SUITES  # noqa: E402
from tools.receipt import Receipt  # noqa: E402


def run(*command, **env) -> str:
    print("$", " ".join(map(str, command)), flush=True)
    done = subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True)
    print("\n".join((done.stdout + done.stderr).strip().splitlines()[-4:]), flush=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def hot_path(tests: str) -> None:
    """10^4 calls each of replay, plan, C ABI and decoder step: no malloc, no minor fault."""
    out = run(tests, "--gtest_filter=*HotPath*:-*/cuda*")
    r = Receipt("hot_path", chip="cpu", command="vivace_tests --gtest_filter=*HotPath*",
                sources=["vivace/exec/*.cc", "vivace/cpu/**/*.cc", "vivace/capi/*.cc", "vivace/models/decoder/*.cc", "vivace/serve/*.cc",
                         "tests/exec/hot_path_test.cc", "tests/capi/hot_path_test.cc", "tests/models/hot_path_test.cc"])
    for line in out.splitlines():
        if line.startswith("[       OK ] "):
            r.row(op="hot_path", case=f"test={line[13:].split(' ')[0].rstrip(',')}", tool="gtest", n=10_000, note="0 malloc, 0 minor faults after warm-up", **{"pass": True})
    r.write("tests")


def stress() -> None:
    """One model under 64 threads, 64 asyncio tasks and both, a minute each."""
    suite = SUITES["stress"]
    r = Receipt("stress", chip="cpu", command=suite.command, sources=suite.sources)
    for scope, pages in (("threads", "0"), ("asyncio", "12"), ("mixed", "12")):
        for line in run(sys.executable, "-m", "tests.stress", "--device", "cpu", "--seconds", "60", "--scope", scope, "--pages", pages).splitlines():
            r.row(**json.loads(line))
    r.write("tests")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gguf", required=True)
    p.add_argument("--peer-python", required=True)
    p.add_argument("--tests", required=True)
    args = p.parse_args()
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run(*pytest, "tests/test_ops.py", "--receipt")
    run(*pytest, "tests/test_smollm2.py", "--receipt", VIVACE_TEST_SMOLLM2=args.gguf)
    hot_path(args.tests)
    stress()
    run(sys.executable, "bench/bench_llm.py", "--gguf", args.gguf, "--peer-python", args.peer_python)
    run(sys.executable, "bench/bench_ops.py", "--receipt")


if __name__ == "__main__":
    main()
