"""Products of many tokens with quantized weights beside the bf16 product and torch's: us, and x the bf16 product.

    python lab/gemm/prefill_bench.py [--warm] [--short] [--rows=FILE] [FORMAT ...]

CUDA graphs over more weights than L2 holds, through the op. Needs a GPU and torch.
"""
import json
import statistics
import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import vivace  # noqa: E402
from bench.measure import graph_times  # noqa: E402
from vivace import ops  # noqa: E402

BLOCKS = {"q4_0": (32, 18), "q4_k": (256, 144), "q8_0": (32, 34)}  # elements, bytes, scale first
SHAPES = [(24576, 4096), (4096, 4096), (4096, 12288)]
TOKENS = (96, 256, 512, 1024, 4096)


def weights(kind, N, K):
    """Ports of gemm that stand for one random weight."""
    if kind == "bf16":
        return {"w": (torch.randn(N, K, device="cuda") * K**-0.5).to(torch.bfloat16)}
    if kind in BLOCKS:
        n, size = BLOCKS[kind]
        raw = torch.randint(0, 256, (N, K // n, size), dtype=torch.uint8, device="cuda")
        raw[:, :, 0], raw[:, :, 1] = 0x66, 0x21  # about 0.01
        if kind == "q4_k":
            raw[:, :, 2], raw[:, :, 3] = 0x66, 0x21
        return {"w": vivace.view(raw.reshape(N, -1), dtype=kind, shape=(N, K))}
    if kind == "e4m3":
        return {"w": torch.randn(N, K, device="cuda").to(torch.float8_e4m3fn), "w_row_scale": torch.full((N,), 0.01, device="cuda")}
    half = torch.randint(0, 256, (N, K // 2), dtype=torch.uint8, device="cuda")
    group, dtype = (16, torch.float8_e4m3fn) if kind == "e2m1" else (128, torch.bfloat16)
    return {"w": vivace.view(half, dtype=kind, shape=(N, K)), "w_block_scale": torch.full((N, K // group), 0.01, device="cuda").to(dtype)}


def time(run, count):
    return statistics.median(graph_times([partial(run, i) for i in range(count)], replays=7))


def main():
    warm, kinds, short = "--warm" in sys.argv, [a for a in sys.argv[1:] if a[0] != "-"], "--short" in sys.argv
    rows = [open(a[7:], "w") for a in sys.argv if a.startswith("--rows=")]
    kinds = kinds or ["q4_0", "q4_k", "q8_0", "e4m3", "e2m1", "i4"]
    for N, K in SHAPES[: 2 if short else None]:
        size = N * K // 2
        copies = 1 if warm else max(2, -(-150_000_000 // size))
        plain = [weights("bf16", N, K) for _ in range(max(2, copies // 4))]
        base = {}
        for kind in ["bf16", *kinds]:
            ws = plain if kind == "bf16" else [weights(kind, N, K) for _ in range(copies)]
            line = []
            for T in (512,) if short else TOKENS:
                x, out = torch.randn(T, K, device="cuda").to(torch.bfloat16), torch.empty(T, N, device="cuda", dtype=torch.bfloat16)
                run = lambda i: ops.gemm(x=x, out=out, **ws[i % len(ws)])  # noqa: E731
                if warm:
                    run(0)
                    continue
                us = time(run, max(8, len(ws)))
                if kind == "bf16":
                    base[T] = us
                    peer = time(lambda i: torch.matmul(x, ws[i % len(ws)]["w"].T, out=out), max(8, len(ws)))
                    line.append(f"{T} {us:.1f} (torch {peer:.1f})")
                else:
                    peer = base[T]
                    line.append(f"{T} {us:.1f} x{us / peer:.2f}")
                for f in rows:
                    print(json.dumps({"w": kind, "M": T, "N": N, "K": K, "us": round(us, 2), "peer_us": round(peer, 2)}), file=f, flush=True)
            if not warm:
                print(f"{N}x{K} {kind:5}", "; ".join(line), flush=True)


if __name__ == "__main__":
    with ops.constant_weights():  # as in a model's step
        sys.exit(main())
