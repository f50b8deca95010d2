#!/usr/bin/env python3
"""Trains tiny-pi05: behaviour cloning by flow matching, on pictures drawn where it trains and an analytic controller's chunks.

    python tools/train_reach.py --out SMALL --small [--steps N] [--batch N] [--device cuda|cpu]    # 2.27 M weights, which learn soon
    python tools/train_reach.py --out FOLDER --start SMALL --steps N --rate 5e-4                   # grown to 5.09 M, for few bits

A folder gets config.json, norm_stats.json, tokenizer.json and model.safetensors (bf16), in openpi's converted layout; of what
--start trains the matrices are on the grid of e4m3's numbers, and model.safetensors.xz, which is what this repository keeps, is
written beside. Needs PyTorch and an installed Vivace, whose arm and cameras it uses. tools/reach/ has the model.
"""
import argparse
import functools
import json
import math
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
from reach.grow import grown  # noqa: E402
from reach.model import Pi05, Rounded, has_grid, on_grid, parameters  # noqa: E402

from vivace import _core  # noqa: E402
from vivace.demo import arm, reach  # noqa: E402
from vivace.demo.weights import pack, unpacked  # noqa: E402
from vivace.text import load_text  # noqa: E402



def sizes(width, vision, text, expert) -> dict:
    """A config.json of towers of `width`, with these sizes of their inner layers."""
    gemma = {"width": width, "depth": 4, "num_heads": width // 32, "num_kv_heads": 1, "head_dim": 32}
    return {
        "vision": {"width": width, "depth": 4, "mlp_dim": vision, "num_heads": width // 32, "image_size": reach.SIDE, "patch_size": 14},
        "text": {**gemma, "mlp_dim": text}, "expert": {**gemma, "mlp_dim": expert},
        "action_dim": 8, "state_dim": 8, "action_horizon": reach.HORIZON, "num_inference_steps": 10,
        "time_embedding": {"min_period": 4e-3, "max_period": 4.0},
    }


CONFIG, SMALL = sizes(192, 512, 512, 384), sizes(128, 384, 256, 256)
ACTIONS = CONFIG["action_dim"]
CHUNKS = 4     # noises of one observation, which share its prefix
GOAL = "goal"  # a parameter of training alone
LEAST = 2e-3   # of a chunk's mean square: below, being apart counts no more


def statistics() -> dict:
    """Ranges of the joints and of their turns, by which states and actions are scaled to [-1, 1]."""
    turns = [arm.STEP] * arm.JOINTS
    state, actions = dict(q01=arm.LOW, q99=arm.HIGH), dict(q01=[-t for t in turns], q99=turns)
    return {"norm_stats": {k: {"mean": [(a + b) / 2 for a, b in zip(v["q01"], v["q99"])], "std": [(b - a) / 4 for a, b in zip(v["q01"], v["q99"])], **v}
                           for k, v in (("state", state), ("actions", actions))}}


class Prompts:
    """Token ids of every prompt of the task, made on the device: a row a colour and shape, a token a number of the state."""

    def __init__(self, folder, device):
        text = load_text(str(folder), {})
        prompts = [_core.prompt_parts("pi05", reach.task(c, s), [0.0] * arm.JOINTS) for c in arm.COLOURS for s in arm.SHAPES]
        rows = [[begin, *text.encode(words)] for begin, words in prompts]
        numbers = [text.encode(f" {n}") for n in range(256)]
        zero = numbers[128][0]
        self.places = [i for i, t in enumerate(rows[0]) if t == zero]
        if len({len(r) for r in rows}) != 1 or len(self.places) != arm.JOINTS or any(len(n) != 1 for n in numbers):
            raise SystemExit(f"the tokenizer in {folder} is not the task's: make it again")
        self.rows, self.numbers = torch.tensor(rows, device=device), torch.tensor(numbers, device=device)[:, 0]
        self.vocab = text.tokenizer.get_vocab_size()

    def __call__(self, colour, block, state):
        ids = self.rows[colour * len(arm.SHAPES) + block.long()]
        bins = torch.floor(128 * state + 128).clamp(0, 255).long()
        for joint, place in enumerate(self.places):
            ids[:, place] = self.numbers[bins[:, joint]]
        return ids


class Task:
    def __init__(self, device, prompts, compiled):
        self.prompts, self.device = prompts, device
        frames = arm.Cameras(reach.SIDE, torch, device=device).frames
        self.frames = torch.compile(frames) if device.startswith("cuda") and compiled else frames  # a picture in one pass over its pixels
        self.low, self.high = torch.tensor(arm.LOW, device=device), torch.tensor(arm.HIGH, device=device)

    @torch.no_grad()
    def draw(self, b):
        """Pictures, token ids, normalised chunks and goals of b observations: poses anywhere, on the way, and near the goal."""
        d = self.device
        scene = arm.scenes(torch, torch.rand(b, arm.NUMBERS, device=d))
        share, kind, noise = torch.rand(b, 1, device=d), torch.rand(b, 1, device=d), torch.randn(b, arm.JOINTS, device=d)
        anywhere = self.low + torch.rand(b, arm.JOINTS, device=d) * (self.high - self.low)
        near = scene.start + (scene.goal - scene.start) * torch.where(kind < 0.6, share, 1.0) + noise * torch.where(kind < 0.6, 0.05, 0.12)
        q = torch.where(kind < 0.2, anywhere, near).clamp(self.low, self.high)
        scaled = (lambda joints: (joints - self.low) / (self.high - self.low + 1e-6) * 2 - 1)
        ids = self.prompts(scene.colour[:, 0], scene.block[:, 0], scaled(q))
        actions = torch.zeros(b, reach.HORIZON, ACTIONS, device=d)
        actions[..., :arm.JOINTS] = arm.chunk(torch, q, scene.goal, reach.HORIZON) / arm.STEP
        return self.frames(scene, q), ids, actions, scaled(scene.goal)


def loss_of(model, task, b):
    """The flow's loss, and that of the goal as a line through the prefix's last token tells it: with that, words and pictures
    are brought together in far fewer steps. The line is not kept."""
    pixels, ids, actions, goal = task.draw(b)
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
        cache, last = model.prefix(pixels, ids)
        # Beta(1.5, 1) of openpi: more of it where there is more noise.
        t = torch.rand(b, CHUNKS, device=pixels.device) ** (1 / 1.5) * 0.999 + 0.001
        noise = torch.randn(b, CHUNKS, *actions.shape[1:], device=pixels.device)
        at = t[..., None, None]
        v = model.velocity(cache, at * noise + (1 - at) * actions[:, None], t)
        told = model.rms(last) @ model.p[GOAL]
    return torch.stack([F.mse_loss(v.float(), noise - actions[:, None]), F.mse_loss(told.float(), goal)])


def settled_loss_of(model, task, b, apart):
    """The flow's loss of the network on its grid, as it is and as "fp8" makes it, and how far apart the two are in shares of
    the chunk, of which `apart` says what it counts: what is trained is that they are not, for small moves as for large ones."""
    pixels, ids, actions, _ = task.draw(b)
    latent = model.p
    model.p = {k: Rounded.apply(v, on_grid) if has_grid(v) else v for k, v in latent.items()}
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
        t = torch.rand(b, CHUNKS, device=pixels.device) ** (1 / 1.5) * 0.999 + 0.001
        noise, at = torch.randn(b, CHUNKS, *actions.shape[1:], device=pixels.device), t[..., None, None]
        seen = []
        for model.rounded in (False, True):
            cache, _ = model.prefix(pixels, ids)
            seen.append(model.velocity(cache, at * noise + (1 - at) * actions[:, None], t).float())
    model.p = latent
    want = noise - actions[:, None]
    far = (seen[1] - seen[0]).square().mean((2, 3)) / (actions.square().mean((1, 2))[:, None] + LEAST)
    return torch.stack([F.mse_loss(seen[0], want), F.mse_loss(seen[1], want), apart * far.mean()])


class Trainer:
    """One step of AdamW over a batch; on a GPU captured once and replayed."""

    def __init__(self, model, task, batch, rate, loss_of):
        device = task.device
        self.loss_of = loss_of
        self.weights = [p.requires_grad_() for p in model.p.values()]
        on_gpu = device.startswith("cuda")
        self.rate = torch.tensor(rate, device=device)
        self.optimiser = torch.optim.AdamW(self.weights, lr=self.rate if on_gpu else rate, betas=(0.9, 0.95), weight_decay=0.01, fused=on_gpu, capturable=on_gpu)
        self.graph, self.model, self.task, self.batch = None, model, task, batch
        if on_gpu:
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(3):
                    self._step()
            torch.cuda.current_stream().wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self._step()

    def _step(self):
        self.optimiser.zero_grad()
        loss = self.loss_of(self.model, self.task, self.batch)
        loss.sum().backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0, foreach=True)
        self.optimiser.step()
        return loss.detach()

    def step(self, rate):
        if self.graph is None:
            self.optimiser.param_groups[0]["lr"] = rate
            self.loss = self._step()
        else:
            self.rate.fill_(rate)
            self.graph.replay()
        return self.loss


def save(model, folder, grid) -> int:
    weights = {k: on_grid(v) if grid and has_grid(v) else v for k, v in model.p.items() if k != GOAL}
    weights = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in weights.items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(model.c, indent=1) + "\n")
    (folder / "norm_stats.json").write_text(json.dumps(statistics(), indent=1) + "\n")
    return sum(v.numel() for v in weights.values())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, type=Path)
    p.add_argument("--device", default="cuda")
    p.add_argument("--steps", type=int, default=5500)
    p.add_argument("--batch", type=int, default=192)
    p.add_argument("--rate", type=float, default=1e-3)
    p.add_argument("--seconds", type=float, help="as many steps as that takes, instead of --steps")
    p.add_argument("--small", action="store_true", help="the narrow network")
    p.add_argument("--start", type=Path, help="folder of weights to go on from, grown if they are narrow, which are then trained for both arithmetics")
    p.add_argument("--apart", type=float, default=3, help="with --start: what a difference between the two counts, in errors of the flow")
    p.add_argument("--tokenizer", type=Path, default=reach.FOLDER, help="folder of tokenizer.json")
    args = p.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    prompts = Prompts(args.tokenizer, args.device)
    config = SMALL if args.small else CONFIG
    if args.start is None:
        first = parameters(config, prompts.vocab) | {GOAL: torch.zeros(config["text"]["width"], arm.JOINTS)}
    else:
        args.start = unpacked(args.start)
        was = json.loads((args.start / "config.json").read_text())
        first = {k: v.float() for k, v in load_file(args.start / "model.safetensors").items()}
        first = first if was == config else grown(first, was, config)
    model = Pi05(first, config).to(args.device)
    trainer = Trainer(model, Task(args.device, prompts, bool(args.seconds) or args.steps >= 1000), args.batch, 1e-5, loss_of if args.start is None else functools.partial(settled_loss_of, apart=args.apart))
    args.out.mkdir(parents=True, exist_ok=True)
    if (args.tokenizer / "tokenizer.json").resolve() != (args.out / "tokenizer.json").resolve():
        shutil.copy(args.tokenizer / "tokenizer.json", args.out / "tokenizer.json")
    start, total = time.perf_counter(), args.steps
    if args.seconds:
        for _ in range(10):
            float(trainer.step(1e-6).sum())
        total = max(1, int((args.seconds - (now := time.perf_counter() - start)) / now * 10))
    every = max(1, min(200, total // 20))
    for i in range(total):
        loss = trainer.step(args.rate * min(1, (i + 1) / min(300, total / 5)) * (0.5 + 0.5 * math.cos(math.pi * (i + 1) / total)))
        if i % every == 0:
            print(f"{i:>6}  loss {'  '.join(f'{v:.5f}' for v in loss.tolist())}  {time.perf_counter() - start:6.1f} s", flush=True)
        if i % 300 == 299:
            save(model, args.out, args.start)  # what there is if it is cut off
    count = save(model, args.out, args.start)
    if args.start:
        print(f"{pack(args.out):,} bytes packed")
    print(f"{count:,} weights, {(args.out / 'model.safetensors').stat().st_size:,} bytes, {total} steps of {args.batch} in {time.perf_counter() - start:.0f} s, last loss {loss[0].item():.5f}")


if __name__ == "__main__":
    main()
