"""pi0.5, and pi0-FAST up to its first code, in float64 NumPy, from the papers and the golden data alone; no code of the engine.

`Rounded` rounds every value between ops to bf16 and, with eight=True, what enters products to e4m3 with a scale a row, as
the engine's plans say: the error that such a plan must make, to which the engine's own is held.
"""
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


class Rounded(Exact):
    def __init__(self, eight=False):
        self.eight = eight

    def value(self, x):
        return np.asarray(x, np.float32).astype(bfloat16).astype(np.float64)

    def _codes(self, x):
        x = np.asarray(x, np.float32)
        scale = np.abs(x).max(-1, keepdims=True) / np.float32(448)
        scale[scale == 0] = 1
        return (x / scale).astype(float8_e4m3fn).astype(np.float64) * scale.astype(np.float64)

    def enters(self, x):
        return self._codes(x) if self.eight else x

    def weight(self, w):
        return self._codes(self.value(w)) if self.eight else self.value(w)


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
    """weights: name -> array, without the leading "model."; heads: of vision, of text; head_dim: of text."""

    def __init__(self, weights, heads=(2, 8), head_dim=16, arithmetic=None):
        self.w = {k: v.astype(np.float64) for k, v in weights.items()}
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
        """u8 [V, 224, 224, 3] -> [V * 256, H] in the language model's width."""
        a, at = self.a, self.paligemma + "vision_tower.vision_model."
        x = (pictures.astype(np.float64) / 255 * 2 - 1).reshape(-1, 16, 14, 16, 14, 3).transpose(0, 1, 3, 5, 2, 4).reshape(-1, 588)
        n = len(pictures)
        h = self.product(a.value(x), at + "embeddings.patch_embedding", True, plus=np.tile(a.value(self.w[at + "embeddings.position_embedding.weight"]), (n, 1)))
        layers = 1 + max(int(k.split("encoder.layers.")[1].split(".")[0]) for k in self.w if "encoder.layers." in k)

        def norm(x, name):
            y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
            return a.value(y * self.w[name + ".weight"] + self.w[name + ".bias"])

        for i in range(layers):
            p = f"{at}encoder.layers.{i}."
            y = norm(h, p + "layer_norm1")
            q, k, v = (self.product(y, f"{p}self_attn.{t}_proj", True).reshape(n, 256, self.heads[0], -1) for t in "qkv")
            mixed = a.value(np.concatenate([attend(*each) for each in zip(q, k, v)])).reshape(n * 256, -1)
            h = self.product(mixed, p + "self_attn.out_proj", True, plus=h)
            y = norm(h, p + "layer_norm2")
            h = self.product(self.product(y, p + "mlp.fc1", True, gelu), p + "mlp.fc2", True, plus=h)
        return self.product(norm(h, at + "post_layernorm"), self.paligemma + "multi_modal_projector.linear", True)

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

    def velocity(self, x, t, cache):
        a = self.a
        half = self.w["time_mlp_in.weight"].shape[0] // 2
        angle = 2 * np.pi * t / (4e-3 * (4.0 / 4e-3) ** (np.arange(half) / (half - 1)))
        time = np.concatenate([np.sin(angle), np.cos(angle)])
        condition = self.exact(self.exact(time, "time_mlp_in", silu), "time_mlp_out", silu)
        h = a.value(self.exact(x, "action_in_proj"))
        pos = len(cache[0][0]) + np.arange(len(x))

        def ada(h, name):
            scale, shift, gate = np.split(a.value(self.exact(condition, name + ".dense")), 3)
            return self._rms(h) * (1 + scale) + shift, gate

        for i, (k0, v0) in enumerate(cache):
            p = f"{self.expert}layers.{i}."
            y, gate = ada(h, p + "input_layernorm")
            q, k, v = self._qkv(a.value(y), p, pos)
            mixed = a.value(attend(q, np.concatenate([k0, k]), np.concatenate([v0, v]))).reshape(len(x), -1)
            h = h + gate * self.product(mixed, p + "self_attn.o_proj")
            y, gate = ada(h, p + "post_attention_layernorm")
            h = a.value(a.value(h) + gate * self._mlp(a.value(y), p))
        return a.value(ada(h, self.expert + "norm")[0]) @ a.value(self.w["action_out_proj.weight"]).T + self.w["action_out_proj.bias"]

    def actions(self, pictures, tokens, noise, steps):
        """([velocity of each step], actions)"""
        (cache, _), x, seen = self.prefix(pictures, tokens), noise.astype(np.float64), []
        for s in range(steps):
            seen.append(self.velocity(x, 1 - s / steps, cache))
            x = x - seen[-1] / steps
        return seen, x
