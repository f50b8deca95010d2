"""Rotary frequencies and rotation of the reference, in float64 until the last cast.

Scaling kinds: none ("default"), "linear", "llama3", "yarn", with the parameter names of the hub's
config.json; GGUF files of Llama 3 carry ready divisors in the tensor `rope_freqs.weight` instead.
"""
from __future__ import annotations

import math

import numpy as np


def frequencies(base: float, dim: int, scaling: dict | None, divisors: np.ndarray | None = None):
    """(angle per position [dim/2], multiplier of cos and sin)."""
    freq = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if divisors is not None:
        freq = freq / divisors.astype(np.float64)
    kind = "default" if not scaling else scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return freq, 1.0
    if kind == "linear":
        return freq / scaling["factor"], 1.0
    if kind == "llama3":
        return _llama3(freq, scaling), 1.0
    if kind == "yarn":
        return _yarn(freq, base, dim, scaling)
    raise ValueError(f"rope scaling {kind!r} is not one of default, linear, llama3, yarn")


def _llama3(freq, s):
    """Wavelengths above orig/low are stretched by `factor`, below orig/high kept, between blended."""
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    turns = s["original_max_position_embeddings"] * freq / (2 * math.pi)  # rotations in the old context
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - keep) * freq / s["factor"] + keep * freq


def _yarn(freq, base, dim, s):
    """Blend of kept and stretched frequencies by index; cos and sin grow with log(factor)."""
    old, factor = s["original_max_position_embeddings"], s["factor"]

    def index_of(turns):  # the (fractional) pair index that makes `turns` rotations in the old context
        return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(index_of(s.get("beta_fast", 32.0))), 0)
    high = min(math.ceil(index_of(s.get("beta_slow", 1.0))), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    mult = s.get("attention_factor")
    if mult is None:
        mult = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return ramp * freq / factor + (1 - ramp) * freq, mult


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [T, heads, D]; cos, sin [T, dim/2].  Pairs are (2i, 2i+1) or (i, i + dim/2); dims past `dim` pass."""
    half = cos.shape[1]
    dim = 2 * half
    first = slice(0, dim, 2) if interleaved else slice(0, half)
    second = slice(1, dim, 2) if interleaved else slice(half, dim)
    a, b = x[..., first], x[..., second]
    cos, sin = cos[:, None, :], sin[:, None, :]
    out = x.copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = b * cos + a * sin
    return out
