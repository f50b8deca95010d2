#!/usr/bin/env python3
"""What it costs that a product by itself waits for all that is queued before it, where a model's lets its weights come early.

    python lab/gemm/order_bench.py [--rows=FILE]

Chains of products in a graph, us a product, in turn: every operand ordered, and under constant_weights(); then calls as they are issued:
host and device, us a call, with and without.
"""
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from bench.measure import in_turn  # noqa: E402
from vivace import ops  # noqa: E402

SHAPES = [(T, N, K) for N, K in ((1024, 1024), (2048, 2048), (6144, 4096), (24576, 4096)) for T in (1, 8, 50, 256, 1024)]


def chain(T, N, K, constant):
    """Products, each on weights of its own and behind a norm of its rows, so that neighbours depend on each other."""
    x, normed, out = (torch.randn(T, n, device="cuda", dtype=torch.bfloat16) for n in (K, K, N))
    ws = [torch.randn(N, K, device="cuda", dtype=torch.bfloat16) for _ in range(max(2, min(24, (160 << 20) // (2 * N * K))))]

    def call(w):
        with ops.constant_weights(constant):
            ops.norm(x=x, out=normed)
            ops.gemm(x=normed, w=w, out=out)

    return [lambda w=ws[i % len(ws)]: call(w) for i in range(24)]


def issued(T, N, K, constant, calls=200, repeats=15):
    """us a call: of the host that issues it, and of the device behind it."""
    x, w, out = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((T, K), (N, K), (T, N)))
    host, device = [], []
    with ops.constant_weights(constant):
        for _ in range(repeats):
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            start = time.perf_counter_ns()
            for _ in range(calls):
                ops.gemm(x=x, w=w, out=out)
            host.append((time.perf_counter_ns() - start) / calls / 1e3)
            end.record()
            end.synchronize()
            device.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(host), statistics.median(device)


def main():
    rows = [open(a[7:], "w") for a in sys.argv if a.startswith("--rows=")]
    for shape in SHAPES:
        us = {name: statistics.median(t) for name, t in in_turn({"ordered": chain(*shape, False), "constant": chain(*shape, True)}).items()}
        line = {"T": shape[0], "N": shape[1], "K": shape[2]} | {f"{k}_us": round(v, 3) for k, v in us.items()}
        if shape[0] in (1, 256):
            for name, constant in (("ordered", False), ("constant", True)):
                line[f"{name}_host_us"], line[f"{name}_issued_us"] = (round(v, 3) for v in issued(*shape, constant))
        print(line, flush=True)
        for f in rows:
            print(json.dumps(line), file=f, flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
