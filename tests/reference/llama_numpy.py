"""The project's oracle: the Llama-family decoder (SmolLM2, Llama 3.x, Qwen2, Qwen3) in plain NumPy.

Independent of the engine and of every other runtime; it reads the same checkpoint files.  Products
with weights follow blocks.py (`act`), everything else runs in `dtype`:

    x      = embed[token]                                                          [T, H]
    a      = rms(x) * attn_norm;   q, k, v = a Wq, a Wk, a Wv (+ bias)
    q, k   = rope(head_rms(q)), rope(head_rms(k))         head_rms: Qwen3 only
    x     += softmax(q k' / sqrt(D), causal) v Wo         query head h reads kv head h * Hkv / Hq
    m      = rms(x) * ffn_norm;    x += (silu(m Wgate) * (m Wup)) Wdown
    logits = (rms(x) * output_norm) Whead                 Whead = embed when there is no output.weight

    python -m tests.reference.llama_numpy MODEL --prompt-ids 1,2,3 --tokens 64 --act q8 --json out.json
"""
from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one summation order; before NumPy loads

import argparse
import json

import numpy as np

from . import checkpoints, rope


class Cache:
    """Keys (after rope) and values of one sequence: per layer [positions so far, Hkv, D]."""

    def __init__(self, config: checkpoints.Config, dtype):
        empty = np.zeros((0, config.kv_heads, config.head_dim), dtype)
        self.keys, self.values = [empty] * config.layers, [empty] * config.layers


