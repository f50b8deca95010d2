"""Images in prompts: pictures as a model that sees takes them, and where their tokens stand.

A picture is RGB of sides that are multiples of a token's, resized as Qwen3-VL's own processor does: nearest such size, between least and most pixels, Pillow's
bicubic filter. Each of its tokens stands in the prompt as the model's image token. The order is that of the messages' parts.
"""
from __future__ import annotations

import base64
import binascii
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path

from vivace import files
from vivace.errors import CorruptDataError, InvalidArgumentError, LimitExceededError, UnsupportedError
from vivace.options import shown

MOST = 256                    # images of a prompt
MOST_BYTES = 32 << 20         # of a picture's file
MOST_PIXELS = 1 << 26         # of a picture before it is resized
MOST_RATIO = 200              # of its sides
LEAST, ALL = 1 << 16, 1 << 24  # pixels of a resized one, unless preprocessor_config.json says otherwise
FORMATS = ("PNG", "JPEG", "WEBP")
KINDS = ("image", "image_url")


@dataclass(frozen=True)
class Picture:
    """RGB in rows, of a size that the model takes."""

    pixels: bytes
    height: int
    width: int


class ImagePrompt(list):
    """Token ids of a prompt, with the pictures that some of them stand for: (pixels, height, width, first of its tokens) each."""

    def __init__(self, ids, images):
        super().__init__(ids)
        self.images = images


def of(ids) -> list[tuple]:
    """The pictures of a prompt's ids."""
    return getattr(ids, "images", [])


def taken(messages) -> tuple[list, list[tuple[str, object]]]:
    """The messages with parts of images as templates take them, and what these parts hold, each with its place. Other parts are as they were.
    Errors: InvalidArgumentError names the part; LimitExceededError."""
    out, found = [], []
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, (list, tuple)) or not any(isinstance(p, dict) and p.get("type") in KINDS for p in content):
            out.append(message)
            continue
        parts = []
        for k, part in enumerate(content):
            if isinstance(part, dict) and part.get("type") in KINDS:
                found.append((f"messages[{i}].content[{k}]", _held(part, f"messages[{i}].content[{k}]")))
                part = {"type": "image"}
            parts.append(part)
        out.append({**message, "content": parts})
    if len(found) > MOST:
        raise LimitExceededError(f"messages: {len(found)} images, at most {MOST} are taken in a prompt")
    return out, found


def unshown(messages) -> list:
    """The messages with their parts of images empty: what a model that takes none refuses."""
    def part(p):
        return {"type": p["type"]} if isinstance(p, dict) and p.get("type") in KINDS else p
    return [{**m, "content": [part(p) for p in m["content"]]} if isinstance(m, dict) and isinstance(m.get("content"), list) else m for m in messages]


def _held(part: dict, at: str):
    """What a part shows: of image_url a data URL, of image whatever picture() takes."""
    value = part.get(part["type"])
    if part["type"] == "image_url":
        value = value.get("url") if isinstance(value, dict) else value
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{at}: wanted {{'type': 'image_url', 'image_url': {{'url': a data URL}}}}, got {shown(value)}")
        return decoded(value, at)
    if value is None:
        raise InvalidArgumentError(f"{at}: wanted {{'type': 'image', 'image': an array, a PIL image, a file's bytes or its path}}, got no image")
    return decoded(value, at) if isinstance(value, str) and ":" in value[:8] else value


