#!/usr/bin/env python3
"""Runs tests and benchmarks on a GPU machine that has no package source, and packs what came out.

    python3 CARRY/src/tools/device_run.py --out DIR [--budget SECONDS] [STAGE ...]

CARRY is what tools/build_device_wheel.sh made: sources, wheels, the C++ tests. Stages run in order, each with its own time limit, and stop
when the budget is spent; logs and receipts go to DIR/results.tar.gz; the last lines are a table.
"""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = ("gpu", "cuda", "driver", "nvrtc", "compiler", "cache", "pack", "kernel", "transfer", "launch", "pool", "backends", "table", "embedded")  # of C++ suites
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "cuda"]


class Session:
    """Folders, the clock and the results so far."""

    def __init__(self, carry, out, budget, jobs):
        self.carry, self.out, self.jobs = carry, out, jobs
        self.end = time.monotonic() + budget
        self.work = out / "work"
        self.logs = self.work / "logs"
        self.site = Path("/tmp/vivace-site")
        self.logs.mkdir(parents=True, exist_ok=True)
        self.rows = self.work / "rows"
        self.rows.mkdir(exist_ok=True)
        self.table = []
        commit = carry / "commit"
        self.env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(self.site), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
            "VIVACE_CACHE": "/tmp/vivace-cache", "VIVACE_COMMIT": commit.read_text().strip() if commit.exists() else "dirty",
            "OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2",
            # Whatever else is installed there may not suit the pytest that was carried.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout",
        }
        if Path("/usr/local/cuda/include").is_dir():
            self.env.setdefault("CUDA_HOME", "/usr/local/cuda")

    def left(self):
        return max(0.0, self.end - time.monotonic())

    def run(self, name, command, limit, **env):
        """Runs with output to a log; a row of the final table. Returns the exit status, 124 for too long."""
        limit, start = min(limit, self.left()), time.monotonic()
        log = self.logs / f"{name}.log"
        if limit < 5:
            self.table.append((name, "skipped", 0.0, "no time left"))
            return 125
        with log.open("w") as f:
            p = subprocess.Popen([str(c) for c in command], cwd=ROOT, env=self.env | env, stdout=f, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = p.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, 9)
                p.wait()
                status = 124
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if " passed" in line or " failed" in line or "ERROR SUMMARY" in line), lines[-1] if lines else "")
        self.table.append((name, "ok" if status == 0 else "no test" if status == 5 and name.endswith("-rows") else f"FAILED {status}", time.monotonic() - start, said.strip()[:150]))
        print(f"{self.table[-1][1]:<10} {name:<28} {self.table[-1][2]:6.1f} s  {self.table[-1][3]}", flush=True)
        return status

    def together(self, jobs):
        """Runs (name, command, limit, env) side by side."""
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(lambda j: self.run(j[0], j[1], j[2], **(j[3] if len(j) > 3 else {})), jobs))


