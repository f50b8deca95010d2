"""Voice activity: how likely somebody speaks in each 32 ms, by Silero VAD v6 as ops on the CPU; and the stretches where somebody does."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vivace import ops
from vivace.errors import InvalidArgumentError, InvalidShapeError, NotFoundError
from vivace.speech.onnx import initializers

RATE, FRAME, CONTEXT = 16000, 512, 64  # samples a second, of a frame, and of the frame before that it sees too
_REFLECTED, _BASIS, _HOP, _BINS = 64, 256, 128, 129
_STRIDES = (1, 2, 2, 1)                # of the convolutions behind the spectrum
_CELLS = 128
_TOGETHER = 16                         # frames whose spectra are made in one go, at most: 64 rows of a product, whose bits do not depend on how many they are

_SHAPES = {"model.stft.forward_basis_buffer": (2 * _BINS, 1, _BASIS)}
for _i, (_n, _c) in enumerate(((128, _BINS), (64, 128), (64, 64), (_CELLS, 64))):
    _SHAPES |= {f"model.encoder.{_i}.reparam_conv.weight": (_n, _c, 3), f"model.encoder.{_i}.reparam_conv.bias": (_n,)}
_SHAPES |= {f"model.decoder.rnn.weight_{x}h": (4 * _CELLS, _CELLS) for x in "ih"} | {f"model.decoder.rnn.bias_{x}h": (4 * _CELLS,) for x in "ih"}
_SHAPES |= {"model.decoder.decoder.2.weight": (1, _CELLS, 1), "model.decoder.decoder.2.bias": (1,)}


class Weights:
    """Of silero_vad_16k_op15.onnx. (The safetensors file that comes with it holds others.)"""

    def __init__(self, file):
        found = initializers(file)
        for name, shape in _SHAPES.items():
            if name not in found:
                raise NotFoundError(f"{file}: tensor {name} is missing: no Silero VAD for 16 kHz; python -m vivace.fetch silero-vad")
            if found[name].shape != shape:
                raise InvalidShapeError(f"{file}: {name}: wanted {list(shape)}, got {list(found[name].shape)}")
        w = {k: np.array(found[k], np.float32) for k in _SHAPES}  # copies: in the file they lie at any byte
        self.basis = w["model.stft.forward_basis_buffer"].reshape(2 * _BINS, _BASIS)
        self.convolutions = [(w[f"model.encoder.{i}.reparam_conv.weight"].reshape(len(b), -1), b) for i in range(len(_STRIDES)) for b in [w[f"model.encoder.{i}.reparam_conv.bias"]]]
        self.inputs, self.state = w["model.decoder.rnn.weight_ih"], w["model.decoder.rnn.weight_hh"]
        self.bias = w["model.decoder.rnn.bias_ih"] + w["model.decoder.rnn.bias_hh"]
        self.out, self.out_bias = w["model.decoder.decoder.2.weight"].reshape(1, _CELLS), w["model.decoder.decoder.2.bias"]


def _product(x, w, bias=None, **attrs):
    out = np.empty((len(x), len(w)), np.float32)
    ops.gemm(x, w=w, bias=bias, out=out, **attrs)
    return out


class Stream:
    """Sound in pieces of any size; the same probabilities for every way to cut it."""

    def __init__(self, weights: Weights):
        self.w = weights
        self.reset()

    def reset(self) -> None:
        """A new sound begins."""
        self.rest = np.zeros(0, np.float32)
        self.context = np.zeros(CONTEXT, np.float32)
        self.hidden, self.cell = np.zeros((1, _CELLS), np.float32), np.zeros((1, _CELLS), np.float32)

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Probabilities of the frames that are whole now."""
        held = np.concatenate([self.rest, samples])
        whole = len(held) // FRAME * FRAME
        self.rest = held[whole:].copy()
        most = _TOGETHER * FRAME
        return np.concatenate([np.zeros(0, np.float32), *(self._frames(held[i:min(i + most, whole)]) for i in range(0, whole, most))])

    def finish(self) -> np.ndarray:
        """The last frame, silence behind it; empty where all were whole."""
        return self.push(np.zeros(FRAME - len(self.rest), np.float32)) if len(self.rest) else np.zeros(0, np.float32)

    def _frames(self, samples) -> np.ndarray:
        n, w = len(samples) // FRAME, self.w
        joined = np.concatenate([self.context, samples])
        self.context = joined[-CONTEXT:].copy()
        seen = np.stack([joined[i * FRAME:i * FRAME + CONTEXT + FRAME] for i in range(n)])
        seen = np.pad(seen, ((0, 0), (0, _REFLECTED)), mode="reflect")
        lines = (seen.shape[1] - _BASIS) // _HOP + 1
        cut = np.empty((n * lines, _BASIS), np.float32)
        ops.im2col(seen.reshape(n, 1, -1, 1), out=cut, kernel_w=_BASIS, stride_w=_HOP)
        parts = _product(cut, w.basis)
        x = np.sqrt(parts[:, :_BINS] ** 2 + parts[:, _BINS:] ** 2).reshape(n, 1, lines, _BINS)
        for (weight, bias), stride in zip(w.convolutions, _STRIDES):
            lines = (x.shape[2] - 1) // stride + 1
            cut = np.empty((n * lines, weight.shape[1]), np.float32)
            ops.im2col(x, out=cut, kernel_w=3, stride_w=stride, pad_w=1, order="chw")
            x = _product(cut, weight, bias, epilogue="relu").reshape(n, 1, lines, len(weight))
        gates = _product(x.reshape(n, _CELLS), w.inputs, w.bias)
        hidden = np.empty((n, _CELLS), np.float32)
        for i in range(n):
            row = gates[i:i + 1]
            ops.gemm(self.hidden, w=w.state, residual=row, out=row)
            ops.lstm_cell(row, cell=self.cell, out=self.hidden)
            hidden[i] = self.hidden[0]
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-_product(np.maximum(hidden, 0), w.out, w.out_bias)[:, 0]))


