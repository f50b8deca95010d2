"""Writes GGUF files: typed metadata, aligned tensors, and the block formats that are simple to make."""
from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

_ALIGN = 32
# dtype -> GGML's number of the tensor type.
_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "bf16": 30}
BLOCK = 32


def quantize(w: np.ndarray, dtype: str) -> np.ndarray:
    """Rows of f32, K a multiple of 32 -> bytes in a block format, as the format's reference makes them."""
    x = np.ascontiguousarray(w, np.float32).reshape(-1, BLOCK)

    def inverse(d):
        return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)

    def half(d):
        return d.astype("<f2").view(np.uint8)

    def nibbles(q):
        return (q[:, :16] | q[:, 16:] << 4).astype(np.uint8)

    if dtype == "q8_0":
        d = np.abs(x).max(1, keepdims=True) / np.float32(127)
        y = x * inverse(d)
        q = np.trunc(y + np.copysign(np.float32(0.5), y)).astype(np.int8)  # half away from zero
        return np.concatenate([half(d), q.view(np.uint8)], 1)
    if dtype == "q4_0":
        largest = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)  # with its sign, which becomes code 0
        d = largest / np.float32(-8)
        q = np.trunc(x.astype(np.float64) * inverse(d) + 8.5).clip(0, 15).astype(np.uint8)
        return np.concatenate([half(d), nibbles(q)], 1)
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    d = (high - low) / np.float32(15)
    q = np.trunc((x - low).astype(np.float64) * inverse(d) + 0.5).clip(0, 15).astype(np.uint8)
    return np.concatenate([half(d), half(low), nibbles(q)], 1)


def _string(s: str) -> bytes:
    raw = s.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _value(v) -> bytes:
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    return struct.pack("<I", 8) + _string(v)


def write_gguf(path: Path, meta: dict, tensors: dict, kinds: dict) -> dict:
    """tensors: name -> f32 array; kinds: name -> dtype. A matrix whose rows no block divides becomes f16."""
    from vivace.convert import narrow

    chosen = {n: "f16" if kinds[n].startswith("q") and w.shape[-1] % BLOCK else kinds[n] for n, w in tensors.items()}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(_string(k) + _value(v) for k, v in meta.items())
    at, infos = 0, b""
    for n, w in tensors.items():
        size = w.size // BLOCK * {"q8_0": 34, "q4_0": 18, "q4_1": 20}[chosen[n]] if chosen[n].startswith("q") else w.size * (4 if chosen[n] == "f32" else 2)
        infos += _string(n) + struct.pack(f"<I{w.ndim}QIQ", w.ndim, *w.shape[::-1], _TYPES[chosen[n]], at)
        at += size + -size % _ALIGN
    head += infos
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % _ALIGN))
        for n, w in tensors.items():
            raw = (quantize(w, chosen[n]) if chosen[n].startswith("q") else narrow(w, chosen[n])).tobytes()
            f.write(raw + b"\0" * (-len(raw) % _ALIGN))
    return {"tensors": len(tensors), "bytes": Path(path).stat().st_size}
