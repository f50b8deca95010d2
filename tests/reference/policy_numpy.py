"""pi0.5, pi0 and pi0-FAST in float64 NumPy, from the papers and the golden data alone; no code of the engine.

`Rounded` rounds every value between ops to bf16 and, with eight=True, what enters products of vision and language model (with expert=True
of the action expert too) to e4m3 with a scale a row, as the engine's plans say: the error that such a plan must make, to which the engine's own is held.
"""
import copy

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn


class Exact:
    """No rounding anywhere."""

    def value(self, x):
        return x

    def enters(self, x):
        return x

    def weight(self, w):
        return w

    def product(self, x, w):
        """x [T, K] by w [N, K]."""
        return x @ w.T

    def in_expert(self):
        """Of the action expert's products."""
        return self

    def weights_alone(self):
        """Of products whose rows stay as they are: a mixture's experts."""
        return self


class Rounded(Exact):
    """rng: roundings of the same size to grids drawn by it, so that each draw errs by its own. entering: with eight=True, whether
    rows become e4m3 too."""

    def __init__(self, eight=False, rng=None, entering=True, expert=False):
        self.eight, self.rng, self.entering, self.expert = eight, rng, entering, expert

    def by(self, rng):
        return type(self)(self.eight, rng, self.entering, self.expert)

    def _grid(self):
        return np.float32(self.rng.uniform(1, 2) if self.rng else 1)

    def value(self, x):
        grid = self._grid()
        return (np.asarray(x, np.float32) * grid).astype(bfloat16).astype(np.float64) / np.float64(grid)

    def _codes(self, x):
        x = np.asarray(x, np.float32)
        scale = np.abs(x).max(-1, keepdims=True) / np.float32(448) * self._grid()
        scale[scale == 0] = 1
        return (x / scale).astype(float8_e4m3fn).astype(np.float64) * scale.astype(np.float64)

    def enters(self, x):
        return self._codes(x) if self.eight and self.entering else x

    def weight(self, w):
        return self._codes(self.value(w)) if self.eight else self.value(w)

    def in_expert(self):
        return self if self.expert else Rounded(rng=self.rng)

    def weights_alone(self):
        return Rounded(self.eight, self.rng, entering=False)


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def silu(x):
    return x / (1 + np.exp(-x))


def rope(x, pos):
    """[T, heads, D] by halves."""
    half = x.shape[-1] // 2
    angle = pos[:, None] * 10000.0 ** (-np.arange(half) / half)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    return np.concatenate([x[..., :half] * c - x[..., half:] * s, x[..., half:] * c + x[..., :half] * s], -1)


def attend(q, k, v):
    """[T, Hq, D] over [L, Hkv, D]; every key is seen."""
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = np.einsum("thd,lhd->htl", q, k) / np.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("htl,lhd->thd", p / p.sum(-1, keepdims=True), v)


