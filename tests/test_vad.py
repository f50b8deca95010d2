"""Silero VAD as ops against onnxruntime (tests/fixtures/vad.safetensors), cut in any way; stretches; what is no such file."""
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import vivace
from tests import speech_data
from vivace.speech import VadSettings, vad
from vivace.speech.onnx import initializers

WANT = load_file(Path(__file__).parent / "fixtures" / "vad.safetensors")["probabilities"]


@pytest.fixture(scope="module")
def weights():
    return vad.Weights(speech_data.weights("silero-vad"))


@pytest.fixture(scope="module")
def sound():
    return speech_data.sentences_and_telephone()


def test_probabilities_are_onnxruntimes(weights, sound):
    np.testing.assert_allclose(vad.probabilities(sound, weights), WANT, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 160, 512, 1000, 65536])
def test_sound_in_pieces(weights, sound, chunk):
    x = sound[:2000 if chunk == 1 else 100000]
    stream = vad.Stream(weights)
    got = np.concatenate([*(stream.push(x[i:i + chunk]) for i in range(0, len(x), chunk)), stream.finish()])
    np.testing.assert_array_equal(got, vad.probabilities(x, weights))


def test_a_new_sound_begins_anew(weights, sound):
    stream = vad.Stream(weights)
    first = stream.push(sound[:51200])
    stream.reset()
    np.testing.assert_array_equal(stream.push(sound[:51200]), first)


@pytest.mark.parametrize("what", ["zeros", "noise", "quiet noise", "a tone", "chords"])
def test_nobody_speaks(weights, what):
    rng, at = np.random.default_rng(0), np.arange(30 * 16000) / 16000
    x = {"zeros": 0 * at, "noise": rng.normal(0, 0.03, len(at)), "quiet noise": rng.normal(0, 0.001, len(at)), "a tone": 0.3 * np.sin(2 * np.pi * 440 * at),
         "chords": 0.1 * sum(np.sin(2 * np.pi * f * 2 ** (np.floor(at / 2) % 5 / 12) * at) for f in (220, 277, 330))}[what].astype(np.float32)
    assert vad.stretches(vad.probabilities(x, weights), len(x), VadSettings()) == []


def test_stretches():
    p = np.array([0] * 100 + [0.9] * 50 + [0.4] * 20 + [0] * 10 + [0.9] * 5 + [0] * 200 + [0.7] * 60, np.float32)
    frame, n = 0.032, len(p) * 512
    s = VadSettings(min_silence=1.0, pad=0.1)
    got = vad.stretches(p, n, s)
    np.testing.assert_allclose(got, [(100 * frame - 0.1, 185 * frame + 0.1), (385 * frame - 0.1, 445 * frame)])
    np.testing.assert_allclose(vad.stretches(p, n, VadSettings(min_silence=0.2, min_speech=0.5, pad=0.0)), [(100 * frame, 170 * frame), (385 * frame, 445 * frame)])
    near = vad.stretches(p, n, VadSettings(min_silence=0.2, pad=10.0))
    assert near[0][0] == 0 and near[-1][1] == n / 16000 and all(abs(a[1] - b[0]) < 1e-9 for a, b in zip(near, near[1:]))
    assert vad.joined([(0, 5), (6, 12), (40, 80)], 30) == [(0, 12), (40, 80)]
    assert vad.stretches(np.zeros(0, np.float32), 0, s) == []


@pytest.mark.parametrize("change", [dict(threshold=2), dict(threshold="x"), dict(pad=-1), dict(longest=0), dict(min_speech=float("nan")), dict(min_silence=True)])
def test_refused_settings(change):
    with pytest.raises(vivace.InvalidArgumentError, match=next(iter(change))):
        VadSettings(**change)


def message(number, data):
    return bytes([number << 3 | 2]) + _size(len(data)) + data


def _size(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def onnx(name=b"w", dims=(2, 3), kind=1, raw=None):
    body = b"".join(b"\x08" + _size(d) for d in dims) + b"\x10" + _size(kind) + message(8, name) + message(9, struct.pack("<6f", *range(6)) if raw is None else raw)
    return message(7, message(5, body))


@pytest.mark.parametrize("raw, kind, said", [
    (b"", "CorruptDataError", "wanted one graph, got 0"),
    (b"\xff" * 20, "CorruptDataError", "a number has no end"),
    (onnx()[:-3], "CorruptDataError", "its message ends after"),
    (onnx() + onnx(), "CorruptDataError", "wanted one graph, got 2"),
    (onnx(dims=(2, 4)), "CorruptDataError", "is 32 bytes, the file has 24"),
    (onnx(dims=(1 << 40, 1 << 40)), "CorruptDataError", "the file has 24"),
    (onnx(dims=(1,) * 9, raw=b"\0\0\0\0"), "CorruptDataError", "of f32"),
    (onnx(kind=7), "UnsupportedError", "wanted f32, got type 7"),
    (b"\x3b" + bytes(8), "CorruptDataError", "kind 3"),
    (b"\x38\x05", "CorruptDataError", "wanted one graph"),
    (onnx(), "NotFoundError", "model.stft.forward_basis_buffer is missing"),
])
def test_what_is_no_onnx(tmp_path, raw, kind, said):
    (tmp_path / "a.onnx").write_bytes(raw)
    with pytest.raises(getattr(vivace, kind), match=said):
        vad.Weights(tmp_path / "a.onnx")


def test_initializers(tmp_path):
    (tmp_path / "a.onnx").write_bytes(onnx())
    np.testing.assert_array_equal(initializers(tmp_path / "a.onnx")["w"], [[0, 1, 2], [3, 4, 5]])


def test_changed_bytes(tmp_path):
    """300 files with some bytes changed, cut anywhere: tensors of the file's own bytes, or an error of ours."""
    rng, good = np.random.default_rng(5), onnx()
    for _ in range(300):
        raw = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            raw[rng.integers(len(raw))] = rng.integers(256)
        (tmp_path / "a.onnx").write_bytes(bytes(raw[:rng.integers(1, len(raw) + 1)]))
        try:
            got = initializers(tmp_path / "a.onnx")
        except vivace.Error:
            continue
        assert sum(w.nbytes for w in got.values()) <= len(raw)
