#!/usr/bin/env python3
"""Trains tiny-qwen35, a Qwen3.5 of 1.7 M weights with a draft layer, on text of the public domain and a task of recall.

    python tools/train_tiny_qwen35.py --text kjv.txt --out FOLDER --device cuda          # 8 minutes on one H200 at most: --minutes
    python tools/train_tiny_qwen35.py --text any.txt --out FOLDER --small --steps 3      # whether it runs

--text: plain UTF-8, a verse or sentence a line (Debian's bible-kjv-text, `bible -f` of all of it). FOLDER gets config.json, tokenizer.json,
model.safetensors as ModelOpt stores NVFP4, whose codes the last quarter of the steps trains, and model.safetensors.xz, which is what a
repository would keep. A line of JSON at the end says loss, how many recalls are right, and how many drafts are what the model draws.
Needs PyTorch and an installed Vivace. tools/hybrid/ has the model.
"""
import argparse
import json
import math
import random
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hybrid.model import Hybrid, config, fp4, narrow, on_grid, parameters  # noqa: E402
from hybrid.recall import drawn  # noqa: E402

from vivace.demo.weights import pack  # noqa: E402

END = "<|endoftext|>"
MTP = 0.3       # of its loss beside the model's
RECALL = 0.5    # of the sequences
ROUNDED = 0.75  # of the steps are done when matrices begin to act as FP4


def tokenizer_of(text, lines, vocab):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator(lines + text, trainers.BpeTrainer(vocab_size=vocab, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return t


class Data:
    """Batches of token ids [B, T + 2] on the device: pieces of the text, and recalls."""

    def __init__(self, text, tokenizer, T, device, seed=0):
        r, end = random.Random(seed), tokenizer.token_to_id(END)
        self.T, self.device, self.g = T, device, torch.Generator(device).manual_seed(seed)
        whole = [i for e in tokenizer.encode_batch(text) for i in [*e.ids, end]]
        self.ids = torch.tensor(whole * (1 + (T + 2) // len(whole)), device=device)
        short = [line for line in text if len(line) < 2 * T] or [line[:2 * T] for line in text]
        rows = [(e.ids + [end] * (T + 2))[:T + 2] for e in tokenizer.encode_batch(["".join(drawn(r, short)) for _ in range(20000 if T > 64 else 200)])]
        self.recalls = torch.tensor(rows, device=device)

    def draw(self, B, share=RECALL):
        at = torch.randint(0, len(self.ids) - self.T - 1, (B, 1), generator=self.g, device=self.device)
        rows = self.ids[at + torch.arange(self.T + 2, device=self.device)]
        some = torch.randint(0, len(self.recalls), (B,), generator=self.g, device=self.device)
        return torch.where(torch.rand(B, 1, generator=self.g, device=self.device) < share, self.recalls[some], rows)


def losses(model, rows):
    """(of next tokens, of the draft layer's), and both kinds of logits' choices beside what comes."""
    x, next_, after = rows[:, :-2], rows[:, 1:-1], rows[:, 2:]
    hidden = model.hidden(x)
    said, drafted = model.logits(hidden), model.drafts(hidden, next_)
    each = [F.cross_entropy(t.float().flatten(0, 1), wanted.flatten()) for t, wanted in ((said, next_), (drafted, after))]
    return each, said, drafted


@torch.no_grad()
def measured(model, data, tokenizer, batches=4, B=64):
    """Shares of right answers behind "Recall:", and of drafts that are what the model itself would choose."""
    right = asked = agree = all_ = loss = 0.0
    colon = tokenizer.encode("Recall:").ids[-1]
    numbers = torch.tensor([i for w, i in tokenizer.get_vocab().items() if w.strip("Ġ").isdigit()], device=data.device)
    for _ in range(batches):
        rows = data.draw(B, 1.0)
        (own, _), said, drafted = losses(model, rows)
        choice, next_ = said.argmax(-1), rows[:, 1:-1]
        behind = (rows[:, :-2] == colon).cumsum(1) > 0
        counts = behind & torch.isin(next_, numbers)
        right, asked = right + (choice == next_)[counts].sum().item(), asked + counts.sum().item()
        # A draft stands for the choice one further on, which is the model's own where the token between is what it chose.
        known = (choice == next_)[:, :-1]
        agree, all_, loss = agree + (drafted.argmax(-1)[:, :-1] == choice[:, 1:])[known].sum().item(), all_ + known.sum().item(), loss + own.item() / batches
    return {"loss": round(loss, 4), "recalled": round(right / max(asked, 1), 4), "drafts_right": round(agree / max(all_, 1), 4)}


class Step:
    """A step of training: called three times, then captured and replayed, where `replay`. Launches take longer than what they launch."""

    def __init__(self, learn, replay):
        self.learn, self.calls, self.graph = learn, 0 if replay else -1, None

    def __call__(self):
        if self.graph is not None:
            self.graph.replay()
        elif self.calls < 0:
            return self.learn()
        elif self.calls < 3:
            self.calls += 1
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.result = self.learn()
            torch.cuda.current_stream().wait_stream(side)
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.result = self.learn()
            self.graph = graph
            graph.replay()
        return self.result


def save(folder, c, p, tokenizer):
    """Returns the bytes that a repository would keep."""
    folder.mkdir(parents=True, exist_ok=True)
    out = {}
    for name, w in p.items():
        w = w.detach().cpu()
        if narrow(name, w.shape):
            codes, scale, whole = fp4(w)
            out |= {name: codes[:, ::2] | codes[:, 1::2] << 4, name + "_scale": scale, name + "_scale_2": whole.reshape(())}
        elif "embed" in name:
            out[name] = w.to(torch.float8_e4m3fn).float().to(torch.bfloat16)  # few bits of it are not zero
        else:
            out[name] = w.to(torch.bfloat16)
    (folder / "config.json").write_text(json.dumps(c | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}}, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id(END)}))
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "model.safetensors")
    return pack(folder)


