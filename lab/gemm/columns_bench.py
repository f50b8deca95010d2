#!/usr/bin/env python3
"""A product with a row-major B [K, N]: the copy that turns it and gemm, gemm of rows alone, gemm by column, and cuBLASLt through torch.

    python lab/gemm/columns_bench.py [--replays 9]

us a call, medians of graphs of CALLS products over weights that take turns, each way in turn in one process. The bits of the second and the third are held
to be one another's.
"""
import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from bench.measure import in_turn  # noqa: E402
from vivace import ops  # noqa: E402

CALLS = 16
SHAPES = [(4096, 4096, 4096), (8192, 8192, 8192), (1024, 4096, 4096), (256, 2048, 2048), (64, 4096, 4096), (16, 4096, 4096), (1, 4096, 4096)]  # T, N, K


def ways(T, N, K):
    draw = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    x, out = draw(T, K), draw(T, N)
    bs = [draw(K, N) for _ in range(max(2, min(CALLS, (160 << 20) // (2 * N * K))))]
    transposed = [b.T.contiguous() for b in bs]
    room = torch.empty(N, K, device="cuda", dtype=torch.bfloat16)

    def copied(i):
        room.copy_(bs[i].T)
        ops.gemm(x=x, w=room, out=out)

    def rows(i):
        ops.gemm(x=x, w=transposed[i], out=out)

    def columns(i):
        ops.gemm(x=x, w=bs[i].T, out=out)

    def cublas(i):
        torch.mm(x, bs[i], out=out)

    rows(0)
    want = out.clone()
    out.zero_()
    columns(0)
    torch.cuda.synchronize()
    assert torch.equal(out, want), "the bits differ"
    return {w.__name__: [lambda i=i % len(bs), w=w: w(i) for i in range(CALLS)] for w in (copied, rows, columns, cublas)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--replays", type=int, default=9)
    args = p.parse_args()
    print(f"{'T, N, K':24}" + "".join(f"{w:>10}" for w in ("copied", "rows", "columns", "cublas")) + f"{'of rows':>10}{'of cublas':>10}")
    for shape in SHAPES:
        us = {way: times[len(times) // 2] for way, times in in_turn(ways(*shape), args.replays).items()}
        print(f"{str(shape):24}" + "".join(f"{us[w]:10.2f}" for w in us) + f"{us['rows'] / us['columns']:10.3f}{us['cublas'] / us['columns']:10.3f}")


if __name__ == "__main__":
    main()
