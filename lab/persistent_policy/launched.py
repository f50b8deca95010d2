"""The same chain as launches of the shipped kernels: o with residual, gate and up, down with residual, qkv; 36 layers of cold weights, 50 rows, one CUDA graph.

    python lab/persistent_policy/launched.py      needs a GPU, torch and an installed Vivace
"""
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from vivace import ops  # noqa: E402

TOKENS, LAYERS = 50, 36
SHAPES = {"o": (1024, 2048), "up": (8192, 1024), "down": (1024, 4096), "qkv": (2560, 1024)}


def graph_us(run, replays=15):
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        run()
    us = []
    for i in range(replays + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 2:
            us.append(1e3 * begin.elapsed_time(end))
    return statistics.median(us) / LAYERS


def main():
    rows = lambda n: torch.randn(TOKENS, n, device="cuda").to(torch.bfloat16)  # noqa: E731
    ws = [{name: (torch.randn(n, k, device="cuda") * k**-0.5).to(torch.bfloat16) for name, (n, k) in SHAPES.items()} for _ in range(LAYERS)]
    attended, x1, h, x2, r1, r2, qkv = rows(2048), rows(1024), rows(4096), rows(1024), rows(1024), rows(1024), rows(2560)

    def layer(w, parts):
        if "o" in parts:
            ops.gemm(x=attended, w=w["o"], residual=r1, out=x1)
        if "up" in parts:
            ops.gated_gemm(x=x1, w=w["up"], act="gelu_tanh", out=h)
        if "down" in parts:
            ops.gemm(x=h, w=w["down"], residual=r2, out=x2)
        if "qkv" in parts:
            ops.gemm(x=x2, w=w["qkv"], out=qkv)

    for parts in (tuple(SHAPES), ("up", "down"), *((name,) for name in SHAPES)):
        print(f"launched, {' '.join(parts)}: {graph_us(lambda p=parts: [layer(w, p) for w in ws]):.2f} us a layer", flush=True)


if __name__ == "__main__":
    with ops.constant_weights():  # as in a model's step
        sys.exit(main())
