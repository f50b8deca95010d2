"""What norms cost in front of products, in them (norm_gemm) and behind them (gemm_rms_rows, rms_gemm): chains of a decoder layer's products in a CUDA graph.

    python lab/gemm/norm_bench.py [--warm] [--rows=FILE] [MODEL:TYPE ...]      --warm: only compiles the kernels

A chain is qkv (with its norm), o with residual, gate and up (with its norm), down with residual, again and again over more
weights than L2 holds. us of a layer, norms apart, folded and, of 16-bit rows with a weight, behind. Needs a GPU and torch.
"""
import json
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.measure import graph_times  # noqa: E402
from vivace import ops  # noqa: E402

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
# name, hidden, q + k + v, MLP, adaptive
MODELS = [("8B", 4096, 6144, 12288, 0), ("0.6B", 1024, 4096, 3072, 0), ("1B", 2048, 3072, 8192, 0), ("135M", 576, 960, 1536, 0), ("expert", 1024, 2560, 4096, 1)]
TOKENS = {"8B": (1, 2, 8, 32), "0.6B": (1, 2, 8, 32), "1B": (1, 8, 32), "135M": (1, 8, 32), "expert": (1, 4)}


def chain(hidden, qkv, mlp, adaptive, T, eight, way, layers):
    t = E4M3 if eight else BF16
    weight = lambda n, k: (torch.randn(n, k, device="cuda") * k**-0.5).to(t)  # noqa: E731
    scale = torch.tensor([0.02], device="cuda") if eight else None
    x = torch.randn(T, hidden, device="cuda").to(BF16)
    normed, both = torch.empty(T, hidden, dtype=t, device="cuda"), torch.empty(T, qkv, dtype=BF16, device="cuda")
    entering, inner = torch.zeros(T, hidden, dtype=t, device="cuda"), torch.empty(T, mlp, dtype=t, device="cuda")
    rows = {"weight": torch.ones(hidden, device="cuda").to(BF16)}
    if adaptive:
        rows = {"scale": torch.zeros(2, hidden, device="cuda").to(BF16), "shift": torch.zeros(2, hidden, device="cuda").to(BF16), "ada_row": torch.zeros(T, dtype=torch.int32, device="cuda")}
    ws = [(weight(qkv, hidden), weight(hidden, hidden), weight(2 * mlp, hidden), weight(hidden, mlp)) for _ in range(layers)]
    squares, factor = torch.zeros(T, hidden // 8, device="cuda"), torch.zeros(T, device="cuda")
    out8, in8 = ({"out_scale": scale}, {"x_scale": scale}) if eight else ({}, {})

    def normal(w, out, gated):
        kind = {"act": "silu"} if gated else {}
        if way == "behind":
            ops.rms_gemm(x=normed, squares=squares, row_scale=factor, w=w, out=out, gated=gated, epilogue="silu" if gated else "none")
        elif way == "folded":
            ops.norm_gemm(x=x, **rows, w=w, normed=normed, out=out, gated=gated, epilogue="silu" if gated else "none", **({"normed_scale": scale} if eight else {}), **(out8 if gated else {}))
        else:
            ops.norm(x=x, **rows, out=normed, **out8)
            (ops.gated_gemm if gated else ops.gemm)(x=normed, w=w, out=out, **in8, **(out8 if gated else {}), **kind)

    def onto(entering, w):
        if way == "behind":
            ops.gemm_rms_rows(x=entering, w=w, residual=x, out=x, **rows, scaled=normed, squares=squares)
        else:
            ops.gemm(x=entering, w=w, residual=x, out=x, **in8)

    def layer(w):
        normal(w[0], both, False)
        onto(entering, w[1])
        normal(w[2], inner, True)
        onto(inner, w[3])

    return lambda: [layer(w) for w in ws]


def time(run, layers, repeats=4):
    return statistics.median(graph_times([run] * repeats)) / layers


def main():
    named, warm = [a for a in sys.argv[1:] if ":" in a], "--warm" in sys.argv
    rows = [open(a[7:], "w") for a in sys.argv if a.startswith("--rows=")]
    for eight in (False, True):
        for name, hidden, qkv, mlp, adaptive in MODELS:
            kind = "e4m3" if eight else "bf16"
            if named and f"{name}:{kind}" not in named or eight and name == "135M":
                continue
            for T in TOKENS[name] if not eight else (1, 2):
                size = (hidden * (qkv + hidden + 3 * mlp)) * (1 if eight else 2)
                layers = 1 if warm else max(2, -(-150_000_000 // size))
                ways = ["apart", "folded"] + ([] if eight or adaptive else ["behind"])
                runs = {way: chain(hidden, qkv, mlp, adaptive, T, eight, way, layers) for way in ways}
                if warm:
                    [run() for run in runs.values()]
                    continue
                us = {way: round(time(run, layers), 2) for way, run in runs.items()}
                print(f"{name:7} {kind} T {T:3}, us a layer: " + ", ".join(f"{way} {t:7.2f}" for way, t in us.items()), flush=True)
                for f in rows:
                    print(json.dumps({"model": name, "type": kind, "T": T, "us": us["apart"]} | {f"{way}_us": t for way, t in us.items() if way != "apart"}), file=f, flush=True)


if __name__ == "__main__":
    with ops.constant_weights():  # as in a model's step
        sys.exit(main())
