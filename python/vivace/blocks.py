"""Rows of f32 -> GGUF's block formats. The simple ones are what the format's reference makes, bit for bit; the k-quants
round to the nearest scales and codes, without the reference's search for better ones."""
from __future__ import annotations

import numpy as np

# dtype -> (elements, bytes) of a block.
SIZES = {"q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210)}
# What takes the place of a format whose blocks do not divide a row: of a similar size, else f16.
_INSTEAD = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}


def fitting(dtype: str, columns: int) -> str:
    """`dtype`, or the format that is written where its blocks do not divide a row."""
    while dtype in SIZES and columns % SIZES[dtype][0]:
        dtype = _INSTEAD.get(dtype, "f16")
    return dtype


def quantize(w: np.ndarray, dtype: str) -> np.ndarray:
    """Rows of f32, K a multiple of the block -> bytes, a row a block."""
    x = np.ascontiguousarray(w, np.float32).reshape(-1, SIZES[dtype][0])
    if dtype == "q6_k":
        return _q6_k(x)
    return _with_minimum_of_two(x, 5 if dtype == "q5_k" else 4) if dtype.endswith("_k") else _simple(x, dtype)


def _inverse(d):
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _half(d):
    return d.astype("<f2").view(np.uint8)


def _rounded(d):
    """As a reader sees it: the scale that is stored."""
    return d.astype(np.float16).astype(np.float32)


def _simple(x, dtype):
    if dtype == "q8_0":
        d = np.abs(x).max(1, keepdims=True) / np.float32(127)
        y = x * _inverse(d)
        q = np.trunc(y + np.copysign(np.float32(0.5), y)).astype(np.int8)  # half away from zero
        return np.concatenate([_half(d), q.view(np.uint8)], 1)
    levels = 32 if dtype.startswith("q5") else 16
    if dtype.endswith("_0"):
        largest = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)  # with its sign, which becomes code 0
        d = largest / np.float32(-levels // 2)
        q = np.trunc(x.astype(np.float64) * _inverse(d) + (levels // 2 + 0.5)).clip(0, levels - 1).astype(np.uint8)
        head = [_half(d)]
    else:
        low = x.min(1, keepdims=True)
        d = (x.max(1, keepdims=True) - low) / np.float32(levels - 1)
        q = np.trunc((x - low).astype(np.float64) * _inverse(d) + 0.5).clip(0, levels - 1).astype(np.uint8)
        head = [_half(d), _half(low)]
    fifth = [np.packbits(q >> 4, 1, bitorder="little")] if levels == 32 else []
    return np.concatenate([*head, *fifth, q[:, :16] & 15 | (q[:, 16:] & 15) << 4], 1)


def _with_minimum_of_two(x, bits):
    """q4_k, q5_k: eight sub-blocks of 32, each with a scale and a minimum of six bits in units of two f16."""
    sub, top = x.reshape(-1, 8, 32), (1 << bits) - 1
    low = np.minimum(sub.min(2), 0)
    scale = (sub.max(2).clip(0) - low) / np.float32(top)
    d, dmin = scale.max(1, keepdims=True) / np.float32(63), -low.min(1, keepdims=True) / np.float32(63)
    s = np.rint(scale * _inverse(_rounded(d))).clip(0, 63).astype(np.uint8)
    m = np.rint(-low * _inverse(_rounded(dmin))).clip(0, 63).astype(np.uint8)
    unit = (_rounded(d) * s)[:, :, None]
    q = np.rint((sub + (_rounded(dmin) * m)[:, :, None]) * _inverse(unit)).clip(0, top).astype(np.uint8)
    packed = [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4]
    fifth = [np.bitwise_or.reduce(q >> 4 << np.arange(8, dtype=np.uint8)[:, None], axis=1)] if bits == 5 else []
    pairs = q.reshape(-1, 4, 2, 32) & 15
    return np.concatenate([_half(d), _half(dmin), *packed, *fifth, (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)], 1)


def _q6_k(x):
    """Sixteen sub-blocks of 16 with a scale of eight signed bits in units of one f16."""
    sub = x.reshape(-1, 16, 16)
    largest = np.take_along_axis(sub, np.abs(sub).argmax(2)[:, :, None], 2)[:, :, 0]  # with its sign, which becomes code 0
    scale = largest / np.float32(-32)
    d = np.abs(scale).max(1, keepdims=True) / np.float32(127)
    s = np.rint(scale * _inverse(_rounded(d))).clip(-127, 127).astype(np.int8)
    q = (np.rint(sub * _inverse((_rounded(d) * s)[:, :, None])).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    nibbles = q[:, :, :2] & 15 | (q[:, :, 2:] & 15) << 4  # runs 0 and 1 low, 2 and 3 high
    pairs = np.bitwise_or.reduce(q >> 4 << (2 * np.arange(4, dtype=np.uint8))[:, None], axis=2)
    return np.concatenate([nibbles.reshape(-1, 128), pairs.reshape(-1, 64), s.view(np.uint8), _half(d)], 1)
