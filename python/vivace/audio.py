"""Sound as speech models take it: one channel of f32 samples at one rate. The core reads WAV, and FLAC, MP3, Ogg and others by
libsndfile: that of the soundfile package (pip install 'vivace[audio]'), else the system's."""
from __future__ import annotations

import functools
import glob
import importlib.util
import math
import mmap
import os
import sys

import numpy as np

from vivace import _core, files
from vivace.errors import CorruptDataError, Error, InvalidArgumentError, InvalidDTypeError, InvalidShapeError, LimitExceededError

LEAST_RATE, MOST_RATE, MOST_CHANNELS, MOST_SECONDS = _core.audio_limits
MOST_BYTES = 4 << 30  # of a file, or of what comes through a pipe
_BLOCK = 1 << 20


def read(source, *, most_seconds: float = MOST_SECONDS) -> tuple[np.ndarray, int]:
    """(samples, rate) of a file, of bytes that hold one, or of "-", standard input: f32, the mean of its channels, full scale 1.

    Errors: NotFoundError, IoError; CorruptDataError (headers that lie, samples that are not finite), UnsupportedError
    (another coding), LimitExceededError (rate, channels, seconds, bytes): nothing is allocated before they are checked.
    """
    memory = _memory(source)
    name = "audio" if isinstance(source, (bytes, bytearray, memoryview)) else str(source)
    if memory.size == 0:
        raise CorruptDataError(f"{name}: an empty file")
    if memory[:4].tobytes() != b"RIFF":
        _library()
        try:
            sound = _core.read_sound(memory, most_seconds)
        except Error as e:
            raise type(e)(f"{name}: {e}") from None
        samples = np.empty(sound.frames, np.float32)
        sound.copy_to(samples)
        return samples, sound.rate
    wav = _core.open_wav(memory, most_seconds)
    samples = np.empty(wav.frames, np.float32)
    for first in range(0, wav.frames, _BLOCK):
        wav.mono(first, samples[first:first + _BLOCK])
    return samples, wav.rate


def _memory(source) -> np.ndarray:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return np.frombuffer(source, np.uint8)
    if source == "-":
        held = sys.stdin.buffer.read(MOST_BYTES + 1)
        if len(held) > MOST_BYTES:
            raise LimitExceededError(f"standard input: more than {MOST_BYTES} bytes")
        return np.frombuffer(held, np.uint8)
    with open(files.open_regular(source), "rb") as f:
        size = os.fstat(f.fileno()).st_size
        if size > MOST_BYTES:
            raise LimitExceededError(f"{source}: {size} bytes, at most {MOST_BYTES} are read")
        return np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.uint8) if size else np.empty(0, np.uint8)


@functools.cache
def _library() -> None:
    """libsndfile comes with the soundfile package; without that the core looks for the system's."""
    if os.environ.get("VIVACE_SNDFILE") or (spec := importlib.util.find_spec("_soundfile_data")) is None or spec.origin is None:
        return
    if found := sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(spec.origin)), "libsndfile*.so*"))):
        _core.set_sound_library(found[0])


