"""Animated PNG files, written with zlib alone, and words of an episode drawn into their frames."""
from __future__ import annotations

import struct
import zlib

import numpy as np

from vivace.files import new_file

# Five columns a letter, a dot a bit, the lowest bit on top.
_LETTERS = {
    "a": (32, 84, 84, 84, 120), "b": (127, 72, 68, 68, 56), "c": (56, 68, 68, 68, 40), "d": (56, 68, 68, 72, 127), "e": (56, 84, 84, 84, 24),
    "g": (24, 164, 164, 164, 124), "h": (127, 8, 4, 4, 120), "k": (127, 16, 40, 68, 0), "l": (0, 65, 127, 64, 0), "n": (124, 8, 4, 4, 120),
    "o": (56, 68, 68, 68, 56), "p": (252, 36, 36, 36, 24), "r": (124, 8, 4, 4, 8), "t": (4, 63, 68, 64, 32), "u": (60, 64, 64, 32, 124),
    "w": (60, 64, 48, 64, 60), "y": (28, 160, 160, 160, 124), " ": (0, 0, 0, 0, 0), ":": (0, 0, 40, 0, 0),
}
INK, REACHED, EDGE = (40, 44, 52), (44, 150, 60), (205, 208, 214)


def words(canvas, text: str, row: int, column: int, scale: int = 2, ink=INK) -> None:
    """Draws `text` into u8 [H, W, 3]; letters without a drawing stay blank."""
    for letter in text:
        dots = np.array([[bits >> y & 1 for bits in _LETTERS.get(letter, _LETTERS[" "])] for y in range(8)], bool)
        dots = dots.repeat(scale, 0).repeat(scale, 1)
        place = canvas[row:row + dots.shape[0], column:column + dots.shape[1]]
        place[dots[:place.shape[0], :place.shape[1]]] = ink
        column += 6 * scale


def frame(views, text: str, reached: bool):
    """Views u8 [V, S, S, 3] side by side under a line of words."""
    size, bar = views.shape[1], 26
    canvas = np.full((size + bar, size * len(views) + 2, 3), 255, np.uint8)
    for i, view in enumerate(views):
        canvas[bar:, i * (size + 2):i * (size + 2) + size] = view
    canvas[bar - 1] = canvas[bar:, size:size + 2] = EDGE
    words(canvas, text + (": reached" if reached else ""), 5, 8, ink=REACHED if reached else INK)
    return canvas


def _packed(pixels) -> bytes:
    """Rows of RGBA under whichever of PNG's filters, for all of them, packs best: none, or the difference to the left."""
    h = len(pixels)
    flat = pixels.reshape(h, -1)
    left = flat.copy()
    left[:, 4:] -= flat[:, :-4]
    ways = (np.concatenate([np.full((h, 1), kind, np.uint8), rows], 1).tobytes() for kind, rows in ((0, flat), (1, left)))
    return min((zlib.compress(way, 9) for way in ways), key=len)


def write(path, frames, milliseconds) -> int:
    """Writes u8 frames [H, W, 3] as an animated PNG that begins again at its end; `milliseconds` of each. Returns the bytes.
    Of every frame but the first only what changed is kept. The file is there whole or not at all. Errors: IoError and NotFoundError name it."""
    height, width, _ = frames[0].shape
    parts, order = [], 0

    def part(kind: bytes, data: bytes) -> None:
        parts.append(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))

    part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
    part(b"acTL", struct.pack(">II", len(frames), 0))
    before = None
    for now, wait in zip(frames, milliseconds):
        changed = np.ones((height, width), bool) if before is None else (now != before).any(-1)
        if not changed.any():
            changed[0, 0] = True
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        box = np.s_[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1]
        pixels = np.concatenate([now, np.full((height, width, 1), 255, np.uint8)], -1)[box] * changed[box][..., None]
        part(b"fcTL", struct.pack(">IIIIIHHBB", order, pixels.shape[1], pixels.shape[0], columns[0], rows[0], wait, 1000, 0, 0 if before is None else 1))
        data = _packed(pixels)
        part(*((b"IDAT", data) if before is None else (b"fdAT", struct.pack(">I", order + 1) + data)))
        order += 1 if before is None else 2
        before = now
    part(b"IEND", b"")
    whole = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    with new_file(path) as f:
        f.write(whole)
    return len(whole)
