"""Sound that goes on: the same text however it is cut, stable text that never changes, nothing lost at its end, a day of silence, and what is refused."""
import functools
import io
import json
import random
import sys

import numpy as np
import pytest

import vivace
from tests import speech_data
from tests.test_transcribe import errors, model, plain
from vivace import audio, cli, speech
from vivace.speech import stream, vad
from vivace.speech import words as word_times


@functools.cache
def said():
    """Two short sentences with pauses and their text."""
    two = [speech_data.librivox()[n] for n in ("0930", "0880")]
    gap = np.zeros(16000, np.float32)
    return np.concatenate([gap, *(p for raw, _ in two for p in (audio.read(raw)[0], gap))]), " ".join(text for _, text in two)


class Tells:
    """A policy whose text is what it was given: any other cut of any buffer changes it."""

    cut_above = 3.0

    def __init__(self, model, settings, context):
        self.context, self.n = list(context), 0

    def update(self, samples, last):
        yield from ()
        self.n += 1
        text = f"{self.n}:{len(samples)}:{hash(samples.tobytes()) & 0xFFFF}:{int(last)};"
        return (text, "") if last or self.n % 3 == 0 else ("", text)

    def cut(self, seconds):
        yield from ()
        return seconds / 2

    def finished(self):
        return [*self.context, self.n]


def cuts(x, sizes):
    at, out = 0, []
    while at < len(x):
        n = sizes()
        out.append(x[at:at + n])
        at += n
    return out


def heard(pieces, **options):
    with model("whisper-tiny.en").stream_audio(**options) as s:
        out = [h for p in pieces for h in s.push(p)] + s.finish()
        assert "".join(h.stable for h in out) == s.stable and s.partial == ""
    return out


@pytest.mark.parametrize("rate", [16000, 44100])
def test_any_pieces_are_the_same_sound(rate, monkeypatch):
    """Pieces of every size, drawn: the same updates of the same buffers, to the bit."""
    monkeypatch.setitem(stream.POLICIES, "alignatt", Tells)
    x = audio.resample(said()[0], 16000, rate)
    want = heard([x], rate=rate)
    assert len(want) > 4 and sum(h.final for h in want) == 2
    for seed in range(4):
        rng = random.Random(seed)
        most = rng.choice((300, 3000, 30000, 300000))
        assert heard(cuts(x, lambda: rng.randint(0, most)), rate=rate) == want, seed
    if rate == 16000:
        i16 = np.clip(np.rint(x * 32768), -32768, 32767).astype("<i2")
        want, rng = heard([i16]), random.Random(7)
        assert heard(cuts(i16.tobytes(), lambda: rng.randint(1, 4001))) == want, "bytes, cut within samples"
        both = np.stack([i16, i16], 1)
        assert heard(cuts(both.tobytes(), lambda: rng.randint(1, 9001)), channels=2) == want
        assert heard(cuts(both, lambda: rng.randint(1, 9001)), channels=2) == want


@pytest.mark.parametrize("rate", [8000, 22050, 48000])
def test_pieces_are_resampled_as_files_are(rate):
    x, rng = np.random.default_rng(rate).normal(0, 0.1, rate + 77).astype(np.float32), random.Random(rate)
    pieces = audio.Pieces(rate, 1, 16000)
    got = np.concatenate([*(pieces.push(p) for p in cuts(x, lambda: rng.randint(0, 2000))), pieces.finish()])
    np.testing.assert_array_equal(got, audio.resample(x, rate, 16000))


@pytest.mark.parametrize("policy, most", [("alignatt", 2), ("local_agreement", 3)])
def test_text(policy, most):
    """Within two words of what the whole file is heard as, in utterances, the last word too; each update's partial text is nothing yet."""
    x, want = said()
    rng = random.Random(3)
    out = heard(cuts(x, lambda: rng.randint(1, 9000)), policy=policy, step=2.0 if policy == "alignatt" else 1.5)
    text = "".join(h.stable for h in out)
    assert errors(want, text) <= errors(want, model("whisper-tiny.en").transcribe(x).text) + most, text
    assert plain(text)[-1] == plain(want)[-1]
    finals = [h for h in out if h.final]
    assert len(finals) == 2 and all(h.start < h.at for h in out) and [h.at for h in out] == sorted(h.at for h in out)
    early = [h for h in out if h.stable and not h.final]
    assert early, "text comes before its utterance ends"