class Llama:
    """The model and one sequence: `forward` appends to it, `reset` starts over."""

    def __init__(self, path, act: str = "f32", dtype=np.float32, kv_dtype=None):
        self.config, self.weights = checkpoints.load(path)
        self.configure(act, dtype, kv_dtype)
        c = self.config
        self.freq, self.rope_mult = rope.frequencies(
            c.rope_base, c.rope_dim, c.rope_scaling, self.weights.get("rope_freqs.weight"))

    def configure(self, act: str, dtype, kv_dtype=None) -> None:
        """Chooses how to compute and starts over; `kv_dtype` is storage only, values are widened when read."""
        if act not in ("f32", "q8"):
            raise ValueError(f"act must be 'f32' or 'q8', got {act!r}")
        self.act, self.dtype, self.kv_dtype = act, np.dtype(dtype), np.dtype(kv_dtype or dtype)
        self.reset()

    def reset(self) -> None:
        self.cache = self.new_cache()

    def new_cache(self) -> Cache:
        return Cache(self.config, self.kv_dtype)

    def forward(self, ids, trace: dict | None = None, all_logits: bool = False) -> np.ndarray:
        """Logits [V] of the last token, or [T, V]; `trace` receives every intermediate by name."""
        logits = self.forward_batch([self.cache], [ids], trace, all_logits)
        return logits if all_logits else logits[0]

    def forward_batch(self, caches, chunks, trace: dict | None = None, all_logits: bool = False) -> np.ndarray:
        """Appends chunks[s] to sequence caches[s]; rows are stacked in that order.

        Logits of every chunk's last token, [sequences, V], or of all rows.
        """
        c, note = self.config, (lambda name, x: x) if trace is None else (lambda name, x: trace.setdefault(name, x))
        chunks = [np.asarray(ids, np.int64) for ids in chunks]
        if any(not len(ids) or ids.min() < 0 or ids.max() >= c.vocab for ids in chunks):
            raise ValueError(f"token ids must be in [0, {c.vocab}) and at least one")
        ends = np.cumsum([len(ids) for ids in chunks])
        positions = np.concatenate([len(cache.keys[0]) + np.arange(len(ids)) for cache, ids in zip(caches, chunks)])
        angle = positions[:, None] * self.freq                    # [rows, rope_dim / 2]
        cos = (np.cos(angle) * self.rope_mult).astype(self.dtype)
        sin = (np.sin(angle) * self.rope_mult).astype(self.dtype)

        x = note("embed", self.weights["token_embd.weight"].rows(np.concatenate(chunks)).astype(self.dtype))
        for i in range(c.layers):
            p = f"blk.{i}."
            a = note(p + "attn_norm", self._rms(x, p + "attn_norm"))
            attn = note(p + "attn", self._attention(i, a, cos, sin, caches, ends, note))
            x = note(p + "attn_residual", x + note(p + "attn_output", self._linear(p + "attn_output", attn)))
            m = note(p + "ffn_norm", self._rms(x, p + "ffn_norm"))
            gate = note(p + "ffn_gate", self._linear(p + "ffn_gate", m))
            up = note(p + "ffn_up", self._linear(p + "ffn_up", m))
            act = note(p + "ffn_act", gate / (1 + np.exp(-gate)) * up)
            x = note(p + "out", x + note(p + "ffn_down", self._linear(p + "ffn_down", act)))
        if not all_logits:
            x = x[ends - 1]
        x = note("output_norm", self._rms(x, "output_norm"))
        head = "output" if "output.weight" in self.weights else "token_embd"
        return note("logits", self._linear(head, x))

    def greedy(self, prompt, tokens: int) -> tuple[list[int], list[float]]:
        """`tokens` greedy ids after `prompt` (never stopping early) and each step's top-1 minus top-2 logit."""
        return self.greedy_batch([prompt], tokens)[0]

    def greedy_batch(self, prompts, tokens: int) -> list[tuple[list[int], list[float]]]:
        """The same for several prompts, which share each step's pass over the weights."""
        caches, out = [self.new_cache() for _ in prompts], [([], []) for _ in prompts]
        logits = np.concatenate([self.forward_batch([cache], [p]) for cache, p in zip(caches, prompts)])
        for step in range(tokens):
            for row, (ids, gaps) in zip(logits, out):
                second, first = np.partition(row, -2)[-2:]
                ids.append(int(np.argmax(row)))
                gaps.append(float(first) - float(second))
            if step + 1 < tokens:
                logits = self.forward_batch(caches, [[ids[-1]] for ids, _ in out])
        return out

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        y = self.weights[name + ".weight"].product(x, self.act)
        bias = self.weights.get(name + ".bias")
        return (y if bias is None else y + bias).astype(self.dtype)

    def _rms(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        weight = self.weights[name + ".weight"].astype(self.dtype)
        return x / np.sqrt(mean + self.dtype.type(self.config.eps)) * weight

    def _attention(self, i: int, a: np.ndarray, cos, sin, caches, ends, note) -> np.ndarray:
        c, p, t = self.config, f"blk.{i}.", len(a)
        q = note(p + "q", self._linear(p + "attn_q", a)).reshape(t, c.heads, c.head_dim)
        k = note(p + "k", self._linear(p + "attn_k", a)).reshape(t, c.kv_heads, c.head_dim)
        v = note(p + "v", self._linear(p + "attn_v", a)).reshape(t, c.kv_heads, c.head_dim)
        if c.arch == "qwen3":
            q, k = self._rms(q, p + "attn_q_norm"), self._rms(k, p + "attn_k_norm")
        q = note(p + "q_rope", rope.rotate(q, cos, sin, c.rope_interleaved))
        k = note(p + "k_rope", rope.rotate(k, cos, sin, c.rope_interleaved))
        out, begin = np.empty_like(q), 0
        for cache, end in zip(caches, ends):
            rows = slice(begin, end)
            cache.keys[i] = np.concatenate([cache.keys[i], k[rows].astype(self.kv_dtype)])
            cache.values[i] = np.concatenate([cache.values[i], v[rows].astype(self.kv_dtype)])
            out[rows] = self._attend(q[rows], cache.keys[i].astype(self.dtype), cache.values[i].astype(self.dtype))
            begin = end
        return out.reshape(t, c.heads * c.head_dim)

    def _attend(self, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """q [T, Hq, D] are the last T of the positions that keys and values [total, Hkv, D] hold."""
        t, total, group = len(q), len(keys), self.config.heads // self.config.kv_heads
        future = np.arange(total)[None, :] > np.arange(total - t, total)[:, None]  # [T, total]
        out = np.empty_like(q)
        for h in range(self.config.heads):
            score = q[:, h] @ keys[:, h // group].T / self.dtype.type(np.sqrt(self.config.head_dim))
            score[future] = -np.inf
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            out[:, h] = (weight / weight.sum(axis=1, keepdims=True)) @ values[:, h // group]
        return out


def main() -> None:
    ap = argparse.ArgumentParser(description="greedy tokens of the NumPy reference")
    ap.add_argument("model", help="a .gguf file, or a hub folder with config.json and safetensors")
    ap.add_argument("--prompt-ids", required=True, help="comma-separated token ids")
    ap.add_argument("--tokens", type=int, default=64)
    ap.add_argument("--act", choices=("f32", "q8"), default="f32")
    ap.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    ap.add_argument("--json", help="also write {tokens, gaps} to this file")
    args = ap.parse_args()
    model = Llama(args.model, act=args.act, dtype=args.dtype)
    tokens, gaps = model.greedy([int(s) for s in args.prompt_ids.split(",")], args.tokens)
    print(*tokens, sep=",")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"tokens": tokens, "gaps": gaps}, f)


if __name__ == "__main__":
    main()
