#!/usr/bin/env python3
"""The action expert's qkv product with rotation and append behind it, as two launches and as one: what a layer wins.

    python lab/gemm/heads_bench.py [--replays 15] [--rows 50]

us a layer, medians of graphs of LAYERS layers, each with weights and caches of its own, in turn in one process: rms_gemm and qkv_rope, rms_gemm alone,
rms_gemm_rope. A small product stands between layers, as in a step; it is in all of them. Bits are compared first.
"""
import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from bench.measure import in_turn  # noqa: E402
from vivace import ops  # noqa: E402

LAYERS, HQ, D, K, PREFIX = 36, 8, 256, 1024, 576


def ways(T):
    draw = lambda *shape, size=1.0: (torch.randn(*shape, device="cuda") * size).to(torch.bfloat16)  # noqa: E731
    M, R = (HQ + 2) * D, D // 2
    x, squares, factors, qkv = draw(T, K), torch.rand(T, K // 8, device="cuda") * 8, torch.empty(T, device="cuda"), draw(T, M)
    pos = torch.arange(PREFIX, PREFIX + T, device="cuda", dtype=torch.int32)
    inv_freq = 1e4 ** -(torch.arange(R, device="cuda") / R)
    angles, unturned = torch.empty(T, 2, R, device="cuda"), torch.cat([torch.ones(T, 1, R), torch.zeros(T, 1, R)], -1).cuda()
    ops.rope(x=unturned, inv_freq=inv_freq, pos=pos, out=angles.view(T, 1, D))
    layers = [{"w": draw(M, K, size=K**-0.5), "bias": torch.randn(M, device="cuda")} for _ in range(LAYERS)]
    o, q, back = draw(K, HQ * D, size=(HQ * D) ** -0.5), draw(T, HQ, D), draw(T, K)
    caches = [{p: draw(1, PREFIX + T, 1, D) for p in ("k_cache", "v_cache")} for _ in range(LAYERS)]
    given = {"x": x, "squares": squares, "row_scale": factors}

    def product(i):
        ops.rms_gemm(**given, **layers[i], out=qkv)

    def two(i):
        product(i)
        ops.qkv_rope(qkv=qkv, q=q, pos=pos, inv_freq=inv_freq, **caches[i])

    def one(i):
        ops.rms_gemm_rope(**given, **layers[i], **caches[i], qkv=qkv, q=q, pos=pos, angles=angles)

    want = []
    for way in (two, one):
        for t in (q, *caches[0].values()):
            t.zero_()
        way(0)
        torch.cuda.synchronize()
        want.append([t.clone() for t in (q, *caches[0].values())])
    assert all(torch.equal(a, b) for a, b in zip(*want)), "the bits differ"

    def between(way):
        def layer(i):
            way(i)
            ops.gemm(x=q.flatten(1), w=o, out=back)
        return [lambda i=i: layer(i) for i in range(LAYERS)]

    return {"two": between(two), "product": between(product), "one": between(one), "neither": between(lambda i: None)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--replays", type=int, default=15)
    p.add_argument("--rows", type=int, default=50)
    args = p.parse_args()
    with ops.constant_weights():  # as in a model's step
        us = {way: times[len(times) // 2] for way, times in in_turn(ways(args.rows), args.replays).items()}
    print(*(f"{way} {t:.2f}" for way, t in us.items()), f"wins {us['two'] - us['one']:.2f} us a layer")


if __name__ == "__main__":
    main()