class Policy:
    """weights: name -> array; heads: of vision, of text; head_dim: of text."""

    def __init__(self, weights, heads=(2, 8), head_dim=16, arithmetic=None):
        self.w = {k.removeprefix("model."): v.astype(np.float64) for k, v in weights.items()}
        embed = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
        if embed in self.w:
            self.w.setdefault("paligemma_with_expert.paligemma.lm_head.weight", self.w[embed])
        self.a = arithmetic or Exact()
        self.heads, self.head_dim = heads, head_dim
        self.paligemma, self.expert = "paligemma_with_expert.paligemma.model.", "paligemma_with_expert.gemma_expert.model."

    def product(self, x, name, bias=False, act=None, plus=0.0, entering=True):
        w = self.w[name + ".weight"].reshape(len(self.w[name + ".weight"]), -1)
        y = (self.a.enters(x) if entering else x) @ self.a.weight(w).T
        y = y + self.a.value(self.w[name + ".bias"]) if bias else y
        return self.a.value((act(y) if act else y) + plus)

    def exact(self, x, name, act=None):
        y = x @ self.w[name + ".weight"].T + self.w[name + ".bias"]
        return act(y) if act else y

    def vision(self, pictures):
        """u8 [V, side, side, 3] -> [V * tokens, H] in the language model's width."""
        return self.product(self.seen(pictures), self.paligemma + "multi_modal_projector.linear", True)

    def seen(self, pictures):
        """The vision tower's rows, a patch each."""
        a, at = self.a, self.paligemma + "vision_tower."
        at += "vision_model." if at + "vision_model.post_layernorm.weight" in self.w else ""
        p = self.w[at + "embeddings.patch_embedding.weight"].shape[-1]
        n, k = len(pictures), pictures.shape[1] // p
        x = (pictures.astype(np.float64) / 255 * 2 - 1).reshape(n, k, p, k, p, 3).transpose(0, 1, 3, 5, 2, 4).reshape(-1, 3 * p * p)
        h = self.product(a.value(x), at + "embeddings.patch_embedding", True, plus=np.tile(a.value(self.w[at + "embeddings.position_embedding.weight"]), (n, 1)))
        layers = 1 + max(int(k.split("encoder.layers.")[1].split(".")[0]) for k in self.w if "encoder.layers." in k)

        def norm(x, name):
            y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
            return a.value(y * self.w[name + ".weight"] + self.w[name + ".bias"])

        for i in range(layers):
            p = f"{at}encoder.layers.{i}."
            y = norm(h, p + "layer_norm1")
            qkv = [self.product(y, f"{p}self_attn.{t}_proj", True).reshape(n, k * k, self.heads[0], -1) for t in "qkv"]
            mixed = a.value(np.concatenate([attend(*each) for each in zip(*qkv)])).reshape(n * k * k, -1)
            h = self.product(mixed, p + "self_attn.out_proj", True, plus=h)
            y = norm(h, p + "layer_norm2")
            h = self.product(self.product(y, p + "mlp.fc1", True, gelu), p + "mlp.fc2", True, plus=h)
        return norm(h, at + "post_layernorm")

    def _rms(self, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def _qkv(self, x, layer, pos):
        heads = [self.product(x, f"{layer}self_attn.{t}_proj").reshape(len(x), -1, self.head_dim) for t in "qkv"]
        return [self.a.value(rope(t, pos)) for t in heads[:2]] + [heads[2]]

    def _mlp(self, x, layer, plus=0.0):
        gated = gelu(self.a.enters(x) @ self.a.weight(self.w[layer + "mlp.gate_proj.weight"]).T) * (self.a.enters(x) @ self.a.weight(self.w[layer + "mlp.up_proj.weight"]).T)
        return self.product(self.a.value(gated), layer + "mlp.down_proj", plus=plus)

    def prefix(self, pictures, tokens):
        """(keys and values of each layer, rows after the last)"""
        a = self.a
        embed = a.value(self.w["paligemma_with_expert.paligemma.lm_head.weight"])
        h = np.concatenate([self.vision(pictures), a.value(embed[tokens] * np.sqrt(embed.shape[1]))])
        pos, cache = np.arange(len(h)), []
        layers = 1 + max(int(k.split("language_model.layers.")[1].split(".")[0]) for k in self.w if "language_model.layers." in k)
        for i in range(layers):
            p = f"{self.paligemma}language_model.layers.{i}."
            q, k, v = self._qkv(a.value(self._rms(h) * (1 + self.w[p + "input_layernorm.weight"])), p, pos)
            cache.append((k, v))
            h = self.product(a.value(attend(q, k, v)).reshape(len(h), -1), p + "self_attn.o_proj", plus=h)
            h = self._mlp(a.value(self._rms(h) * (1 + self.w[p + "post_attention_layernorm.weight"])), p, plus=h)
        return cache, h

    def first_logits(self, pictures, tokens):
        """pi0-FAST: logits of the first code, [V]."""
        last = self._rms(self.prefix(pictures, tokens)[1][-1]) * (1 + self.w[self.paligemma + "language_model.norm.weight"])
        return self.a.enters(self.a.value(last)) @ self.a.weight(self.w["paligemma_with_expert.paligemma.lm_head.weight"]).T

    def velocity(self, x, t, cache, state=None):
        """[T, D] of actions at the times t, of one or of each; `state`: of pi0."""
        own = copy.copy(self)
        own.a = self.a.in_expert()
        return own._velocity(x, np.full(len(x), t) if np.ndim(t) == 0 else t, cache, state)

    def _suffix(self, x, time, state):
        """Rows that enter the expert."""
        a = self.a
        h = a.value(self.exact(x, "action_in_proj"))
        if "time_mlp_in.weight" in self.w:
            return h
        w, width = a.value(self.w["action_time_mlp_in.weight"]), h.shape[1]
        mixed = a.value(silu(h @ w[:, :width].T + time @ w[:, width:].T + self.w["action_time_mlp_in.bias"]))
        h = a.value(mixed @ a.value(self.w["action_time_mlp_out.weight"]).T + self.w["action_time_mlp_out.bias"])
        return np.concatenate([a.value(self.exact(np.asarray(state, np.float64)[None], "state_proj")), h])

    def _velocity(self, x, t, cache, state):
        a, adaptive = self.a, "time_mlp_in.weight" in self.w
        half = (self.w["time_mlp_in.weight"].shape[0] if adaptive else self.w["action_time_mlp_out.weight"].shape[0]) // 2
        angle = 2 * np.pi * t[:, None] / (4e-3 * (4.0 / 4e-3) ** (np.arange(half) / (half - 1)))
        time = np.concatenate([np.sin(angle), np.cos(angle)], 1)
        condition = self.exact(self.exact(time, "time_mlp_in", silu), "time_mlp_out", silu) if adaptive else None
        h = self._suffix(x, time, state)
        pos = len(cache[0][0]) + np.arange(len(h))

        def norm(h, name):
            """(normed rows, the gate of what follows)"""
            if not adaptive:
                return self._rms(h) * (1 + self.w[name + ".weight"]), 1.0
            scale, shift, gate = np.split(a.value(self.exact(condition, name + ".dense")), 3, 1)
            return self._rms(h) * (1 + scale) + shift, gate

        for i, (k0, v0) in enumerate(cache):
            p = f"{self.expert}layers.{i}."
            y, gate = norm(h, p + "input_layernorm")
            q, k, v = self._qkv(a.value(y), p, pos)
            keys, values = np.concatenate([k0, k]), np.concatenate([v0, v])
            mixed = attend(q, keys, values)
            if not adaptive:  # the state does not see the actions
                mixed[:1] = attend(q[:1], keys[:len(k0) + 1], values[:len(k0) + 1])
            h = a.value(h + gate * self.product(a.value(mixed).reshape(len(h), -1), p + "self_attn.o_proj"))
            y, gate = norm(h, p + "post_attention_layernorm")
            h = a.value(h + gate * self._mlp(a.value(y), p))
        out = a.value(norm(h, self.expert + "norm")[0])[-len(x):]
        return out @ a.value(self.w["action_out_proj.weight"]).T + self.w["action_out_proj.bias"]

    def actions(self, pictures, tokens, noise, steps, state=None, action_prefix=None):
        """([velocity of each step], actions); `action_prefix`: first actions, which are given."""
        (cache, _), x, seen = self.prefix(pictures, tokens), noise.astype(np.float64), []
        n = 0 if action_prefix is None else len(action_prefix)
        if n:
            x[:n] = action_prefix
        for s in range(steps):
            t = np.full(len(x), 1 - s / steps)
            t[:n] = 0
            seen.append(self.velocity(x, t, cache, state))
            x[n:] -= seen[-1][n:] / steps
        return seen, x

    def codes(self, pictures, tokens, count):
        """pi0-FAST: (greedy tokens, their logits), `count` of them."""
        head = "paligemma_with_expert.paligemma.lm_head.weight"
        cache, h = self.prefix(pictures, tokens)
        pos, out, seen = len(h), [], []
        last = h[-1:]
        for _ in range(count):
            row = self.a.value(self._rms(last) * (1 + self.w[self.paligemma + "language_model.norm.weight"]))
            seen.append((self.a.enters(row) @ self.a.weight(self.w[head]).T)[0])
            out.append(int(seen[-1].argmax()))
            last = self.a.value(self.a.value(self.w[head])[out[-1:]] * np.sqrt(h.shape[1]))
            for i, (k0, v0) in enumerate(cache):
                p = f"{self.paligemma}language_model.layers.{i}."
                q, k, v = self._qkv(self.a.value(self._rms(last) * (1 + self.w[p + "input_layernorm.weight"])), p, np.array([pos]))
                cache[i] = np.concatenate([k0, k]), np.concatenate([v0, v])
                last = self.product(self.a.value(attend(q, *cache[i])).reshape(1, -1), p + "self_attn.o_proj", plus=last)
                last = self._mlp(self.a.value(self._rms(last) * (1 + self.w[p + "post_attention_layernorm.weight"])), p, plus=last)
            pos += 1
        return out, seen
