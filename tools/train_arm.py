#!/usr/bin/env python3
"""Retrains tiny-pi05 for the arm of `vivace demo arm`: chunks of joint targets at 30 Hz, as steps from the state that was measured.

    python tools/train_arm.py --out FOLDER [--seconds N] [--observations N]      # minutes on two cores of a CPU

What it saw and read stays as it is: keys and values of the prefix are made once an observation and kept. Only the action expert is trained (not
its adaptive norms' matrices), on the grid of e4m3's numbers, so that FOLDER/model.safetensors.xz, which has the changed tensors alone, stays
small; vivace.demo.weights puts them over tiny-pi05's. Observations are frames that MuJoCo renders and frames that are drawn, half and half.
Needs PyTorch, MuJoCo with a GL, and an installed Vivace, whose arm and cameras it uses."""
import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # noqa: F401  its compiler's LLVM has to be there before Mesa's, else the process ends
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
from reach.model import EXPERT, Pi05, Rounded, has_grid, on_grid  # noqa: E402
from train_reach import Prompts  # noqa: E402

from vivace.demo import arm, closed_loop, reach, sim  # noqa: E402
from vivace.demo.weights import pack, unpacked  # noqa: E402

ACTIONS = 8   # of the network
CHUNKS = 1    # noises of one observation a step


def statistics() -> dict:
    most = [closed_loop.HORIZON * closed_loop.TURN] * arm.JOINTS
    ranges = {"state": dict(q01=arm.LOW, q99=arm.HIGH), "actions": dict(q01=[-v for v in most], q99=most)}
    return {"norm_stats": {k: {"mean": [(a + b) / 2 for a, b in zip(v["q01"], v["q99"])], "std": [(b - a) / 4 for a, b in zip(v["q01"], v["q99"])], **v}
                           for k, v in ranges.items()}}


def trained(name: str) -> bool:
    return name.startswith(EXPERT) and not name.endswith(".dense.weight") or name.startswith(("action_in_proj", "action_out_proj"))


def poses(rng, scene):
    """Joints anywhere, on the way with what servos lag behind, and near the goal."""
    kind, start, goal = rng.random(), scene.start[0], scene.goal[0]
    if kind < 0.15:
        q = np.array([rng.uniform(lo, hi) for lo, hi in zip(arm.LOW, arm.HIGH)])
    elif kind < 0.65:
        q = start + (goal - start) * rng.random() + rng.normal(0, 0.05, 3)
    else:
        q = goal + rng.normal(0, rng.choice([0.02, 0.08, 0.2]), 3)
    return np.clip(q, arm.LOW, arm.HIGH)