def decoded(url: str, at: str) -> bytes:
    """The bytes of a data URL in base64. Errors: InvalidArgumentError; UnsupportedError for what would have to be fetched."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:"):
        raise UnsupportedError(f"{at}: images come as data URLs (data:image/png;base64,...); no address is fetched, got {files.printable(url, 40)!r}")
    if not comma or not head.endswith(";base64"):
        raise InvalidArgumentError(f"{at}: wanted data:image/...;base64,..., got {files.printable(head, 40)!r}")
    if len(data) > MOST_BYTES * 4 // 3 + 4:
        raise LimitExceededError(f"{at}: an image of more than {MOST_BYTES} bytes")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as e:
        raise InvalidArgumentError(f"{at}: its base64 cannot be read: {e}") from None


class Resizer:
    """Pictures of the sizes that a model takes: `limits` is its limits()["images"], `path` the checkpoint, whose preprocessor_config.json says least and most pixels."""

    def __init__(self, path: str, limits: dict):
        self.token, self.side, self.most_tokens = limits["token"], limits["side"], limits["tokens"]
        folder = Path(path) if os.path.isdir(path) else Path(path).parent
        file = folder / "preprocessor_config.json"
        config = files.read_json(file) if file.exists() else {}
        size = config.get("size") if isinstance(config.get("size"), dict) else {}
        self.least = _pixels(file, size.get("shortest_edge", config.get("min_pixels")), LEAST)
        self.most = min(_pixels(file, size.get("longest_edge", config.get("max_pixels")), ALL), self.most_tokens * self.side * self.side)
        self.least = min(self.least, self.most)
        for name in ("image_mean", "image_std"):
            if any(v != 0.5 for v in config.get(name) or ()):
                raise UnsupportedError(f"{file}: {name}: only 0.5 a channel is served, got {shown(config[name])}")

    def size(self, height: int, width: int, at: str) -> tuple[int, int]:
        """Height and width that a picture is resized to."""
        if min(height, width) < 1 or max(height, width) > MOST_RATIO * min(height, width):
            raise InvalidArgumentError(f"{at}: wanted a picture whose sides differ by at most a factor of {MOST_RATIO}, got {height} x {width}")
        s = self.side
        h, w = round(height / s) * s, round(width / s) * s
        if h * w > self.most:
            by = math.sqrt(height * width / self.most)
            h, w = max(s, math.floor(height / by / s) * s), max(s, math.floor(width / by / s) * s)
        elif h * w < self.least:
            by = math.sqrt(self.least / (height * width))
            h, w = math.ceil(height * by / s) * s, math.ceil(width * by / s) * s
        if h // s * (w // s) > self.most_tokens:
            raise LimitExceededError(f"{at}: {height} x {width} takes {h // s * (w // s)} tokens of {s} x {s} pixels, at most {self.most_tokens} are taken; load with a larger max_image_tokens, or cut it")
        return h, w

    def picture(self, value, at: str) -> Picture:
        """`value`: RGB as an array [H, W, 3] of u8, a PIL image, the bytes of a PNG, JPEG or WebP file, or its path."""
        if isinstance(value, (str, os.PathLike)):
            value = files.read_bytes(value, most=MOST_BYTES)
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = _opened(bytes(value), at)
        if not hasattr(value, "convert"):
            return self._array(value, at)
        self._bounded(value.height, value.width, at)
        h, w = self.size(value.height, value.width, at)
        image = _loaded(value, at)
        if (h, w) != (image.height, image.width):
            h, w = self.size(image.height, image.width, at)  # turned as its camera was
        return Picture(_resized(image, h, w), h, w)

    def _array(self, value, at: str) -> Picture:
        import numpy

        try:
            array = numpy.asarray(value)
        except Exception as e:  # whatever a foreign array's conversion raises
            raise InvalidArgumentError(f"{at}: wanted an array [height, width, 3] of u8, a PIL image, a file's bytes or its path, got {shown(value)} ({type(e).__name__})") from None
        if array.dtype != numpy.uint8 or array.ndim != 3 or array.shape[2] != 3:
            raise InvalidArgumentError(f"{at}: wanted an array [height, width, 3] of u8, a PIL image, a file's bytes or its path, got {shown(value)}")
        height, width = array.shape[:2]
        self._bounded(height, width, at)
        h, w = self.size(height, width, at)
        if (h, w) == (height, width):
            return Picture(numpy.ascontiguousarray(array).tobytes(), h, w)
        return Picture(_resized(_pillow().fromarray(numpy.ascontiguousarray(array)), h, w), h, w)

    @staticmethod
    def _bounded(height: int, width: int, at: str) -> None:
        if height * width > MOST_PIXELS:
            raise LimitExceededError(f"{at}: {height} x {width} pixels, at most {MOST_PIXELS} are taken")

    def expanded(self, ids: list[int], held: list[tuple[str, object]]) -> ImagePrompt:
        """`ids`, in which each image token stands for a picture, with as many in its place as the picture has. Errors: InvalidArgumentError."""
        if (places := ids.count(self.token)) != len(held):
            raise InvalidArgumentError(f"messages: they hold {len(held)} images, and the chat template writes {places} places for images")
        out, images, left = [], [], iter(held)
        for i in ids:
            if i != self.token:
                out.append(i)
                continue
            at, value = next(left)
            p = value if isinstance(value, Picture) else self.picture(value, at)
            images.append((p.pixels, p.height, p.width, len(out)))
            out += [i] * (p.height // self.side * (p.width // self.side))
        return ImagePrompt(out, images)


def rgb(path):
    """The picture of a file, a PIL image, as it is. Errors: NotFoundError, InvalidArgumentError, LimitExceededError, UnsupportedError (no Pillow)."""
    image = _opened(files.read_bytes(path, most=MOST_BYTES), str(path))
    Resizer._bounded(image.height, image.width, str(path))
    return _loaded(image, str(path))


def _pixels(file, value, usual: int) -> int:
    if value is None:
        return usual
    if type(value) is not int or not 0 < value < 1 << 40:
        raise CorruptDataError(f"{file}: size: wanted pixels as a whole number, got {shown(value)}")
    return value


def _pillow():
    try:
        import PIL.Image
    except ImportError:
        raise UnsupportedError("images: files, and arrays of a size that has to change, need Pillow: pip install 'vivace[images]'") from None
    return PIL.Image


def _opened(data: bytes, at: str):
    if len(data) > MOST_BYTES:
        raise LimitExceededError(f"{at}: an image of {len(data)} bytes, at most {MOST_BYTES} are taken")
    try:
        return _pillow().open(io.BytesIO(data), formats=FORMATS)
    except UnsupportedError:
        raise
    except Exception as e:  # a decoder meets anything
        raise InvalidArgumentError(f"{at}: no picture that can be read; {', '.join(FORMATS)} are: {type(e).__name__}") from None


def _loaded(image, at: str):
    """The picture as RGB, upright."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as e:  # a file that ends early, or a decoder's own bound
        raise InvalidArgumentError(f"{at}: the picture is broken: {type(e).__name__}: {files.printable(str(e), 80)}") from None


def _resized(image, height: int, width: int) -> bytes:
    if (image.height, image.width) == (height, width):
        return image.tobytes()
    return image.resize((width, height), _pillow().Resampling.BICUBIC).tobytes()
