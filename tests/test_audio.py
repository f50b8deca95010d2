"""Sound: WAV files of every form and what is wrong with them, resampled tones against the tones themselves, and log-mel
features against those of openai/whisper (tests/fixtures/whisper)."""
import io
import math
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vivace
from tests.packed import packed_tensors
from tests.op_data import device
from tests.ref.stft_mel import logarithms, powers
from vivace import _core, audio, ops

FIXTURE = Path(__file__).parent / "fixtures" / "whisper"
GUID = bytes.fromhex("000000001000800000aa00389b71")


def riff(data, *, coding=1, channels=1, rate=16000, bits=16, block=None, extensible=False, chunks=b"", size=None, tail=b""):
    block = channels * bits // 8 if block is None else block
    head = struct.pack("<HHIIHH", 0xFFFE if extensible else coding, channels, rate, rate * block & 0xFFFFFFFF, block & 0xFFFF, bits)
    if extensible:
        head += struct.pack("<HHIH", 22, bits, 0, coding) + GUID
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(head)) + head + chunks + b"data" + struct.pack("<I", len(data) if size is None else size) + data + tail
    return b"RIFF" + struct.pack("<I", len(body) & 0xFFFFFFFF) + body


def encoded(x, bits, coding):
    """[N, C] in [-1, 1) as bytes, and the values that they stand for."""
    if coding == 3:
        raw = x.astype("<f4" if bits == 32 else "<f8")
        return raw.tobytes(), raw.astype(np.float64)
    full = 2 ** (bits - 1)
    q = np.clip(np.rint(x * full), -full, full - 1).astype(np.int64)
    if bits == 8:
        return (q + 128).astype("u1").tobytes(), q / full
    return b"".join(int(v).to_bytes(bits // 8, "little", signed=True) for v in q.ravel()), q / full


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("bits, coding", [(8, 1), (16, 1), (24, 1), (32, 1), (32, 3), (64, 3)])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_every_form(bits, coding, channels, extensible):
    x = np.random.default_rng(bits + channels).uniform(-1, 1, (333, channels))
    x[0], x[1] = -1, 0
    raw, value = encoded(x, bits, coding)
    got, rate = audio.read(riff(raw, coding=coding, channels=channels, bits=bits, rate=44100, extensible=extensible, chunks=b"LIST\x03\0\0\0abc\0", tail=b"id3 \x02\0\0\0xy"))
    assert rate == 44100 and got.dtype == np.float32
    np.testing.assert_allclose(got, value.mean(1), rtol=0, atol=2.0**-24)


def test_wave_modules_file(tmp_path):
    x = np.random.default_rng(0).integers(-32768, 32768, 1000).astype("<i2")
    with wave.open(str(tmp_path / "a.wav"), "wb") as w:
        w.setnchannels(1), w.setsampwidth(2), w.setframerate(8000), w.writeframes(x.tobytes())
    got, rate = audio.read(tmp_path / "a.wav")
    assert rate == 8000
    np.testing.assert_array_equal(got, x.astype(np.float32) / 32768)


SOME = struct.pack("<4h", 1, 2, 3, 4)
BAD = {
    "empty": (b"", "CorruptDataError", "an empty file"),
    "nothing behind RIFF": (b"RIFF", "CorruptDataError", "no RIFF file"),
    "no chunk": (b"RIFF\x04\0\0\0WAVE", "CorruptDataError", "no fmt chunk"),
    "no data": (riff(b"")[:36], "CorruptDataError", "no data chunk"),
    "data beyond the end": (riff(SOME, size=1 << 31), "CorruptDataError", "says 2147483648 bytes, the file ends after 8"),
    "cut": (riff(SOME * 100)[:-3], "CorruptDataError", "says 800 bytes, the file ends after 797"),
    "a part of a frame": (riff(SOME[:7]), "CorruptDataError", "has 7 bytes, a frame has 2"),
    "65,535 channels": (riff(SOME, channels=65535, block=65534), "LimitExceededError", "65535 channels, at most 32"),
    "no channel": (riff(SOME, channels=0), "CorruptDataError", "without channels"),
    "1 Hz": (riff(SOME, rate=1), "LimitExceededError", "1 samples a second, 1000 to 384000"),
    "4 GHz": (riff(SOME, rate=4000000000), "LimitExceededError", "4000000000 samples a second"),
    "12 bits": (riff(SOME, bits=12), "UnsupportedError", "coding 1 with 12 bits"),
    "ADPCM": (riff(SOME, coding=2, bits=4), "UnsupportedError", "coding 2"),
    "a frame's size": (riff(SOME, block=4), "CorruptDataError", "are 2 bytes a frame, the header says 4"),
    "not a number": (riff(struct.pack("<2f", 1, float("nan")), coding=3, bits=32), "CorruptDataError", "frame 1 is not finite"),
    "infinite": (riff(struct.pack("<f", float("inf")), coding=3, bits=32), "CorruptDataError", "frame 0 is not finite"),
    "a short fmt": (b"RIFF\x14\0\0\0WAVEfmt \x04\0\0\0\1\0\1\0", "CorruptDataError", "the fmt chunk has 4 bytes"),
    "no sound at all": (b"\0" * 100, "UnsupportedError", "no WAV file"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_sound(case):
    raw, kind, message = BAD[case]
    with pytest.raises(getattr(vivace, kind), match=message):
        audio.read(raw)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000])
def test_what_a_pipe_writes(size):
    got, _ = audio.read(riff(SOME + b"\0", size=size))
    np.testing.assert_array_equal(got * 32768, [1, 2, 3, 4])


def test_limits():
    with pytest.raises(vivace.LimitExceededError, match="2 seconds, at most 1"):
        audio.read(riff(bytes(64000)), most_seconds=1)
    with pytest.raises(vivace.LimitExceededError, match="at most 1"):
        audio.samples_of(np.zeros(20000, np.float32), 16000, 16000, most_seconds=1)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_changed_bytes(data):
    """A file with some bytes changed, cut anywhere: an error of ours, or finite samples."""
    raw = bytearray(riff(SOME * 3, channels=2, extensible=data.draw(st.booleans()), chunks=b"LIST\x02\0\0\0ab"))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(raw[:data.draw(st.integers(0, len(raw)))])
    try:
        samples, rate = audio.read(raw)
    except vivace.Error:
        return
    assert np.isfinite(samples).all() and audio.LEAST_RATE <= rate <= audio.MOST_RATE and len(samples) <= len(raw)


@pytest.mark.parametrize("given, rate, kind, message", [
    (np.zeros(9, np.int32), None, "InvalidDTypeError", "got int32"),
    (np.zeros((2, 3, 4), np.float32), None, "InvalidShapeError", "wanted"),
    (np.zeros((2, 0), np.float32), None, "InvalidShapeError", "wanted"),
    (np.array([0, np.nan], np.float32), None, "InvalidArgumentError", "sample 1 is not finite"),
    (np.zeros(9, np.float32), 1, "LimitExceededError", "1 samples a second"),
    (np.zeros(9, np.float32), 1.5, "InvalidArgumentError", "whole number"),
    (riff(SOME), 16000, "InvalidArgumentError", "a file says its own"),
])
def test_arrays_that_are_no_sound(given, rate, kind, message):
    with pytest.raises(getattr(vivace, kind), match=message):
        audio.samples_of(given, rate, 16000)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 24000, 32000, 44100, 48000, 96000, 12345])