def gpu_ops(s):
    done = subprocess.run([sys.executable, "-c", "from vivace import ops; print(*[r['name'] for r in ops.ops_table()['ops'] if r['gpu']])"],
                          env=s.env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.split()


def setup(s):
    wheels = [*(s.carry / "wheel").glob("*.whl"), *(s.carry / "wheels").glob("*.whl")]
    shutil.rmtree(s.site, ignore_errors=True)
    s.run("install", [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", s.site, *wheels], 60)
    s.run("facts", [sys.executable, "tools/device_facts.py", s.work / "facts.json"], 60)


def gtest(s):
    names = subprocess.run([s.carry / "vivace_tests", "--gtest_list_tests"], capture_output=True, text=True, env=s.env).stdout
    suites = [line.split()[0].rstrip(".") for line in names.splitlines() if line and not line.startswith(" ")]
    gpu = [n for n in suites if any(w in n.lower() for w in WORDS)]
    s.run("gtest", [s.carry / "vivace_tests", "--gtest_brief=1", f"--gtest_output=json:{s.rows / 'gtest.json'}", "--gtest_filter=" + ":".join(f"{n}.*" for n in gpu)], 120)


def ops(s):
    """The table-driven op tests, one process an op, so that a crash takes only its op's rows."""
    s.together([(f"ops-{op}", [*PYTEST, "tests/test_ops.py", "-k", f"[{op}- or [{op}]", "--rows", s.rows / f"ops-{op}.jsonl"], 200) for op in gpu_ops(s)])


LONG = ("attention", "gemm", "grouped_gemm", "latent_attention")  # ops whose tests on the GPU take minutes, run as PARTS side by side
# "rows" may hold no test: not every op has rows that do not know of one another. Any other part without a test has failed.
PARTS = {"waits": "waits or every_tactic", "tactics": "each_tactic", "rows": "independent", "refusals": "mix or strides"}


def gpu(s):
    def job(name, choice, limit=280, **env):
        return f"gpu-{name}", [*PYTEST, "-s", "tests/gpu", "-k", choice, "--rows", s.rows / f"gpu-{name}.jsonl"], limit, env

    found = gpu_ops(s)
    jobs = [job(f"{op}-{part}", f"([{op}- or [{op}]) and ({tests})") for op in LONG if op in found for part, tests in PARTS.items()]
    jobs += [job("whole", "large or replays", VIVACE_REPLAYS=os.environ.get("VIVACE_REPLAYS", "100000"))]
    jobs += [(f"gpu-{f.stem}", [*PYTEST, f"tests/gpu/{f.name}", "--rows", s.rows / f"gpu-{f.stem}.jsonl"], 200)
             for f in sorted((ROOT / "tests/gpu").glob("test_*.py")) if f.stem not in ("test_gpu", "test_tactics")]
    s.together(jobs + [job(op, f"[{op}- or [{op}]") for op in found if op not in LONG])


def bad(s):
    s.run("bad-input", [*PYTEST, "tests/test_ops_bad.py", "-k", "wrong or missing or unknown or attributes", "--rows", s.rows / "bad.jsonl"], 120)


def faults(s):
    s.run("faults", [sys.executable, "tests/planted_gpu.py", "--jobs", 6, "--rows", s.rows / "faults.jsonl"], 300)


def bench(s):
    s.run("bench", [sys.executable, "bench/bench_gpu.py", "--out", s.work, "--facts", s.work / "facts.json"], 330)


def quick(s):
    s.run("bench-quick", [sys.executable, "bench/bench_gpu.py", "--quick", "--out", s.work, "--facts", s.work / "facts.json"], 150)


def jit(s):
    s.run("jit", [sys.executable, "bench/bench_jit.py", "--out", s.work, "--facts", s.work / "facts.json"], 120)


def sanitize(s):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    found, jobs = gpu_ops(s), []
    long = [["attention"], ["gemm", "gated_gemm"]]  # by themselves
    rest = [op for op in found if not any(op in share for share in long)]
    shares = long + [rest[i::3] for i in range(3)]
    for name in os.environ.get("VIVACE_TOOLS", "racecheck memcheck initcheck synccheck").split():
        for i, share in enumerate(shares):
            jobs.append((f"sanitize-{name}-{i}", [tool, "--tool", name, "--error-exitcode", 9, *(["--report-api-errors", "no"] if name == "memcheck" else []),  # the driver is asked for parameters until it says no
                                                   "--print-limit", 20, sys.executable, "tests/gpu/sanitized.py",
                                                   s.rows / f"sanitize-{name}-{i}.jsonl", name, *share], 280, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}))
    for (name, *_), status in zip(jobs, s.together(jobs)):
        rows = s.rows / f"{name}.jsonl"  # written by the program, which cannot know what the tool will report
        if status and rows.exists():
            rows.write_text(rows.read_text().replace('"pass": true', '"pass": false'))


STAGES = {f.__name__: f for f in (gtest, ops, gpu, bad, jit, quick, bench, faults, sanitize)}


def pack(s):
    """Receipts from the rows, then everything into one archive."""
    subprocess.run([sys.executable, "tools/device_receipts.py", s.rows, s.work / "facts.json", s.work], cwd=ROOT, env=s.env)
    with tarfile.open(s.out / "results.tar.gz", "w:gz") as t:
        t.add(s.work, "results")
    shutil.rmtree(s.work)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("stages", nargs="*", metavar="STAGE", help=f"default: all but quick and faults; there are {', '.join(STAGES)}")
    p.add_argument("--carry", type=Path, default=ROOT.parent, help="default: the folder above the sources")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--budget", type=float, default=560, help="seconds for everything")
    p.add_argument("--jobs", type=int, default=8, help="processes side by side")
    args = p.parse_args()
    if unknown := set(args.stages) - set(STAGES):
        p.error(f"no such stage: {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    s = Session(args.carry.resolve(), args.out.resolve(), args.budget, args.jobs)
    try:
        setup(s)
        for stage in args.stages or [n for n in STAGES if n not in ("quick", "faults")]:
            STAGES[stage](s)
    finally:
        pack(s)
        print(f"\n{'part':<28} {'result':<12} {'s':>6}  last line")
        for name, status, seconds, said in s.table:
            print(f"{name:<28} {status:<12} {seconds:6.1f}  {said}")
        print(json.dumps({"parts": len(s.table), "failed": [n for n, st, *_ in s.table if st not in ("ok", "no test")]}))
    return 0 if all(st in ("ok", "no test") for _, st, *_ in s.table) else 1


if __name__ == "__main__":
    sys.exit(main())
