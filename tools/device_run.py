#!/usr/bin/env python3
"""Runs tests and benchmarks on a GPU machine that has no package source, and packs what came out.

    python3 CARRY/src/tools/device_run.py --out DIR [STAGE ...] [--budget SECONDS] [--share I/N] [--only WORD ...] [--stale]

CARRY is what tools/build_device_wheel.sh made: sources, wheels, the C++ tests. Benchmarks run first, each alone; then
the parts of all other stages side by side, the longest first (tools/device_parts.py), or of N shares the I-th: then
N calls on N machines make one receipt (tools/join_receipts.py). Logs and receipts go to DIR/results.tar.gz; the last
lines are a table. --stale: of the test suites only the ops whose rows CARRY/stale.json names (tools/stale_rows wrote it
where the receipts are); tools/join_receipts.py --merge puts them among the rows that stay.
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
sys.path.insert(0, str(ROOT))

from tools.device_parts import STAGES, share_of  # noqa: E402
from tools.receipt import CUT  # noqa: E402

CACHE = os.environ.get("VIVACE_CACHE", "/tmp/vivace-cache")  # `jit` empties it and leaves it full: runs beside that one have their own
BENCHES = {  # stage -> its command's words and most seconds
    "jit": (["bench/bench_jit.py", "--cache", CACHE], 120), "quick": (["bench/bench_gpu.py", "--quick"], 120), "bench": (["bench/bench_gpu.py", "--seconds", "SECONDS"], 290),
    "colocate": (["bench/bench_colocate.py", "--seconds", "SECONDS"], 285),
    "serve": (["bench/bench_serve_device.py", "--seconds", "SECONDS"], 240),
    "speech": (["bench/bench_speech.py"], 170), "arrays": (["bench/bench_arrays.py", "--seconds", "SECONDS"], 240),
}


class Session:
    """Folders, the clock and the results so far."""

    def __init__(self, carry, out, budget, jobs):
        self.carry, self.out, self.jobs = carry, out, jobs
        self.end = time.monotonic() + budget
        self.work = out / "work"
        self.logs = self.work / "logs"
        self.site = out / "site"  # its own: runs on several GPUs of one machine do not meet
        self.logs.mkdir(parents=True, exist_ok=True)
        self.rows = self.work / "rows"
        self.rows.mkdir(exist_ok=True)
        self.table = []
        commit = carry / "commit"
        self.env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(self.site), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
            "VIVACE_CACHE": CACHE, "VIVACE_COMMIT": commit.read_text().strip() if commit.exists() else "dirty",
            "OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2",
            # Whatever else is installed there may not suit the pytest that was carried.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout",
        }
        if Path("/usr/local/cuda/include").is_dir():
            self.env.setdefault("CUDA_HOME", "/usr/local/cuda")

    def left(self):
        return max(0.0, self.end - time.monotonic())

    def run(self, name, command, limit, **env):
        """Runs with output to a log; a row of the final table. Returns the exit status, 124 for too long, 125 for not begun, and the seconds."""
        limit, start = min(limit, self.left()), time.monotonic()
        log = self.logs / f"{name}.log"
        if limit < 5:
            self.table.append((name, "skipped", 0.0, "no time left"))
            return 125, 0.0
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
        seconds, result, said = time.monotonic() - start, f"FAILED {status}" if status else "ok", said.strip()[:150]
        self.table.append((name, result, seconds, said))
        print(f"{result:<10} {name:<28} {seconds:6.1f} s  {said}", flush=True)
        return status, seconds

    def part(self, p):
        """One part; its rows get what its tests could not say: that it is complete, was cut off, or that a tool reported something."""
        rows = self.rows / f"{p.name}.jsonl"
        command = [str(c).replace("ROWS", str(rows)) for c in p.command]
        status, seconds = self.run(p.name, command, p.limit, **p.env)
        if p.tool and status and rows.exists():  # written by a program that cannot know what the tool will report
            rows.write_text(rows.read_text().replace('"pass": true', '"pass": false'))
        complete = status not in (124, 125) and rows.exists()
        if not complete and rows.exists():
            rows.rename(rows.with_suffix(".partial"))  # a part counts whole or not at all
        ended = f"ended after {seconds:.0f} s" if status == 0 else f"ended with {status} after {seconds:.0f} s: {rows.stem}.log"
        note = ended if complete else {124: f"{CUT} after {seconds:.0f} s", 125: f"{CUT}: no time left"}.get(status, f"ended with {status} and left no rows")
        with rows.with_suffix(".part.jsonl").open("w") as f:
            f.write(json.dumps({"op": "all", "case": f"part={p.name}", "tool": p.tool or "pytest", "pass": status == 0 and complete, "note": note}) + "\n")  # a test may fail and leave no row

    def together(self, parts):
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(self.part, parts))


def setup(s):
    wheels = [*(s.carry / "wheel").glob("*.whl"), *(s.carry / "wheels").glob("*.whl")]
    shutil.rmtree(s.site, ignore_errors=True)
    s.run("install", [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", s.site, *wheels], 60)
    if s.run("facts", [sys.executable, "tools/device_facts.py", s.work / "facts.json"], 60)[0]:
        raise SystemExit((s.logs / "facts.log").read_text()[-2000:])


def gpu_ops(s):
    done = subprocess.run([sys.executable, "-c", "from vivace import ops; print(*[r['name'] for r in ops.ops_table()['ops'] if r['gpu']])"],
                          env=s.env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.split()


def chosen(parts, words):
    """Those a word names: the part called just that (faults-2), else all whose names contain it; without words, all."""
    names = {p.name for p in parts}
    return [p for p in parts if not words or any(p.name == w if w in names else w in p.name for w in words)]


def pack(s):
    """Receipts from the rows, then everything into one archive."""
    words = "python tools/device_run.py " + " ".join(s.words)
    subprocess.run([sys.executable, "tools/device_receipts.py", s.rows, s.work / "facts.json", s.work, words], cwd=ROOT, env=s.env)
    with tarfile.open(s.out / "results.tar.gz", "w:gz") as t:
        t.add(s.work, "results")
    shutil.rmtree(s.work)
    shutil.rmtree(s.site, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [*BENCHES, *STAGES]
    p.add_argument("stages", nargs="*", metavar="STAGE", help=f"default: all but quick, colocate, serve, speech and arrays, and fuzz, flashinfer, fuzz_models and soak, which take every core or long; there are {', '.join(every)}")
    p.add_argument("--carry", type=Path, default=ROOT.parent, help="default: the folder above the sources")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--budget", type=float, default=560, help="seconds for everything")
    p.add_argument("--share", default="0/1", metavar="I/N", help="of the parts side by side")
    p.add_argument("--only", nargs="+", default=[], metavar="WORD", help="only parts of these names, or whose names contain such a word")
    p.add_argument("--stale", action="store_true", help="only the suites and ops of which rows are stale")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes side by side; default: one a core")
    args = p.parse_args()
    if unknown := set(args.stages) - set(every):
        p.error(f"no such stage: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    stages = args.stages or [n for n in every if n not in ("quick", "colocate", "serve", "speech", "arrays", "fuzz", "flashinfer", "fuzz_models", "soak")]
    stale = json.loads((args.carry / "stale.json").read_text()) if args.stale else {}
    if args.stale:
        stages = [n for n in stages if n in BENCHES and n in args.stages or stale.get(n)]
    s = Session(args.carry.resolve(), args.out.resolve(), args.budget, args.jobs)
    s.words = [*stages, *(["--share", args.share] if args.share != "0/1" else []), *(["--only", *args.only] if args.only else [])]
    try:
        setup(s)
        for name in filter(BENCHES.get, stages):
            (script, *more), limit = BENCHES[name]
            seconds = str(max(0, int(min(limit, s.left()) - 40)))  # rows that have begun, and the receipt, take the rest
            s.run(name, [sys.executable, script, *(seconds if w == "SECONDS" else w for w in more), "--out", s.work, "--facts", s.work / "facts.json"], limit)
        found = gpu_ops(s)
        parts = [part for name in filter(STAGES.get, stages) for part in STAGES[name](s, [op for op in found if not args.stale or op in stale[name]])]
        s.together(share_of(chosen(parts, args.only), *map(int, args.share.split("/"))))
    finally:
        pack(s)
        print(f"\n{'part':<28} {'result':<12} {'s':>6}  last line")
        for name, status, seconds, said in s.table:
            print(f"{name:<28} {status:<12} {seconds:6.1f}  {said}")
        print(json.dumps({"parts": len(s.table), "failed": [n for n, st, *_ in s.table if st != "ok"]}))
    return 0 if all(st == "ok" for _, st, *_ in s.table) else 1


if __name__ == "__main__":
    sys.exit(main())
