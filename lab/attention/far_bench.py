#!/usr/bin/env python3
"""Decode of one sequence and few kv heads far out: keys of a kv head by one cluster, and by several (port words).

    python lab/attention/far_bench.py [--replays 9] [--places 262144]

us a layer, medians of graphs of LAYERS layers, each with its own cache, both ways in turn in one process: rope_attention, then attention alone; the
last figure of each line is what several clusters read, TB/s. What several must not cost shows up to 4096 places, where one cluster has all keys.
"""
import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from bench.measure import in_turn  # noqa: E402
from tests.ref.attention import words_of  # noqa: E402
from vivace import ops  # noqa: E402

LAYERS = 10
# Query heads, kv heads, head size.
SHAPES = {"Qwen3.6-35B-A3B": (16, 2, 256), "Qwen3.6-27B": (24, 4, 256), "one kv head of 128": (8, 1, 128)}
POSITIONS = (0, 1023, 4095, 4096, 6143, 8191, 32767, 131071, 262142)


def ways(caches, Hq, Hkv, D, position):
    draw = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    qkv, q, out, weight = draw(1, (Hq + 2 * Hkv) * D), draw(1, Hq, D), draw(1, Hq, D), draw(D)
    pos = torch.full((1,), position, dtype=torch.int32, device="cuda")
    words = torch.zeros(words_of(1, Hq, Hkv, D), dtype=torch.int32, device="cuda")
    rope = {"qkv": qkv, "pos": pos, "inv_freq": 1e7 ** -(torch.arange(32, device="cuda") / 32), "q_norm": weight, "k_norm": weight, "out": out, "q": q}
    more = {"one": {}, "several": {"words": words}}

    def both(cache, more):
        ops.rope_attention(**rope, k_cache=cache[0], v_cache=cache[1], stable=True, **more)

    def alone(cache, more):
        ops.attention(q=q, k=cache[0], v=cache[1], pos=pos, out=out, **more)

    for way in (both, alone):  # compiled before anything is captured
        for m in more.values():
            way(caches[0], m)
    torch.cuda.synchronize()
    return {(name, n): [lambda c=c, way=way, m=m: way(c, m) for c in caches] for name, way in (("rope", both), ("alone", alone)) for n, m in more.items()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--replays", type=int, default=9)
    p.add_argument("--places", type=int, default=262144)
    args = p.parse_args()
    for name, (Hq, Hkv, D) in SHAPES.items():
        caches = [torch.randn(2, 1, args.places, Hkv, D, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]
        print(f"{name + ', position':30}{'rope: one':>11}{'several':>9}{'alone: one':>12}{'several':>9}{'TB/s':>7}")
        for position in (x for x in POSITIONS if x < args.places):
            us = {way: times[len(times) // 2] for way, times in in_turn(ways(caches, Hq, Hkv, D, position), args.replays).items()}
            rate = (position + 1) * Hkv * D * 4 / us["alone", "several"] / 1e6
            print(f"{position:>30}{us['rope', 'one']:11.2f}{us['rope', 'several']:9.2f}{us['alone', 'one']:12.2f}{us['alone', 'several']:9.2f}{rate:7.2f}")
        del caches


if __name__ == "__main__":
    main()