def checked(folder, c, p, rows):
    """The largest distance of the engine's logits of a row from those of training, by their norm. Both have the matrices in bf16, as f32 plans of NVFP4 do."""
    import numpy as np

    from vivace import _core

    here = {n: w.detach().cpu() for n, w in p.items()}  # as save() has them: another device may divide otherwise, and choose other codes
    kept = {n: (on_grid(w) if narrow(n, w.shape) else w.to(torch.float8_e4m3fn) if "embed" in n else w).to(torch.bfloat16).float() for n, w in here.items()}
    ids = rows[0, :64].cpu()
    with torch.no_grad():
        model = Hybrid(c, kept)
        want = model.logits(model.hidden(ids[None]))[0].numpy()
    core = _core.load_text_model(str(folder), device="cpu", precision="f32", kv_dtype="f32", threads=2, context=256, max_batch=64, prefill_chunk=64)
    core.start(0)
    core.step([(int(t), i, 0, True) for i, t in enumerate(ids)])
    raw, n, vocab = core.logits()
    got = np.frombuffer(raw, np.float32).reshape(n, vocab)
    return float((np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max())


def main() -> int:
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--text", type=Path, nargs="+", required=True)
    a.add_argument("--out", type=Path, required=True)
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a.add_argument("--small", action="store_true", help="a model of 0.2 M weights and short sequences")
    a.add_argument("--steps", type=int, default=6000)
    a.add_argument("--minutes", type=float, default=7.0, help="of training; the rate falls to zero with whichever ends first")
    a.add_argument("--batch", type=int, default=96)
    a.add_argument("--no-graph", action="store_true", help="launch every step's kernels anew")
    a.add_argument("--rate", type=float, default=2e-3)
    args = a.parse_args()
    torch.manual_seed(0)
    text = [line for f in args.text for line in f.read_text(errors="strict").splitlines() if line.strip()]
    c, T = (config(64, 4, 96, 512, 2, 1, 32, 2, 4, 16), 48) if args.small else (config(), 256)
    r = random.Random(1)
    tokenizer = tokenizer_of(text, ["".join(drawn(r, text[:200])) for _ in range(2000)], c["vocab_size"])
    c["vocab_size"] = -(-tokenizer.get_vocab_size() // 16) * 16
    B = 4 if args.small else args.batch
    data, p = Data(text, tokenizer, T, args.device), parameters(c, args.device)
    print(f"{sum(w.numel() for w in p.values()):,} weights, {len(data.ids):,} tokens of text, vocabulary {c['vocab_size']}", file=sys.stderr)
    matrices, vectors = [w for w in p.values() if w.ndim == 2], [w for w in p.values() if w.ndim != 2]
    cuda = args.device.startswith("cuda")
    lr = torch.tensor(args.rate, device=args.device)
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.95), fused=cuda, capturable=cuda)
    rows = data.draw(B)

    def learn(rounded):
        opt.zero_grad(set_to_none=True)
        with torch.autocast(args.device.split(":")[0], torch.bfloat16, enabled=cuda, cache_enabled=False):
            (own, drafts), _, _ = losses(Hybrid(c, p, rounded), rows)
        (own + MTP * drafts).backward()
        torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        opt.step()
        return own.detach(), drafts.detach()

    steps = {rounded: Step(lambda rounded=rounded: learn(rounded), cuda and not args.no_graph) for rounded in (False, True)}
    begin, done, step = time.monotonic(), 0.0, 0
    while done < 1:
        rounded = done >= ROUNDED
        rows.copy_(data.draw(B))
        lr.fill_(args.rate * min(1, (step + 1) / 100) * max(0.02, 0.5 * (1 + math.cos(math.pi * done))))
        own, drafts = steps[rounded]()
        step += 1
        done = max(step / args.steps, (time.monotonic() - begin) / 60 / args.minutes)
        if step % 100 == 0 or done >= 1:
            print(f"step {step}: {own.item():.3f}, drafts {drafts.item():.3f}, {time.monotonic() - begin:.0f} s", file=sys.stderr)
    size = save(args.out, c, p, tokenizer)
    facts = measured(Hybrid(c, p, rounded=True), data, tokenizer)
    print(json.dumps({"steps": step, "seconds": round(time.monotonic() - begin), **facts, "engine_off": checked(args.out, c, p, data.draw(1, 1.0)), "packed_bytes": size}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
