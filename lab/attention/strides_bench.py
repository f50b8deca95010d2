#!/usr/bin/env python3
"""Attention behind a product that makes q, k and v: with qkv_rope taking them apart, and over the product's rows as they lie.

    python lab/attention/strides_bench.py [--replays 9]

us a layer, medians of graphs of LAYERS layers over memory that takes turns, each way in turn in one process: both launches, attention of dense
copies alone, attention of the rows. The last less the second is what rows that lie apart cost; the first less the last what a layer wins.
"""
import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from bench.measure import in_turn  # noqa: E402
from vivace import ops  # noqa: E402

LAYERS = 32
# Rows, slots, heads, head size.
SHAPES = {
    "Whisper large-v3 encoder, 1 window": (1500, 1, 20, 64),
    "Whisper large-v3 encoder, 8 windows": (12000, 8, 20, 64),
    "GR00T N1.7 DiT": (51, 1, 32, 48),
    "GR00T adapter": (1024, 1, 32, 64),
    "SigLIP, 2 views of 256": (512, 2, 16, 72),
}


def ways(T, slots, N, D):
    draw = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    rows = [draw(T, 3 * N * D) for _ in range(max(2, min(LAYERS, (160 << 20) // (6 * T * N * D))))]
    q, k, v, out = (draw(T, N, D) for _ in range(4))
    given = {"mask": "full", "out": out} | ({"slot": torch.arange(T, device="cuda", dtype=torch.int32) // (T // slots)} if slots > 1 else {})
    block = lambda x: x.unflatten(0, (slots, -1))  # noqa: E731

    def apart(x):
        ops.qkv_rope(qkv=x, q=q, k_out=k, v_out=v)

    def dense(x):
        ops.attention(q=q, k=block(k), v=block(v), **given)

    def both(x):
        apart(x)
        dense(x)

    def strided(x):
        p = [y.unflatten(1, (N, D)) for y in x.split(N * D, 1)]
        ops.attention(q=p[0], k=block(p[1]), v=block(p[2]), **given)

    apart(rows[0])
    dense(rows[0])
    want = out.clone()
    out.zero_()
    strided(rows[0])
    torch.cuda.synchronize()
    assert torch.equal(out, want), "the bits differ"
    return {name: [lambda x=rows[i % len(rows)], way=way: way(x) for i in range(LAYERS)] for name, way in (("both", both), ("dense", dense), ("rows", strided))}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--replays", type=int, default=9)
    args = p.parse_args()
    print(f"{'us a layer':40}{'both':>8}{'dense':>8}{'rows':>8}{'wins':>8}")
    for name, shape in SHAPES.items():
        us = {way: times[len(times) // 2] for way, times in in_turn(ways(*shape), args.replays).items()}
        print(f"{name:40}{us['both']:8.2f}{us['dense']:8.2f}{us['rows']:8.2f}{us['both'] - us['rows']:8.2f}")


if __name__ == "__main__":
    main()