class Pieces:
    """Sound in pieces of any size, as f32 of one channel at `wanted` a second; the same samples for every way to cut it."""

    def __init__(self, rate: int, channels: int, wanted: int):
        self._channels, self._raw = channels, b""  # of a frame that is not whole
        common = math.gcd(rate, wanted)
        self._up, self._down = wanted // common, rate // common
        self._taps = resampling_filter(self._up, self._down) if rate != wanted else None
        self._came = self._went = 0  # samples of either rate
        if self._taps is not None:
            half = self._taps.shape[1] // 2
            self._blocks, self._held = max(1, rate // (50 * self._down)), np.zeros(half - 1, np.float32)

    def push(self, samples) -> np.ndarray:
        return self._resampled(self._mono(samples))

    def finish(self) -> np.ndarray:
        """What the filter holds; a frame that is not whole is none."""
        if self._taps is None:
            return np.zeros(0, np.float32)
        most = -(-self._came * self._up // self._down) - self._went
        return self._resampled(np.zeros(self._blocks * self._down * (most // (self._blocks * self._up) + 1) + self._taps.shape[1], np.float32))[:most]

    def _mono(self, samples) -> np.ndarray:
        if isinstance(samples, (bytes, bytearray, memoryview)):
            raw = self._raw + bytes(samples)
            whole = len(raw) - len(raw) % (2 * self._channels)
            self._raw = raw[whole:]
            samples = np.frombuffer(raw[:whole], "<i2").astype(np.int16).reshape(-1, self._channels)
        elif (shape := np.shape(samples))[1:] != (self._channels,) and (len(shape), self._channels) != (1, 1):
            raise InvalidShapeError(f"audio: wanted [N, {self._channels}]{' or [N]' if self._channels == 1 else ''}, got {list(shape)}")
        return _array(samples)

    def _resampled(self, samples) -> np.ndarray:
        self._came += len(samples)
        if self._taps is None:
            return samples
        from vivace import ops

        out, step, taps = [], self._blocks * self._down, self._taps
        self._held = np.concatenate([self._held, samples])
        at = 0
        while len(self._held) - at >= step + taps.shape[1]:
            block = np.empty((1, self._blocks * self._up), np.float32)
            ops.resample(np.ascontiguousarray(self._held[None, at:at + step + taps.shape[1]]), filter=taps, out=block, down=self._down, first=0)
            out.append(block[0])
            at += step
        self._held = self._held[at:].copy()
        self._went += sum(map(len, out))
        return np.concatenate(out) if out else np.zeros(0, np.float32)


def samples_of(audio, rate: int | None, wanted: int, *, most_seconds: float = MOST_SECONDS) -> np.ndarray:
    """f32 samples at `wanted` a second of what a caller gives as audio: a path, a file's bytes, "-", or an array
    of samples, f32 of full scale 1 or i16, [N] or [N, channels], at `rate` (None: `wanted`)."""
    if isinstance(audio, (str, os.PathLike, bytes, bytearray, memoryview)):
        if rate is not None:
            raise InvalidArgumentError("rate: a file says its own")
        samples, rate = read(audio, most_seconds=most_seconds)
    else:
        samples, rate = _array(audio), wanted if rate is None else rate
        if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)):
            raise InvalidArgumentError(f"rate: wanted a whole number of samples a second, got {rate!r}")
        if not LEAST_RATE <= rate <= MOST_RATE:
            raise LimitExceededError(f"rate: {rate} samples a second, {LEAST_RATE} to {MOST_RATE} are taken")
        if len(samples) > most_seconds * rate:
            raise LimitExceededError(f"audio: {len(samples) / rate:.0f} seconds, at most {most_seconds:.0f} are taken")
    return resample(samples, int(rate), wanted)


def _array(audio) -> np.ndarray:
    a = np.asarray(audio)
    if a.dtype not in (np.float32, np.float64, np.int16):
        raise InvalidDTypeError(f"audio: wanted f32 samples of full scale 1, or i16, got {a.dtype}")
    if a.ndim not in (1, 2) or (a.ndim == 2 and not 1 <= a.shape[1] <= MOST_CHANNELS):
        raise InvalidShapeError(f"audio: wanted [N] or [N, channels] with at most {MOST_CHANNELS} of these, got {list(a.shape)}")
    if a.dtype == np.int16:
        a = a.astype(np.float32) / np.float32(32768)
    a = (a if a.ndim == 1 else a.mean(1, dtype=np.float64)).astype(np.float32)
    if not np.isfinite(a).all():
        raise InvalidArgumentError(f"audio: sample {int(np.argmin(np.isfinite(a)))} is not finite")
    return np.ascontiguousarray(a)


@functools.lru_cache(maxsize=4)
def resampling_filter(up: int, down: int) -> np.ndarray:
    """[up, K]: a Kaiser-windowed sinc, the phase of each output that lies p / up after an input."""
    return np.array(_core.resampling_filter(up, down), np.float32).reshape(up, -1)


def resample(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """f32 samples [N] at `wanted` a second: ceil(N * wanted / rate) of them."""
    from vivace import ops

    if rate == wanted or len(samples) == 0:
        return samples
    common = math.gcd(rate, wanted)
    up, down = wanted // common, rate // common
    taps = resampling_filter(up, down)
    out = np.empty((1, -(-len(samples) * up // down)), np.float32)
    ops.resample(samples[None], filter=taps, out=out, down=down, first=1 - taps.shape[1] // 2)
    return out[0]
