"""Whisper in float64 NumPy, from config.json and hub weights alone (arXiv:2212.04356): samples to log-mel frames, encoder, decoder; no cache, and of the engine
no more than Slaney's filters, which tests/test_audio.py holds to Whisper's own. `arithmetic` as decoder_numpy has it; `windows`: of what a window is made of,
where that is another.
"""
import copy
import math

import numpy as np

from tests.reference.policy_numpy import Exact, attend
from vivace import _core

HOP, WINDOW = 160, 400
erf = np.vectorize(math.erf, otypes=[float])


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def peak_of(x, bins):
    """The largest logarithm of all frames that begin in the sound."""
    return logs(x, bins, 0, len(x) // HOP + 1).max()


def logs(x, bins, first, frames):
    """[frames, bins] from frame `first` on: silence behind the sound, its mirror before it."""
    whole = np.concatenate([np.pad(x.astype(np.float64), (WINDOW // 2, 0), mode="reflect"), np.zeros((first + frames) * HOP + WINDOW)])
    cut = np.lib.stride_tricks.sliding_window_view(whole, WINDOW)[HOP * first:HOP * (first + frames):HOP]
    power = np.abs(np.fft.rfft(cut * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)))) ** 2
    return np.log10(np.maximum(power @ np.array(_core.mel_filters(bins)).reshape(bins, -1).T, 1e-10))


class Whisper:
    """config: of config.json; weights: hub name -> array."""

    def __init__(self, config, weights, arithmetic=None, windows=None):
        self.c, self.a = config, arithmetic or Exact()
        self.windows = windows or self.a
        self.w = {k.removeprefix("model."): v.astype(np.float64) for k, v in weights.items()}
        self.frames = 2 * config["max_source_positions"]

    def product(self, x, name, act=None, plus=0.0, bias=True, a=None):
        a = a or self.a
        w = self.w[name + ".weight"]
        y = a.enters(x) @ a.weight(w.reshape(len(w), -1)).T + (a.value(self.w[name + ".bias"]) if bias else 0)
        return self.a.value((act(y) if act else y) + plus)

    def norm(self, x, name):
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return self.a.value(y * self.w[name + ".weight"] + self.w[name + ".bias"])

    def convolution(self, x, stride, name, plus=0.0):
        x = np.pad(x, ((1, 1), (0, 0)))
        rows = np.lib.stride_tricks.sliding_window_view(x, 3, 0)[::stride]  # [rows, channels, 3]
        return self.product(rows.reshape(len(rows), -1), name, gelu, plus, a=self.a.in_expert())

    def attention(self, x, of, at, heads, causal=False):
        q, k, v = (self.product(y, f"{at}.{t}_proj", bias=t != "k", a=self.a if y is x else self.windows).reshape(len(y), heads, -1) for t, y in zip("qkv", (x, of, of)))
        if not causal:
            return self.a.value(attend(q, k, v)).reshape(len(x), -1)
        return self.a.value(np.concatenate([attend(q[i:i + 1], k[:i + 1], v[:i + 1]) for i in range(len(q))])).reshape(len(x), -1)

    def mlp(self, h, at):
        return self.product(self.product(self.norm(h, at + "final_layer_norm"), at + "fc1", gelu), at + "fc2", plus=h)

    def encoded(self, x, first, frames, peak):
        """[places, H] of the window that begins at frame `first`, of which `frames` are heard."""
        own = copy.copy(self)
        own.a = self.windows
        return own._encoded(x, first, frames, peak)

    def _encoded(self, x, first, frames, peak):
        mel = (np.maximum(logs(x, self.c["num_mel_bins"], first, self.frames), peak - 8) + 4) / 4
        mel[frames:] = 0
        h = self.convolution(self.a.value(mel), 1, "encoder.conv1")
        h = self.convolution(h, 2, "encoder.conv2", plus=self.a.value(self.w["encoder.embed_positions.weight"]))
        for i in range(self.c["encoder_layers"]):
            at = f"encoder.layers.{i}."
            y = self.norm(h, at + "self_attn_layer_norm")
            h = self.product(self.attention(y, y, at + "self_attn", self.c["encoder_attention_heads"]), at + "self_attn.out_proj", plus=h)
            h = self.mlp(h, at)
        return self.norm(h, "encoder.layer_norm")

    def logits(self, heard, ids):
        """[ids, V] of a text from its beginning; `heard`: what encoded() gave."""
        a, heads = self.a, self.c["decoder_attention_heads"]
        h = a.value(a.value(self.w["decoder.embed_tokens.weight"])[ids] + a.value(self.w["decoder.embed_positions.weight"])[:len(ids)])
        for i in range(self.c["decoder_layers"]):
            at = f"decoder.layers.{i}."
            y = self.norm(h, at + "self_attn_layer_norm")
            h = self.product(self.attention(y, y, at + "self_attn", heads, causal=True), at + "self_attn.out_proj", plus=h)
            y = self.norm(h, at + "encoder_attn_layer_norm")
            h = self.product(self.attention(y, heard, at + "encoder_attn", heads), at + "encoder_attn.out_proj", plus=h)
            h = self.mlp(h, at)
        return a.enters(self.norm(h, "decoder.layer_norm")) @ a.weight(self.w["decoder.embed_tokens.weight"]).T
