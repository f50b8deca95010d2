#!/usr/bin/env python3
"""Times every op that has CUDA kernels at the sizes of op_shapes.py, beside PyTorch in the same process.

    python bench/bench_gpu.py --facts FILE --out DIR [--quick] [--seconds S] [op ...]

A row is a call inside a CUDA graph of many, each on memory of its own, and the L2 cache is flushed before
every replay: operands come from device memory. `warm_us` in the note is the same call on the same memory
again and again. Sampled rows of every result are checked against the float64 reference first: a wrong row
is no row. Peers run in turn with ours. Processes share the rows: compiling peers and checking results take all cores,
the GPU is one process's at a time. tools/device_facts.py writes FILE: chip and measured limits.
"""
import argparse
import contextlib
import fcntl
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("VIVACE_TEST_DEVICE", "cuda")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # the processes have the cores at work

import numpy as np  # noqa: E402
import torch  # noqa: E402

from bench.gpu_peers import PEERS  # noqa: E402
from bench.op_shapes import GPU_SAMPLE, GPU_SIZES, GPU_VARIANTS, KEYS, gpu_case  # noqa: E402
from tests.gpu.memory import NAME, TORCH  # noqa: E402
from tests.op_data import TABLE, by_row, encode, ports, shape_of  # noqa: E402
from tests.op_run import verify  # noqa: E402
from tests.ref.common import Case  # noqa: E402
from tools.receipt import CUT, Receipt  # noqa: E402
from vivace import ops  # noqa: E402

PER_GRAPH = 100           # calls, where memory and time allow
GRAPH_BYTES = 3 << 30     # of all copies together
CHECKED = 8               # rows of a result that the reference sees
MOST_MS = 60              # of one row's replays of a graph in one turn


class Tensors:
    """One copy of a case's ports in device memory."""

    def __init__(self, op, case, seed):
        self.op, self.case = op, case
        g = torch.Generator(device=NAME).manual_seed(seed)
        self.ports = {p: self.make(p, d, shape_of(op, p, case), g, seed) for p, d in case.dtypes.items()}

    def make(self, port, dtype, shape, g, seed):
        case, kind = self.case, TORCH[dtype]
        if ports(self.op)[port]["io"] == "out":
            return torch.empty(shape, dtype=kind, device=NAME)
        if port in case.values:
            raw = encode(np.asarray(case.values[port](np.random.default_rng(seed), shape)), dtype)
            return torch.from_numpy(np.ascontiguousarray(raw)).to(NAME).view(kind).view(shape)
        if port in case.positive:
            return torch.rand(shape, generator=g, device=NAME).mul_(1.5).add_(0.5).to(kind)
        if port in case.ranges:
            low, high = case.ranges[port]
            if kind.is_floating_point:
                return torch.rand(shape, generator=g, device=NAME).mul_(high - low).add_(low).to(kind)
            return torch.randint(low, high, shape, generator=g, device=NAME, dtype=kind)
        return torch.randn(shape, generator=g, device=NAME, dtype=torch.bfloat16 if kind.itemsize < 4 else torch.float32).to(kind)

    def arguments(self):
        return self.ports | self.case.attrs

    def call(self):
        getattr(ops, self.op)(**self.arguments())

    def bytes(self):
        return sum(t.numel() * t.element_size() for t in self.ports.values())


