"""Weights of the reference: plain matrices and GGUF block formats, and the two products with them.

A weight is [N, K], row-major; a product maps activations [T, K] to [T, N].

    act="f32"  y = x @ dequantized(w).T, every multiply and add in float64.
    act="q8"   x is cut along K in blocks of 32 and rounded to int8 (`quantize_rows`); each block's
               product is an exact integer; block results are scaled and added over K in float64.
               Weights that are not block-quantized use the "f32" product in this mode too.

Written from the format's definition and not from the `gguf` package's dequantizer, so that the two
can be compared (test_reference.py does).
"""
from __future__ import annotations

import numpy as np

BLOCK = 32


def quantize_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [T, K] -> (codes [T, K/32, 32] float32 holding integers in [-127, 127], d [T, K/32] float32).

    All arithmetic in float32: d = amax / 127, q = rint(x * (127 / amax)), ties to even, 0 where
    amax is 0.  HAZARD: amax below 127 / FLT_MAX (3.8e-37) makes 127 / amax overflow; that is refused.
    """
    rows, k = x.shape
    if k % BLOCK:
        raise ValueError(f"act='q8' needs K to be a multiple of {BLOCK}, got {k}")
    blocks = x.astype(np.float32).reshape(rows, k // BLOCK, BLOCK)
    amax = np.abs(blocks).max(axis=2)
    live = amax > 0
    if np.any(amax[live] < 3.8e-37) or not np.all(np.isfinite(amax)):
        raise ValueError("act='q8' met a block whose largest magnitude is tiny or not finite")
    d = amax / np.float32(127)
    inv = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=live)
    codes = np.rint(blocks * inv[:, :, None])
    assert codes.dtype == np.float32 and np.abs(codes).max(initial=0) <= 127
    return codes, d


class Dense:
    """A weight without blocks (f32, f16, bf16): both modes use the plain product."""

    def __init__(self, w: np.ndarray):
        self.w = w.astype(np.float64)
        self.shape = w.shape

    def rows(self, ids) -> np.ndarray:
        return self.w[ids]

    def product(self, x: np.ndarray, act: str) -> np.ndarray:
        return x.astype(np.float64) @ self.w.T


class Blocks:
    """A block-quantized weight: value[n, k] = d[n, k/32] * (code[n, k] - zero) + m[n, k/32]."""

    def __init__(self, codes: np.ndarray, d: np.ndarray, m: np.ndarray | None, zero: int):
        # codes [N, B, 32] integers; d, m [N, B] float32 widened from f16; zero is 8 for Q4_0, else 0.
        self.n, self.nblocks, _ = codes.shape
        self.shape = (self.n, self.nblocks * BLOCK)
        self.d = np.ascontiguousarray(d.T, np.float64)    # [B, N], as the products read them
        self.m = None if m is None else np.ascontiguousarray(m.T, np.float64)
        self.zero = zero
        self._codes = codes
        self._by_block: np.ndarray | None = None  # [B, N, 32] float32, for "q8"
        self._dense: np.ndarray | None = None     # [N, K] float64, for "f32"

    def rows(self, ids) -> np.ndarray:
        """Dequantized rows in float64, [len(ids), K]."""
        v = (self._codes[ids].astype(np.float64) - self.zero) * self.d.T[ids][:, :, None]
        if self.m is not None:
            v += self.m.T[ids][:, :, None]
        return v.reshape(len(v), -1)

    def product(self, x: np.ndarray, act: str) -> np.ndarray:
        if act == "f32":
            if self._dense is None:
                self._dense = self.rows(np.arange(self.n))
            return x.astype(np.float64) @ self._dense.T
        if act != "q8":
            raise ValueError(f"act must be 'f32' or 'q8', got {act!r}")
        if self._by_block is None:
            self._by_block = np.ascontiguousarray(self._codes.transpose(1, 0, 2).astype(np.float32))
        codes, dx = quantize_rows(x)                      # [T, B, 32], [T, B]
        # Integers below 2^24 (32 * 127 * 128 at most), so float32 products and sums are exact.
        total = codes.sum(axis=2, dtype=np.float64)       # [T, B], sum of the activation's codes
        dx = dx.astype(np.float64)
        y = np.empty((len(x), self.n))
        for t in range(len(x)):
            if t % 8 == 0:  # eight rows at a time: enough to reuse the weights, little enough to hold
                exact = self._by_block @ codes[t:t + 8].transpose(1, 2, 0)  # [B, N, 8]
            dot = exact[..., t % 8].astype(np.float64)    # [B, N]
            if self.zero:
                dot -= self.zero * total[t][:, None]
            dot *= self.d * dx[t][:, None]
            if self.m is not None:
                dot += self.m * (dx[t] * total[t])[:, None]
            y[t] = dot.sum(axis=0)                        # over K
        return y


def _f16(raw: np.ndarray) -> np.ndarray:
    """Two little-endian bytes on the last axis -> float32."""
    return raw.copy().view("<f2")[..., 0].astype(np.float32)


def _nibbles(raw: np.ndarray) -> np.ndarray:
    """[.., 16] bytes -> [.., 32] codes: the low nibbles are elements 0..15, the high ones 16..31."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def decode(type_name: str, data: np.ndarray, n: int, k: int) -> Dense | Blocks:
    """Raw bytes of one GGUF tensor with N rows of K values -> a weight."""
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    if type_name in ("F32", "F16"):
        return Dense(raw.view("<f4" if type_name == "F32" else "<f2").reshape(n, k))
    if type_name == "BF16":
        return Dense(bf16_to_f32(raw.view("<u2")).reshape(n, k))
    sizes = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
    if type_name not in sizes:
        raise ValueError(f"tensor type {type_name} is not one of F32, F16, BF16, {', '.join(sizes)}")
    raw = raw.reshape(n, k // BLOCK, sizes[type_name])
    d = _f16(raw[..., 0:2])
    if type_name == "Q4_0":
        return Blocks(_nibbles(raw[..., 2:]), d, None, zero=8)
    if type_name == "Q4_1":
        return Blocks(_nibbles(raw[..., 4:]), d, _f16(raw[..., 2:4]), zero=0)
    return Blocks(raw[..., 2:].view(np.int8), d, None, zero=0)


def bf16_to_f32(u16: np.ndarray) -> np.ndarray:
    return (u16.astype(np.uint32) << 16).view(np.float32)
