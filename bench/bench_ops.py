#!/usr/bin/env python3
"""Times every op of the table on the CPU, beside what its bytes and arithmetic cost this machine.

    python bench/bench_ops.py [op ...] [--threads N] [--seconds S] [--receipt]

A row is the replay of a captured call, checked against the float64 reference first: a wrong row is no row.
Several copies of its arrays take turns (`note`), so that what is too large for the caches comes from memory.
Limits are measured here, in the same minutes and with as many threads: a copy, and f32 products by NumPy.
"""
import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

import vivace  # noqa: E402
from bench.op_shapes import KEYS, SHAPES  # noqa: E402
from tests.op_data import TABLE, contents, is_block, ports, reference  # noqa: E402
from tests.op_run import Run, verify  # noqa: E402
from tests.ref.common import FLOATS  # noqa: E402
from tools.receipt import Receipt  # noqa: E402
from vivace import ops  # noqa: E402

WORKING_SET = 128 << 20  # bytes of all copies together, where COPIES allow it
COPIES = 64


def best(f, seconds=1.0):
    """Shortest of many runs, in seconds."""
    shortest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        f()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def measure_limits(threads):
    """Bytes read plus written a second by a large copy; FLOP a second of f32 products."""
    size = 64 << 20
    pairs = [(np.ones(size // threads // 4, np.float32), np.zeros(size // threads // 4, np.float32)) for _ in range(threads)]
    squares = [(np.ones((512, 512), np.float32), np.ones((512, 512), np.float32), np.empty((512, 512), np.float32)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        copy = best(lambda: list(pool.map(lambda p: np.copyto(p[1], p[0]), pairs)))
        product = best(lambda: list(pool.map(lambda s: np.matmul(s[0], s[1], out=s[2]), squares)))
    return {"copy_TBs": 2 * size / copy / 1e12, "f32_TFLOPs": threads * 2 * 512**3 / product / 1e12}


def label(op, case):
    """The canonical case: dims, dtypes that differ from the first port's, attributes."""
    keys = KEYS.get(op, {})
    first = next(iter(case.dtypes.values()))
    parts = [f"{keys.get(k, k)}={v}" for k, v in case.dims.items()]
    parts += [f"{p}={d}" for p, d in case.dtypes.items() if d != first and (d in FLOATS or is_block(d))]
    parts += [f"{k}={v}" for k, v in case.attrs.items()]
    optional = [p for p in case.dtypes if ports(op)[p]["optional"] and not ports(op)[p]["shape"].startswith("?")]
    return ",".join(parts + ([f"with={'+'.join(optional)}"] if optional else [])), first


def time_case(op, case, seconds):
    """Sorted microseconds of single replays, and what is known about the call."""
    data = contents(op, case, case.distributions[0])
    first = Run(op, case, data).call()
    error, bound = verify(op, case, first)
    size = sum(s.bytes.size for s in first.slots.values())
    runs = [Run(op, case, data) for _ in range(max(2, min(COPIES, WORKING_SET // max(size, 1))))]
    graphs = [r.capture() for r in runs]
    for g in graphs:
        g.replay()
    times, end, i = [], time.perf_counter() + seconds, 0
    while time.perf_counter() < end or len(times) < 50:
        replay = graphs[i % len(graphs)].replay
        i += 1
        start = time.perf_counter_ns()
        replay()
        times.append((time.perf_counter_ns() - start) / 1e3)
    cost = ops.cost(op, **first.arguments())
    return sorted(times), cost, error, bound, len(graphs)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("ops", nargs="*", metavar="op", help="default: all of the table")
    p.add_argument("--threads", type=int, default=0, help="CPU threads; 0: one a physical core")
    p.add_argument("--seconds", type=float, default=0.5, help="time a row")
    p.add_argument("--receipt", action="store_true", help="write bench/results/cpu/ops.json")
    args = p.parse_args()
    if unknown := set(args.ops) - set(TABLE):
        p.error(f"no such op: {', '.join(sorted(unknown))}; there are: {', '.join(TABLE)}")
    vivace.set_threads(args.threads)
    limits = measure_limits(vivace.threads())
    print(f"{vivace.threads()} threads; copy {limits['copy_TBs'] * 1e3:.1f} GB/s, f32 products {limits['f32_TFLOPs'] * 1e3:.0f} GFLOP/s")
    print(f"{'op':<13} {'case':<58} {'dtype':<5} {'p50 us':>9} {'p99 us':>9} {'limit us':>9} {'share':>6}")
    rows = []
    for op in args.ops or TABLE:
        for case in SHAPES.get(op) or [c for c in reference(op).CASES if 0 not in c.dims.values()]:
            times, cost, error, bound, copies = time_case(op, case, args.seconds)
            at = lambda q: times[min(len(times) - 1, int(q * len(times)))]  # noqa: E731
            name, dtype = label(op, case)
            limit = max(cost[0] / limits["copy_TBs"] / 1e6, cost[1] / limits["f32_TFLOPs"] / 1e6) if cost else None
            rows.append({"op": op, "case": name, "dtype": dtype, "p50_us": at(0.5), "p99_us": at(0.99), "n": len(times),
                         "bytes": cost and cost[0], "flops": cost and cost[1], "limit_us": limit, "max_err": error, "bound": bound, "pass": True,
                         "note": f"threads={vivace.threads()} copies={copies}"})
            print(f"{op:<13} {name:<58} {dtype:<5} {at(0.5):>9.2f} {at(0.99):>9.2f} {limit or float('nan'):>9.2f} {(limit or float('nan')) / at(0.5):>6.2f}", flush=True)
    if args.receipt:
        sources = ["vivace/base/*.h", "vivace/cpu/**/*.h", "vivace/cpu/**/*.cc", "vivace/ops/*.h", "vivace/ops/ops.def", "bench/bench_ops.py", "bench/op_shapes.py"]
        r = Receipt("ops", chip="cpu", sources=sources, command="python bench/bench_ops.py --receipt", limits=limits, versions={"vivace": vivace.__version__, "numpy": np.__version__})
        for row in rows:
            r.row(**row)
        print(r.write("bench").relative_to(ROOT))


if __name__ == "__main__":
    main()