def test_resampled_tones(rate):
    """A tone below 0.4 of the lower rate is the same tone; one well above the new band is gone. The filter's 90 dB are 3.2e-5."""
    n, edge = rate, 400
    at, new = np.arange(n) / rate, np.arange(-(-n * 16000 // rate)) / 16000
    for hz in (50, 440, 0.4 * min(rate, 16000)):
        got = audio.resample(np.sin(2 * np.pi * hz * at).astype(np.float32), rate, 16000)
        assert len(got) == len(new)
        np.testing.assert_allclose(got[edge:-edge], np.sin(2 * np.pi * hz * new)[edge:-edge], rtol=0, atol=4e-5)
    if rate > 20000:
        gone = audio.resample(np.sin(2 * np.pi * min(0.49 * rate, 9500) * at).astype(np.float32), rate, 16000)
        assert np.abs(gone[edge:-edge]).max() < 4e-5


def features(x, bins, frames, valid=None):
    """Frames of x as Whisper hears them, computed where the tests run."""
    window, filters = np.array(_core.hann_window(400), np.float32), np.array(_core.mel_filters(bins), np.float32).reshape(bins, 201)
    out, row, peak = np.empty((frames, bins), np.float32), np.empty(frames, np.float32), np.empty(1, np.float32)
    arrays = [x[None].astype(np.float32), window, filters, out, row, peak]
    if device is not None:
        import torch

        arrays = [torch.from_numpy(np.ascontiguousarray(a)).cuda() for a in arrays]
    x, window, filters, out, row, peak = arrays
    ops.stft_mel(x, window=window, filters=filters, out=out, peak=row)
    ops.reduce(row[None], out=peak, kind="max")
    ops.mel_clamp(out, peak=peak, out=out)
    return (out if device is None else out.cpu().numpy()).T


def exactly(x, bins, frames):
    """The same in float64."""
    power, _ = powers(x[None].astype(np.float64), np.array(_core.hann_window(400), np.float32), 160, "reflect", frames)
    logs = logarithms(power[0] @ np.array(_core.mel_filters(bins)).reshape(bins, 201).T)
    return ((np.maximum(logs, logs.max() - 8) + 4) / 4).T


def check_features(x, bins, frames, want, columns=slice(None)):
    """Within 1e-6 of the formula; within 2e-5 of Whisper's own, whose transform is in f32: of 13,312 bands two, 8 decades
    below their frame's loudest, are further than that from the formula, and no nearer to us."""
    got, exact = features(x, bins, frames)[:, columns], exactly(x, bins, frames)[:, columns]
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-6)
    allowed = np.maximum(2e-5, np.abs(exact - want) + 1e-6)
    assert (np.abs(got - want) <= allowed).all() and (allowed > 2e-5).sum() <= 2


def test_features_are_whispers():
    want, x = packed_tensors(FIXTURE / "expected.safetensors"), packed_tensors(FIXTURE / "inputs.safetensors")["waveform_16k_i16"] / np.float32(32768)
    padded = np.pad(x, (0, 480000 - len(x)))
    for bins, key, pad in ((80, "mel_first_520_frames", "mel_pad_value"), (128, "mel_128bins_first_104_frames", "mel_128bins_pad_value")):
        check_features(padded, bins, 3000, want[key], slice(want[key].shape[1]))
        check_features(padded, bins, 3000, want[pad][0], slice(520, None))
    check_features(x, 80, 500, want["mel_5s_unpadded_last_40_frames"], slice(-40, None))
    check_features(x[:12345], 80, 77, want["mel_first_12345_samples"])


@pytest.mark.parametrize("shapes, attrs, message", [
    (dict(x=(1, 200), out=(1, 8)), {}, "pad=reflect wants more than W / 2 = 200 samples, got N = 200"),
    (dict(x=(1, 500), out=(5, 8)), {}, "a signal of 500 samples has 4 frames, got T = 5"),
    (dict(x=(1, 399), out=(1, 8)), {"pad": "none"}, "has 0 frames, got T = 1"),
    (dict(x=(2, 500), out=(3, 8)), {}, "2 signals have as many frames each, got T = 3"),
    (dict(x=(1, 500), out=(1, 8)), {"hop": 0}, "hop must be 1 to 65536, got 0"),
    (dict(x=(1, 500), window=(401,), out=(1, 8)), {}, "W must be even and 2 to 512, got 401"),
    (dict(x=(1, 500), filters=(8, 200), out=(1, 8)), {}, "400 samples a frame have 201 frequencies, got F = 200"),
])
def test_what_has_no_frames(shapes, attrs, message):
    shapes = dict(window=(400,), filters=(8, 201)) | shapes
    with pytest.raises(vivace.Error, match=message):
        ops.stft_mel(**{k: np.zeros(s, np.float32) for k, s in shapes.items()}, **attrs)


@pytest.mark.parametrize("kind, channels, rate", [("FLAC", 2, 44100), ("OGG", 1, 16000), ("MP3", 2, 48000), ("AIFF", 5, 8000)])
def test_other_files(kind, channels, rate):
    """Against what the soundfile package reads of them; limits; cut and changed bytes."""
    soundfile = pytest.importorskip("soundfile")
    x, held = np.sin(np.arange(rate) / 20).astype(np.float32) * 0.5, io.BytesIO()
    soundfile.write(held, np.stack([x * (c + 1) / channels for c in range(channels)], 1), rate, format=kind)
    raw = held.getvalue()
    held.seek(0)
    want = soundfile.read(held, dtype="float32", always_2d=True)[0].mean(1, dtype=np.float64).astype(np.float32)
    got, there = audio.read(raw)
    assert there == rate and np.array_equal(got, want)
    with pytest.raises(vivace.LimitExceededError, match="seconds"):
        audio.read(raw, most_seconds=0.5)
    rng = np.random.default_rng(len(kind))
    for _ in range(60):
        bad = np.frombuffer(raw, np.uint8)[:rng.integers(1, len(raw))].copy()
        bad[rng.integers(0, len(bad), rng.integers(0, 4))] = rng.integers(0, 256)
        try:
            assert np.isfinite(audio.read(bad.tobytes())[0]).all()
        except (vivace.CorruptDataError, vivace.UnsupportedError, vivace.LimitExceededError) as e:
            assert "libsndfile" in str(e) or isinstance(e, vivace.LimitExceededError) or "not finite" in str(e)


def test_without_the_library(tmp_path):
    """The error says where it was looked for, and WAV needs none."""
    raw = b"fLaC" + bytes(100)
    with pytest.raises(vivace.Error):
        audio.read(raw)  # whichever library there is has been chosen
    try:
        _core.set_sound_library(str(tmp_path / "none.so"))
        with pytest.raises(vivace.UnsupportedError, match="none.so was not found.*VIVACE_SNDFILE"):
            audio.read(raw)
        assert audio.read(riff(SOME))[1] == 16000
    finally:
        _core.set_sound_library("")
        audio._library.cache_clear()


@pytest.mark.parametrize("up, down", [(1, 3), (160, 441), (2, 1), (320, 147)])
def test_the_filter_is_its_formula(up, down):
    share = min(1.0, up / down)
    half = math.ceil(24 / share)
    at = np.arange(1 - half, half + 1)[None] - np.arange(up)[:, None] / up
    want = np.sinc(at * share * 0.945) * share * 0.945 * np.i0(9 * np.sqrt(np.maximum(0, 1 - (at / half) ** 2))) / np.i0(9)
    got = audio.resampling_filter(up, down)
    assert got.shape == want.shape and np.abs(got - want).max() <= 1e-7
