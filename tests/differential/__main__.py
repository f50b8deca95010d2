"""Draws calls of every op and holds them to their references.

    python -m tests.differential [--seed S] [--rounds N | --seconds N] [--ops OP ...] [--jobs N] [--device cuda]
    python -m tests.differential --seed S --only OP [--at N]      # the calls of one op again, or one of them

A call is known by seed, op and number. What is wrong is made small and printed as one line of Python that runs.
"""
import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.differential import MODES

LATE = 15  # seconds after the end at which a process that still runs is ended
ROOT = Path(__file__).resolve().parents[2]


def arguments():
    p = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__.splitlines()[0], formatter_class=argparse.RawDescriptionHelpFormatter, epilog=__doc__)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--rounds", type=int, default=0, help="calls of an op of weight 1; 0: as --seconds allow")
    p.add_argument("--seconds", type=float, default=0, help="stop after so long; 0: not before the rounds are done")
    p.add_argument("--ops", "--only", nargs="+", default=[], metavar="OP")
    p.add_argument("--kernels", dest="only", default="", metavar="REGEX", help="with --device cuda: only calls that pick such a kernel")
    p.add_argument("--at", type=int, help="this call alone")
    p.add_argument("--mode", nargs="+", default=["values"], choices=MODES, help="one after the other, in the same processes; --seconds are for all")
    p.add_argument("--device", default="cpu", help="cpu, cuda; torch-cpu: torch tensors on the host")
    p.add_argument("--gpus", type=int, default=1, help="with --device cuda: the first N that are visible; the processes are dealt to them, and each has a seed of its own, --seed and those after it")
    p.add_argument("--compile", action="store_true", help="compile all kernels first, side by side, in the time of --seconds: with --device cuda")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; default: one a core")
    p.add_argument("--rows", metavar="FILE", help="append the receipt's rows to FILE")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    p.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    args = p.parse_args()
    if not args.rounds and not args.seconds:
        args.rounds = 100
    return args


def gpu_environment(i, gpus):
    """What shows a process the i-th of the GPUs alone."""
    if gpus == 1:
        return {}
    visible = [g for g in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if g]
    return {"CUDA_VISIBLE_DEVICES": visible[i] if visible else str(i)}


def started(args, folder):
    """The processes of a run, each with its file of results."""
    command = [sys.executable, "-m", "tests.differential", "--rounds", args.rounds, "--seconds", args.seconds, "--begun", args.begun, "--mode", *args.mode, "--device", args.device]
    command += ["--ops", *args.ops] if args.ops else []
    command += ["--kernels", args.only] if args.only else []
    command += ["--at", args.at] if args.at is not None else []
    env = os.environ | {"VIVACE_TEST_DEVICE": args.device, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    each = 1 if args.at is not None else max(args.jobs // args.gpus, 1)
    out = []
    for i in range(each * args.gpus):
        file, gpu = Path(folder) / str(i), i % args.gpus
        words = [*map(str, command), "--seed", str(args.seed + gpu), "--jobs", str(each), "--worker", f"{i // args.gpus}:{file}"]
        out.append((subprocess.Popen(words, cwd=ROOT, env=env | gpu_environment(gpu, args.gpus)), file))
    return out


def loses(args, line, end):
    """Whether a call, as a process noted it, ends the process alone."""
    mode, seed, op, number, _ = line.split(" ", 4)
    command = [sys.executable, "-m", "tests.differential", "--seed", seed, "--only", op, "--at", number, "--mode", mode, "--device", args.device]
    try:
        done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=max(1, min(60, end - time.monotonic())))
    except subprocess.TimeoutExpired:
        return time.monotonic() < end
    return done.returncode and ("LOST" in done.stdout or "CRASHED" in done.stdout)


def suspect(args, text, end):
    """Which of the calls that ran when a process ended does so alone; said of the last where it is none, or there is no time to see."""
    lines = text.splitlines()
    for line in reversed(lines if args.device != "cpu" and args.at is None else []):
        if time.monotonic() < end and loses(args, line, end):
            return line
    return lines[-1] + (f" (the last of {len(lines)})" if len(lines) > 1 else "") if lines else "before its first call"


def standing(pid):
    """What each thread of a process waits for, by the kernel's name of it; R: it runs."""
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            words = (task / "stat").read_text().rsplit(")", 1)[1].split()
            yield f"thread {task.name} {(task / 'comm').read_text().strip()}: {words[0]} {(task / 'wchan').read_text().strip() or 0}, {words[11]} ticks"


def gathered(args, processes):
    """({mode: tallies}, {mode: crashes}, kernels) of the processes once they have ended, or LATE seconds after they should have."""
    from tests.differential.tally import Tally

    tallies, crashes, kernels = {m: {} for m in args.mode}, {m: [] for m in args.mode}, set()
    late = args.begun + args.seconds + LATE if args.seconds else float("inf")
    for process, file in processes:
        try:
            status = process.wait(max(late - time.monotonic(), 0.1) if args.seconds else None)
        except subprocess.TimeoutExpired:
            print(*(f"LATE: {line}" for line in standing(process.pid)), sep="\n", flush=True)
            process.send_signal(signal.SIGUSR1)  # where it stands, on stderr
            time.sleep(1)
            process.kill()
            status = process.wait()
        whole = file.with_suffix(".json")  # of the modes that it has done
        if whole.exists():
            result = json.loads(whole.read_text())
            kernels.update(result["kernels"])
            for mode, ops in result["modes"].items():
                for op, j in ops.items():
                    tallies[mode].setdefault(op, Tally()).merge(Tally.of_json(j))
        if status:
            at = file.with_suffix(".at")
            text = at.read_text(errors="replace").split("\0")[0] if at.exists() else ""
            print(*(f"RAN when a process ended with {status}: {line}" for line in text.splitlines()), sep="\n", flush=True)
            crashes[text.split(" ")[0] if text else args.mode[0]].append((status, suspect(args, text, late)))
    return tallies, crashes, kernels


def main():
    args = arguments()
    if args.worker:
        from tests.differential.work import work

        return work(args)
    args.begun = time.monotonic()  # --seconds are for all that follows
    if args.compile:
        subprocess.run([sys.executable, "-c", f"from vivace import jit; jit.prewarm({args.ops!r})"], cwd=ROOT, check=True)
        print(f"kernels compiled or loaded in {time.monotonic() - args.begun:.0f} s", flush=True)
    from tests.differential.report import report

    with tempfile.TemporaryDirectory() as folder:
        tallies, crashes, kernels = gathered(args, started(args, folder))
    seconds = time.monotonic() - args.begun
    return max(report(args, mode, tallies[mode], crashes[mode], kernels, seconds) for mode in args.mode)


if __name__ == "__main__":
    sys.exit(main())