@dataclass(frozen=True)
class Settings:
    """When speech begins and ends. Seconds."""

    threshold: float = 0.5
    min_speech: float = 0.0
    min_silence: float = 2.0
    pad: float = 0.4
    longest: float = 30.0   # of stretches that are heard together with the pauses between them

    def __post_init__(self):
        for name, value, least, most in (("threshold", self.threshold, 0.0, 1.0), ("min_speech", self.min_speech, 0, 3600), ("min_silence", self.min_silence, 0, 3600), ("pad", self.pad, 0, 60), ("longest", self.longest, 1, 3600)):
            if not (isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most):
                raise InvalidArgumentError(f"vad: {name}: wanted {least} to {most}, got {value!r}")


def probabilities(samples, weights: Weights) -> np.ndarray:
    """One for each 512 samples at 16 kHz."""
    stream = Stream(weights)
    return np.concatenate([stream.push(np.asarray(samples, np.float32)), stream.finish()])


def stretches(p, samples: int, s: Settings) -> list[tuple[float, float]]:
    """(start, end) in seconds where somebody speaks: entered at the threshold, left 0.15 below it for min_silence."""
    leave = max(s.threshold - 0.15, 0.01)
    frame = FRAME / RATE
    found, start, quiet = [], None, None
    for i, v in enumerate(p):
        if v >= s.threshold:
            start, quiet = (i if start is None else start), None
        elif v < leave and start is not None:
            quiet = i if quiet is None else quiet
            if (i + 1 - quiet) * frame >= s.min_silence:
                found.append((start, quiet))
                start = quiet = None
    if start is not None:
        found.append((start, len(p)))
    end = samples / RATE
    spoken = [(a * frame, min(b * frame, end)) for a, b in found if (b - a) * frame >= s.min_speech]
    out = []
    for n, (a, b) in enumerate(spoken):  # neighbours that are near share the gap in halves
        before = spoken[n - 1][1] if n else 0.0
        after = spoken[n + 1][0] if n + 1 < len(spoken) else end
        out.append((a - min(s.pad, (a - before) / 2 if n else a), b + min(s.pad, (after - b) / 2 if n + 1 < len(spoken) else end - b)))
    return out


def joined(parts, longest: float) -> list[tuple[float, float]]:
    """Stretches in groups of at most `longest` seconds with the pauses between them, so that a window holds as many as it can."""
    out = []
    for a, b in parts:
        if out and b - out[-1][0] <= longest:
            out[-1] = (out[-1][0], b)
        else:
            out.append((a, b))
    return out