@torch.no_grad()
def observed(model, prompts, count, rng, say):
    """Keys and values [count, layers, 2, length, D] in bf16 of drawn observations, and their chunks."""
    world = sim.Sim()
    ways = [sim.Rendered(world, reach.SIDE), sim.Drawn(world, reach.SIDE)]
    kept, chunks, begun, group = [], [], time.perf_counter(), 32
    low, high = np.array(arm.LOW), np.array(arm.HIGH)
    for first in range(0, count, group):
        frames, states, colours, blocks = [], [], [], []
        for i in range(first, min(first + group, count)):
            scene = arm.scenes(np, rng.random((1, arm.NUMBERS)))
            world.begin(scene)
            q = poses(rng, scene)
            world.place(q)
            frames.append(ways[i % 2].frames())
            states.append((q - low) / (high - low + 1e-6) * 2 - 1)
            colours.append(int(scene.colour[0, 0]))
            blocks.append(bool(scene.block[0, 0]))
            chunk = np.zeros((closed_loop.HORIZON, ACTIONS), np.float32)
            chunk[:, :arm.JOINTS] = closed_loop.wanted(q, scene.goal[0]) / (closed_loop.HORIZON * closed_loop.TURN)
            chunks.append(chunk)
        ids = prompts(torch.tensor(colours), torch.tensor(blocks), torch.tensor(np.array(states), dtype=torch.float32))
        cache, _ = model.prefix(torch.from_numpy(np.stack(frames)), ids)
        kept.append(torch.stack([torch.stack(kv, 1)[:, :, 0] for kv in cache], 1).bfloat16())  # one head of keys
        if first // group % 20 == 0:
            say(f"{first + group:>6} observations, {time.perf_counter() - begun:.0f} s")
    return torch.cat(kept), torch.from_numpy(np.stack(chunks))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, type=Path)
    p.add_argument("--seconds", type=float, default=900, help="of training, after the observations are made")
    p.add_argument("--observations", type=int, default=6000)
    p.add_argument("--kept", type=Path, metavar="FILE", help="where observations are kept, and taken from if it is there")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--rate", type=float, default=1e-3)
    p.add_argument("--threads", type=int, default=0, help="of PyTorch; 1 is best beside others' work")
    args = p.parse_args()
    torch.manual_seed(0)
    if args.threads:
        torch.set_num_threads(args.threads)
    rng = np.random.default_rng(0)
    start = unpacked(reach.FOLDER)
    config = json.loads((start / "config.json").read_text()) | {"action_horizon": closed_loop.HORIZON}
    first = {k: v.float() for k, v in load_file(start / "model.safetensors").items()}
    model = Pi05(first, config)
    say = lambda line: print(line, flush=True)  # noqa: E731
    if args.kept is None or not args.kept.exists():
        keys, chunks = observed(model, Prompts(reach.FOLDER, "cpu"), args.observations, rng, say)
        if args.kept is not None:
            torch.save((keys, chunks), args.kept)
    else:
        keys, chunks = torch.load(args.kept, weights_only=True)
    held = len(keys) // 20  # of which nothing is learnt
    latent = {k: v.clone().requires_grad_() for k, v in first.items() if trained(k)}
    say(f"{sum(v.numel() for v in latent.values()):,} weights to train of {sum(v.numel() for v in first.values()):,}")
    optimiser = torch.optim.AdamW(latent.values(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.0)

    def rounded():
        return first | {k: Rounded.apply(v, on_grid) if has_grid(v) else v for k, v in latent.items()}

    def loss_of(rows, generator=None):
        cache = [(k[:, 0, None], k[:, 1, None]) for k in keys[rows].float().unbind(1)]
        want = chunks[rows]
        t = torch.rand(len(rows), CHUNKS, generator=generator) ** (1 / 1.5) * 0.999 + 0.001
        noise, at = torch.randn(len(rows), CHUNKS, *want.shape[1:], generator=generator), t[..., None, None]
        v = model.velocity(cache, at * noise + (1 - at) * want[:, None], t)
        return F.mse_loss(v, noise - want[:, None])

    def save():
        args.out.mkdir(parents=True, exist_ok=True)
        changed = {k: (on_grid(v) if has_grid(v) else v).detach().bfloat16().contiguous() for k, v in latent.items()}
        save_file(changed, args.out / "model.safetensors")
        size = pack(args.out)
        (args.out / "model.safetensors").unlink()
        (args.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        (args.out / "norm_stats.json").write_text(json.dumps(statistics(), indent=1) + "\n")
        return size

    begun, i, mean = time.perf_counter(), 0, 0.0
    while (share := (time.perf_counter() - begun) / args.seconds) < 1:
        for group in optimiser.param_groups:
            group["lr"] = args.rate * min(1, (i + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * share))
        model.p = rounded()
        optimiser.zero_grad()
        loss = loss_of(torch.randint(held, len(keys), (args.batch,)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(latent.values(), 1.0)
        optimiser.step()
        mean, i = mean + 0.02 * (loss.item() - mean) if i else loss.item(), i + 1
        if i % 50 == 0:
            with torch.no_grad():
                model.p = rounded()
                unseen = loss_of(torch.arange(held)[:128], torch.Generator().manual_seed(1)).item()
            say(f"{i:>6}  loss {mean:.5f}  of observations it never saw {unseen:.5f}  {time.perf_counter() - begun:6.1f} s")
            if i % 250 == 0:
                save()
    say(f"{save():,} bytes packed, {i} steps of {args.batch} in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
