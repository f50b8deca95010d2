"""Writes GGUF files: typed metadata, aligned tensors."""
from __future__ import annotations

import struct
from pathlib import Path

from vivace.blocks import SIZES, fitting, quantize
from vivace.errors import CorruptDataError
from vivace.files import new_file, printable

_ALIGN = 32
# dtype -> GGML's number of the tensor type.
_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q4_k": 12, "q5_k": 13, "q6_k": 14, "bf16": 30}


def _string(s: str) -> bytes:
    try:
        raw = s.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise CorruptDataError(f"GGUF: {printable(s, 60)}: {e.reason}") from None
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
    """tensors: name -> f32 array; kinds: name -> dtype. A matrix whose rows the blocks do not divide gets another (fitting())."""
    from vivace.convert import finite, narrow

    chosen = {n: fitting(kinds[n], w.shape[-1]) for n, w in tensors.items()}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(_string(k) + _value(v) for k, v in meta.items())
    at, infos = 0, b""
    for n, w in tensors.items():
        elements, block = SIZES.get(chosen[n], (1, 4 if chosen[n] == "f32" else 2))
        size = w.size // elements * block
        infos += _string(n) + struct.pack(f"<I{w.ndim}QIQ", w.ndim, *w.shape[::-1], _TYPES[chosen[n]], at)
        at += size + -size % _ALIGN
    head += infos
    with new_file(path) as f:
        f.write(head + b"\0" * (-len(head) % _ALIGN))
        for n, w in tensors.items():
            if chosen[n] in SIZES:
                finite(n, w, chosen[n])
            raw = (quantize(w, chosen[n]) if chosen[n] in SIZES else narrow(w, chosen[n])).tobytes()
            f.write(raw + b"\0" * (-len(raw) % _ALIGN))
    return {"tensors": len(tensors), "bytes": Path(path).stat().st_size}