def answer(op, case, t):
    """Runs once; a few rows of what was read and written, of frames the first one's, as verify() takes them."""
    T = case.dims["T"]
    at = list(range(T // case.dims["N"])) if op == "im2col" else sorted({round(i * (T - 1) / max(1, CHECKED - 1)) for i in range(min(T, CHECKED))})
    index = torch.tensor(at, device=NAME)

    def raw(port, tensor):
        picked = tensor[index] if by_row(op, port) else tensor[:1] if op == "im2col" and port == "x" else tensor
        return picked.contiguous().view(torch.uint8).view(len(picked), -1).cpu().numpy()

    data = {p: raw(p, v) for p, v in t.ports.items() if ports(op)[p]["io"] != "out"}
    t.call()
    written = {p: raw(p, v) for p, v in t.ports.items() if ports(op)[p]["io"] != "in"}
    small = Case(case.dims | {"T": len(at)} | ({"N": 1} if op == "im2col" else {}), case.dtypes, case.attrs)
    return small, types.SimpleNamespace(data=data, written=written)


class Timer:
    """Replays of a graph behind a flushed cache, in microseconds a call."""

    def __init__(self):
        self.sweep = torch.empty(256 << 20, dtype=torch.uint8, device=NAME)

    def graph(self, calls):
        side, g = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            calls[0]()
        torch.cuda.synchronize()
        with torch.cuda.graph(g, stream=side):
            results = [c() for c in calls]  # a peer's lie apart, as ours do: memory given back would take the next one's, and never leave L2
        g.replay()
        torch.cuda.synchronize()
        del results
        return g, len(calls)

    def time(self, graph, replays, cold=True):
        g, n = graph
        events = []
        while len(events) < replays:
            if cold:
                self.sweep.zero_()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            g.replay()
            b.record()
            events.append((a, b))
            if len(events) == 2:
                torch.cuda.synchronize()
                replays = min(replays, max(6, int(MOST_MS / a.elapsed_time(b))))
        torch.cuda.synchronize()
        return [1e3 * a.elapsed_time(b) / n for a, b in events]


def at(times, q):
    times = sorted(times)
    return times[min(len(times) - 1, int(q * len(times)))]


def label(op, case, variant):
    keys = KEYS.get(op, {})
    return ",".join([f"{keys.get(k, k)}={v}" for k, v in case.dims.items()] + [f"variant={variant}"])


def compile_all(work, quick):
    """{index: compiled peer} of a process's rows. Each is called once, and so is ours: what they compile for the GPU is there
    afterwards, and nobody waits for it in the GPU's turn."""
    compiled = {}
    for index, op, variant, case in work:
        with contextlib.suppress(Exception):  # measuring comes to the same and says so
            t = Tensors(op, case, 0)
            t.call()
            if (function := PEERS.get((op, variant))) and not quick:
                compiled[index] = torch.compile(function, dynamic=False)
                compiled[index](**t.ports)
        t = None
        torch.cuda.empty_cache()
    return compiled


@contextlib.contextmanager
def turn(folder):
    """Nobody else uses the GPU meanwhile; also over when the process dies."""
    with open(folder / "turn", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
        torch.cuda.synchronize()


def measure(timer, op, variant, case, limits, compiled, replays, folder):
    with turn(folder):
        t = Tensors(op, case, 0)
        size, cost = t.bytes(), ops.cost(op, **t.arguments())
        small, result = answer(op, case, t)
    error, bound = verify(op, small, result)
    n = max(3, min(PER_GRAPH, math.ceil(GRAPH_BYTES / max(size, 1))))
    peers, failed = {}, ""
    function = PEERS.get((op, variant))
    with turn(folder):
        copies = [t] + [Tensors(op, case, i) for i in range(1, n)]
        ours = timer.graph([c.call for c in copies])
        for name, f in ({"torch_eager": function} | ({"torch_compile": compiled} if compiled else {}) if function else {}).items():
            try:
                f(**copies[0].ports)
                f(**copies[0].ports)
                peers[name] = timer.graph([lambda c=c, f=f: f(**c.ports) for c in copies])
            except Exception as e:  # noqa: BLE001 - a peer that does not run is a note, not our failure
                failed = f" {name}_failed={type(e).__name__}"
        times, theirs = [], {name: [] for name in peers}
        for _ in range(2):  # in turn
            times += timer.time(ours, replays)
            for name, g in peers.items():
                theirs[name] += timer.time(g, replays)
        warm = timer.time(timer.graph([copies[0].call] * 100), 20, cold=False)
        del copies, ours, peers, t
        torch.cuda.empty_cache()
    best = min(theirs, key=lambda k: at(theirs[k], 0.5), default=None)
    limit = max(cost[0] / limits["copy_TBs"] / 1e6, cost[1] / limits["bf16_TFLOPs"] / 1e6)
    note = f"copies={n} warm_us={at(warm, 0.5):.3f}" + "".join(f" {k}_us={at(v, 0.5):.2f}" for k, v in theirs.items()) + failed
    return {"op": op, "case": label(op, case, variant), "dtype": next(iter(case.dtypes.values())), "p50_us": at(times, 0.5), "p99_us": at(times, 0.99), "n": len(times),
            "bytes": cost[0], "flops": cost[1], "limit_us": limit, "peer": best, "peer_p50_us": at(theirs[best], 0.5) if best else None,
            "max_err": error, "bound": bound, "pass": True, "note": note}


def process(work, share, folder, limits, quick, end):
    """Every n-th row of the work from the i-th on: its peers compiled, then, when all processes have theirs, measured,
    as far as that goes until `end` of the monotonic clock."""
    i, n = map(int, share.split("/"))
    own = [(index, *row) for index, row in enumerate(work)][i::n]
    compiled = compile_all(own, quick)
    (folder / f"ready-{i}").touch()
    until = time.monotonic() + 120  # one that died leaves no file
    while len(list(folder.glob("ready-*"))) < n and time.monotonic() < until:
        time.sleep(0.05)
    with turn(folder):
        timer = Timer()
    with open(folder / f"rows-{i}.jsonl", "w") as out:
        for index, op, variant, case in own:
            if time.monotonic() > end:
                break
            try:
                row = measure(timer, op, variant, case, limits, compiled.get(index), 20 if quick else 30, folder)
                show(row)
                print(json.dumps({"index": index, "row": row}), file=out, flush=True)
            except Exception as e:  # noqa: BLE001 - the other rows are wanted all the same; main() reports it
                print(json.dumps({"index": index, "wrong": f"{type(e).__name__}: {str(e)[:300]}"}), file=out, flush=True)
                if "CUDA" in str(e) and ("illegal" in str(e) or "launch" in str(e)):
                    return 1
    return 0


def run_processes(work, args, end):
    """Rows of all processes, in the order of the work; one that was not measured says why, and does not pass."""
    n = max(1, min(20, len(os.sched_getaffinity(0)) - 2, len(work)))
    with tempfile.TemporaryDirectory() as folder:
        mine = [sys.executable, __file__, *args.ops, "--facts", args.facts, "--folder", folder, "--end", end, *(["--quick"] if args.quick else [])]
        started = [subprocess.Popen([*map(str, mine), "--share", f"{i}/{n}"]) for i in range(n)]
        for p in started:
            p.wait()
        said = [json.loads(line) for f in Path(folder).glob("rows-*.jsonl") for line in f.read_text().splitlines()]
    found = {line["index"]: line for line in said}
    missing = f"{CUT}: not reached in time, or its process ended"

    def failed(i):
        op, variant, case = work[i]
        return {"op": op, "case": label(op, case, variant), "pass": False, "note": found.get(i, {}).get("wrong", missing)}

    return [found.get(i, {}).get("row") or failed(i) for i in range(len(work))]


def host_rows(timer):
    """What one call and one replay cost the CPU that issues them."""
    rows = []
    for op, variants in GPU_VARIANTS.items():
        t = Tensors(op, gpu_case(op, variants[0], 1, 4096), 0)
        function, arguments = getattr(ops, op), t.arguments()
        asked = {"call": lambda: function(**arguments)}
        if op in ("norm", "act_mul", "cast"):  # what a graph holds does not matter
            asked["replay"] = timer.graph([t.call] * 20)[0].replay
        for what, f in asked.items():
            samples = []
            for _ in range(60):
                torch.cuda.synchronize()
                start = time.perf_counter_ns()
                for _ in range(50):
                    f()
                samples.append((time.perf_counter_ns() - start) / 50e3)
            rows.append({"op": op, "case": f"{label(op, t.case, variants[0])},host={what}", "dtype": next(iter(t.case.dtypes.values())), "p50_us": at(samples, 0.5), "p99_us": at(samples, 0.99), "n": len(samples),
                         "pass": True, "note": f"host time from Python, 50 in a row, {len(t.ports)} tensors" + (", graph of 20 calls" if what == "replay" else "")})
    return rows


def show(row):
    peer = f"{row['peer_p50_us']:9.2f} {row['peer_p50_us'] / row['p50_us']:6.2f} {row['peer']}" if row.get("peer_p50_us") else ""
    share = f"{row['limit_us']:9.2f} {row['limit_us'] / row['p50_us']:6.2f}" if row.get("limit_us") else " " * 16
    print(f"{row['op']:<10} {row['case']:<46} {row['p50_us']:9.2f} {row['p99_us']:9.2f} {share} {peer}  {row['note']}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("ops", nargs="*", metavar="op", help="default: all that have kernels")
    p.add_argument("--facts", type=Path)
    p.add_argument("--out", type=Path, help="folder under which bench/results/<chip> is written")
    p.add_argument("--share", metavar="I/N", help="only every N-th row from the I-th on, beside other processes (with --folder)")
    p.add_argument("--folder", type=Path, help="where the processes meet")
    p.add_argument("--quick", action="store_true", help="two sizes, no compiled peer, no receipt")
    p.add_argument("--seconds", type=float, default=float("inf"), help="begin no row after so many; what is left is a row that says so")
    p.add_argument("--end", type=float, help="until when, for the processes")
    args = p.parse_args()
    if unknown := set(args.ops) - set(TABLE):
        p.error(f"no kernels for {', '.join(sorted(unknown))}; there are {', '.join(TABLE)}")
    if not (args.facts and (args.out or args.share)):
        p.error("--facts and --out are needed")
    work = [(op, v, gpu_case(op, v, T, H)) for op in args.ops or TABLE for v in GPU_VARIANTS.get(op, ()) for T, H in GPU_SIZES if not args.quick or T in (1, 8192)]
    work += [("sample", v, c) for v, c in GPU_SAMPLE.items() if "sample" in (args.ops or TABLE)]
    work = list({(op, v, label(op, c, v)): (op, v, c) for op, v, c in work}.values())  # several sizes may be one case of an op
    facts = json.loads(args.facts.read_text())
    if args.share:
        return process(work, args.share, args.folder, facts["limits"], args.quick, args.end)
    print(f"{'op':<10} {'case':<46} {'p50 us':>9} {'p99 us':>9} {'limit us':>9} {'share':>6} {'peer us':>9} {'ratio':>6}", flush=True)
    rows = run_processes(work, args, time.monotonic() + args.seconds)
    for row in host_rows(Timer()):
        rows.append(row)
        show(row)
    if not args.quick and not args.ops:
        sources = ["vivace/base/*.h", "vivace/kernels/**/*.h", "vivace/kernels/**/*.cuh", "vivace/ops/*.h", "vivace/ops/ops.def",
                   "bench/bench_gpu.py", "bench/gpu_peers.py", "bench/op_shapes.py"]
        r = Receipt("ops", sources=sources, command="python bench/bench_gpu.py", **facts)
        for row in rows:
            r.row(**row)
        r.root = args.out
        print(r.write("bench"))
    wrong = [row for row in rows if row["pass"] is False]
    print(f"{len(rows)} rows, {len(wrong)} failed", *(f"{row['op']} {row['case']}: {row['note']}" for row in wrong), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
