#!/usr/bin/env python3
"""pi0.5 with its action expert in bf16 and in e4m3, in turn in one process on a GPU: what expert="e4m3" brings and costs.

    python lab/policy_expert.py [--rounds 5] [--views 2] [--profile] [--chain]

us of replays of the actions graph and of a whole call, medians of `rounds` turns, and how far apart their actions are (weights are random, and their gates small).
--profile: what each kind of launch takes alone and in the step. --chain: the four products of a layer alone, over LAYERS layers of cold weights, bf16
and e4m3. Predicted (study D, lab/notes/080): the chain 13.8 us for 17.4, the actions 0.5 ms less. Given up where the chain is 16 and more.
"""
import argparse
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import bench_vla  # noqa: E402

CASE, LAYERS, T, H, QKV, Q, M = "pi05-base", 36, 50, 1024, 2560, 2048, 4096


def policies(views, rounds, profiled) -> None:
    import numpy as np

    import vivace

    given = bench_vla.observation(CASE, views)
    options = dict(config="pi05", device=bench_vla.WHERE["device"], precision="fp8_static", num_views=views, action_horizon=50, num_steps=10, prompt_tokens=bench_vla.WORDS, random_weights=True, calibration=[given])
    held = {expert: vivace.load_model(bench_vla.WHERE["configs"] / CASE, expert=expert, **options) for expert in ("bf16", "e4m3")}
    actions = {expert: p.predict(**given, seed=1) for expert, p in held.items()}
    apart = np.linalg.norm(actions["e4m3"] - actions["bf16"]) / np.linalg.norm(actions["bf16"])
    for p in held.values():
        print({k: p.report()[k] for k in ("context_launches", "action_launches")}, p.report()["forms"]["expert"])
    us = {(expert, stage): [] for expert in held for stage in ("actions", "whole")}
    for _ in range(rounds):
        for (expert, stage), seen in us.items():
            seen.append(held[expert].profile(stage)["step_us"])
    for stage in ("actions", "whole"):
        bf16, e4m3 = (statistics.median(us[expert, stage]) for expert in ("bf16", "e4m3"))
        print(f"{stage:<8} bf16 {bf16:8.1f}  e4m3 {e4m3:8.1f}  {e4m3 - bf16:+7.1f} us   all: {us['bf16', stage]} {us['e4m3', stage]}", flush=True)
    print(f"actions of e4m3 are {apart:.1e} of their norm from bf16's")
    for expert, p in held.items() if profiled else ():
        print(expert)
        bench_vla.print_profile("fp8" if expert == "e4m3" else "bf16", "actions", p.profile("actions", in_step=True))


def layer(eight):
    """[(op, ports and attributes)] of LAYERS layers' four products, each with weights of its own."""
    import torch

    from vivace import ops

    one = torch.float8_e4m3fn if eight else torch.bfloat16
    draw = lambda *shape, size=1.0: torch.randn(*shape, device="cuda") * size  # noqa: E731
    scale = torch.full((1,), 0.02, device="cuda")
    hidden = draw(T, H).to(torch.bfloat16)
    attended, inner = draw(T, Q).to(one), draw(T, M).to(one)
    qkv = torch.empty(T, QKV, dtype=torch.bfloat16, device="cuda")
    scaled, squares, factors = draw(T, H).to(one), draw(T, H // 8) ** 2 * 8, torch.empty(T, device="cuda")
    weights = lambda n, k: {"w": draw(n, k, size=k**-0.5).to(one)} | ({"w_row_scale": draw(n).abs() + 0.5, "x_scale": scale} if eight else {})  # noqa: E731
    calls = []
    for _ in range(LAYERS):
        row = lambda: draw(1, H, size=0.1).to(torch.bfloat16)  # noqa: E731
        onto = lambda x, k: (ops.gemm_rms_rows, dict(x=x, **weights(H, k), gate=row(), residual=hidden, out=hidden, scale=row(), scaled=scaled, squares=squares, **({"scaled_scale": scale} if eight else {})))  # noqa: E731
        behind = lambda n, out, **more: (ops.rms_gemm, dict(x=scaled, squares=squares, row_scale=factors, **weights(n, H), bias=draw(n), out=out, **more))  # noqa: E731
        calls += [behind(QKV, qkv), onto(attended, Q), behind(2 * M, inner, gated=True, epilogue="gelu_tanh", **({"out_scale": scale} if eight else {})), onto(inner, M)]
    return calls


def chains() -> None:
    from bench.measure import in_turn

    ways = {}
    for eight in (False, True):
        calls = [lambda op=op, given=given: op(**given) for op, given in layer(eight)]
        name = "e4m3" if eight else "bf16"
        ways |= {f"{name} chain": calls, **{f"{name} {kind}": calls[i::4] for i, kind in enumerate(("qkv", "o", "gate/up", "down"))}}
    for name, us in in_turn(ways).items():
        print(f"{name:<14} {statistics.median(us) * (4 if name.endswith('chain') else 1):7.2f} us a layer")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--views", type=int, default=2)
    p.add_argument("--profile", action="store_true")
    p.add_argument("--chain", action="store_true")
    p.add_argument("--device", default="cuda")
    p.add_argument("--configs", type=Path, default=bench_vla.WHERE["configs"])
    args = p.parse_args()
    bench_vla.WHERE.update(device=args.device, configs=args.configs)
    if args.chain:
        chains()
    policies(args.views, args.rounds, args.profile)


if __name__ == "__main__":
    main()