def test_streams_of_one_model_take_turns():
    """Two in alternate pieces, and a transcription between them: each says what it says alone."""
    x, m = said()[0][:16000 * 5], model("whisper-tiny.en")
    want = heard([x], step=2.0)
    with m.stream_audio(step=2.0) as a, m.stream_audio(step=2.0) as b:
        told, half = ([], []), len(x) // 2
        told[0].extend(a.push(x[:half]))
        told[1].extend(b.push(x[:half + 4000]))
        m.transcribe(x[half:half + 16000], temperature=0.0)
        told[0].extend(a.push(x[half:]) + a.finish())
        told[1].extend(b.push(x[half + 4000:]) + b.finish())
    assert told[0] == want and told[1] == want


def test_another_language_is_found():
    raw = speech_data.spoken()["es/pangrama"]
    x = audio.samples_of(raw, None, 16000)
    with model("whisper-base").stream_audio(step=10.0) as s:
        s.push(x), s.finish()
        assert len({"el", "la", "un", "de"} & set(plain(s.stable))) > 0, s.stable


class Silent:
    """An activity detector that costs nothing."""

    def push(self, samples):
        return np.zeros(len(samples) // vad.FRAME, np.float32)

    reset = finish = None


def test_a_day_of_silence():
    """24 hours: nothing is heard, and what is held does not grow."""
    s = model("whisper-tiny.en").stream_audio()
    s._activity, hour, held = Silent(), np.zeros(3600 * 16000, np.float32), []
    for _ in range(24):
        assert s.push(hour) == []
        held.append(s._sound.nbytes)
    assert s.seconds == 86400 and max(held) == held[0] <= 64000 and s.finish() == []


def test_a_minute_of_noise_and_music():
    at = np.arange(20 * 16000) / 16000
    x = np.concatenate([np.random.default_rng(1).normal(0, 0.03, len(at)), 0.3 * np.sin(2 * np.pi * 440 * at), 0.1 * sum(np.sin(2 * np.pi * f * 2 ** (np.floor(at / 2) % 5 / 12) * at) for f in (220, 277, 330))])
    assert "".join(h.stable for h in heard([x.astype(np.float32)])) == ""


def test_one_sample_at_a_time(monkeypatch):
    """Two seconds in 32,000 pieces, and in bytes, each half a sample: the updates of the whole."""
    monkeypatch.setitem(stream.POLICIES, "alignatt", Tells)
    x = said()[0][12000:44000]
    i16 = np.clip(np.rint(x * 32768), -32768, 32767).astype("<i2")
    want = heard([i16])
    assert want and want == heard([i16[i:i + 1] for i in range(len(i16))])
    assert want == heard([bytes([b]) for b in i16[:8000].tobytes()] + [i16[8000:].tobytes()])
    assert want == heard([i16.tobytes() + b"\1"]), "half a sample at the end is none"


def test_where_sound_stops():
    """Nothing, one sample, half a sample, in the middle of a word: text of what came."""
    assert heard([]) == [] and heard([np.zeros(1, np.float32)]) == [] and heard([b"\1"]) == []
    x = said()[0][:16000 * 2]
    (last,) = [h for h in heard([x, np.zeros(0, np.float32)], step=5.0) if h.final]
    assert len(plain(last.stable)) >= 1
    one = np.concatenate([np.zeros(300, np.float32), np.ones(1, np.float32)])
    assert heard(list(one.reshape(-1, 1)[:, :1].reshape(-1, 1)[:50])) == []


@pytest.mark.parametrize("piece, kind, message", [
    (np.array([0, np.nan], np.float32), "InvalidArgumentError", "sample 1 is not finite"),
    (np.array([np.inf], np.float32), "InvalidArgumentError", "not finite"),
    (np.zeros(4, np.int32), "InvalidDTypeError", "got int32"),
    (np.zeros((4, 2), np.float32), "InvalidShapeError", r"wanted \[N, 1\] or \[N\]"),
    (np.float32(1), "InvalidShapeError", "wanted"),
    ("sound", "InvalidShapeError", "wanted"),
])
def test_refused_pieces(piece, kind, message, monkeypatch):
    """A piece that is refused leaves no trace."""
    monkeypatch.setitem(stream.POLICIES, "alignatt", Tells)
    x, out = said()[0], []
    with model("whisper-tiny.en").stream_audio() as s:
        out += s.push(x[:20000])
        with pytest.raises(getattr(vivace, kind), match=message):
            s.push(piece)
        out += s.push(x[20000:]) + s.finish()
    assert out == heard([x])
    with pytest.raises(vivace.ClosedError, match="has ended"):
        s.push(x)
    with pytest.raises(vivace.ClosedError):
        s.finish()
    s.close()


@pytest.mark.parametrize("options, kind, message", [
    (dict(policy="best"), "InvalidArgumentError", "policy: wanted one of alignatt, local_agreement"),
    (dict(step=0), "InvalidArgumentError", "step: wanted 0.1 to 10"),
    (dict(step="x"), "InvalidArgumentError", "step"),
    (dict(rate=1), "InvalidArgumentError", "rate"),
    (dict(channels=65535), "InvalidArgumentError", "channels"),
    (dict(vad=True), "InvalidArgumentError", "a VadSettings"),
    (dict(language="xx"), "InvalidArgumentError", "language: wanted one of"),
    (dict(task="translate"), "UnsupportedError", "English alone"),
    (dict(prompt="word " * 300), "LimitExceededError", "prompt"),
])
def test_refused_options(options, kind, message):
    with pytest.raises(getattr(vivace, kind), match=message):
        model("whisper-tiny.en").stream_audio(**options)


def test_a_closed_model():
    m = vivace.load_model(speech_data.weights("whisper-tiny.en"), device="cpu", threads=1)
    s = m.stream_audio()
    m.close()
    with pytest.raises(vivace.ClosedError):
        s.push(np.zeros(9, np.float32))


@pytest.mark.parametrize("change, kind, message", [
    (dict(heads=[(9, 0)]), "InvalidArgumentError", "head 0 of layer 9"),
    (dict(content=1501), "InvalidArgumentError", "content: wanted 0 to 1500"),
    (dict(margin=-1), "InvalidArgumentError", "margin"),
    (dict(rewind=0), "InvalidArgumentError", "rewind"),
    (dict(candidates=2), "InvalidArgumentError", "wanted one candidate"),
])
def test_refused_follows(change, kind, message):
    core = model("whisper-tiny.en")._live
    core.encode([(np.zeros(0, np.float32), 0, 0, 0.0)])
    with pytest.raises(getattr(vivace, kind), match=message):
        core.follow({"prompt": [core.tokens()["sot"]], "heads": [(0, 0)], "content": 10} | change)


def test_places_are_where_words_are():
    """Where a token is heard against where its word is by dynamic time warping."""
    m, (raw, _) = model("whisper-tiny.en"), speech_data.librivox()["0890"]
    x, core = audio.read(raw)[0], m._live
    t = m.transcribe(x, words=True, temperature=0.0)
    core.encode([(x, 0, 3000, core.peak(x))])
    tokens, places, end, _ = core.follow({"prompt": m._lead("en", "transcribe", False), "heads": m.alignment_heads, "content": len(x) // 320, "margin": 0})
    assert end == "eot" and len(tokens) == len(places) and errors(t.text, m.decode(tokens)) == 0
    words, at, off = iter(w for w in t.words if plain(w.text)), 0, []
    for text, ids in word_times.split(tokens, m.decode, "en"):
        if plain(text):
            word = next(words)
            off.append(max(word.start - places[at] * 0.02, places[at] * 0.02 - word.end, 0))
        at += len(ids)
    assert np.median(off) <= 0.1 and np.mean(np.array(off) <= 0.5) >= 0.8, off
    stopped = core.follow({"prompt": m._lead("en", "transcribe", False), "heads": m.alignment_heads, "content": 100, "margin": 25})
    assert stopped[2] == "margin" and all(p < 75 for p in stopped[1][:-1]) and stopped[1][-1] >= 75


def test_listen(tmp_path, capsys, monkeypatch):
    """A file at the pace at which it plays, raw bytes, and no microphone."""
    raw, want = speech_data.librivox()["0930"]
    (tmp_path / "a.wav").write_bytes(raw)
    to = ["--model", speech_data.weights("whisper-tiny.en"), "--device", "cpu", "--step", "2"]
    assert cli.main(["listen", str(tmp_path / "a.wav"), "--pace", "8", *to]) == 0
    text = capsys.readouterr().out
    assert errors(want, text) <= 1 and text.endswith("\n")
    i16 = np.clip(np.rint(audio.read(raw)[0] * 32768), -32768, 32767).astype("<i2")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(i16.tobytes() + b"\1")))
    assert cli.main(["listen", "-", "--json", *to]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "".join(h["stable"] for h in lines).split() == text.split() and lines[-1]["final"]
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert cli.main(["listen", *to]) == 1 and "vivace[microphone]" in capsys.readouterr().err
    assert cli.main(["listen", str(tmp_path / "a.wav"), "--pace", "-1", *to]) == 1
    assert speech.SpeechStream is stream.SpeechStream
