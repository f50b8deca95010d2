"""Several sounds at once: to the bit what each is alone, whatever it stands beside; stretches of one sound side by side."""
import functools

import numpy as np
import pytest

import vivace
from tests import speech_data
from tests.test_transcribe import errors, model, plain
from vivace import audio, cli


@functools.cache
def wide():
    return vivace.load_model(speech_data.weights("whisper-tiny.en"), device="cpu", threads=2, windows=3, rows=9)


def told(t):
    return [(s.id, s.start, s.end, s.text, s.tokens, s.avg_logprob, s.no_speech_prob, s.words) for s in t.segments]


def test_several_are_each_alone():
    """Three sounds of none to two windows at once, draws of each beside one another: ids, times and probabilities to the bit."""
    x = {n: audio.read(raw)[0] for n, (raw, _) in speech_data.librivox().items()}
    sounds = [x["0890"], np.concatenate([x["0870"], np.zeros(16000 * 22, np.float32), x["0930"]]), np.zeros(100, np.float32)]
    options = dict(words=True, temperature=0.9, best_of=3, logprob_limit=None, max_tokens=24, seed=5)
    together = wide().transcribe_all(sounds, **options)
    assert [told(t) for t in together] == [told(model("whisper-tiny.en").transcribe(s, **options)) for s in sounds]
    assert [t.duration for t in together] == [round(len(s) / 16000, 3) for s in sounds]
    assert wide().transcribe_all([]) == []


def test_stretches_side_by_side():
    """Sentences with pauses, each heard independently: the words of each, at their times."""
    said = [speech_data.librivox()[n] for n in ("0890", "0930", "0880")]
    gap = np.zeros(16000 * 3, np.float32)
    x = np.concatenate([p for raw, _ in said for p in (gap, audio.read(raw)[0])])
    seen = []
    t = wide().transcribe(x, vad=vivace.speech.VadSettings(longest=6), batched=True, on_progress=lambda *at: seen.append(at))
    assert errors(" ".join(text for _, text in said), t.text) <= 3, t.text
    assert [s.id for s in t.segments] == list(range(len(t.segments))) and len(t.segments) >= 3
    times = [v for s in t.segments for v in (s.start, s.end)]
    assert times == sorted(times) and 2.5 < times[0] < 4 and seen[-1][0] == seen[-1][1]
    assert wide().transcribe(gap, vad=True, batched=True).segments == []


@pytest.mark.parametrize("options, message", [(dict(batched=True), "batched: wanted with vad"), (dict(batched=True, vad="guard"), "batched"), (dict(batched="x", vad=True), "batched"),
                                              (dict(on_progress=print), "on_progress: no such option"), (dict(sing=True), "sing: no such option")])
def test_refused(options, message):
    with pytest.raises(vivace.InvalidArgumentError, match=message):
        wide().transcribe_all([np.zeros(100, np.float32)], **options)


def test_one_bad_sound():
    with pytest.raises(vivace.CorruptDataError):
        wide().transcribe_all([np.zeros(100, np.float32), b""])


def test_command(tmp_path, capsys):
    """Several files into a folder, a file each."""
    for n in ("0880", "0930"):
        (tmp_path / f"{n}.wav").write_bytes(speech_data.librivox()[n][0])
    files, out, to = [str(tmp_path / f"{n}.wav") for n in ("0880", "0930")], tmp_path / "out", ["--model", speech_data.weights("whisper-tiny.en"), "--device", "cpu", "--format", "srt"]
    out.mkdir()
    assert cli.main(["transcribe", *files, "-o", str(out), "--windows", "2", *to]) == 0
    assert "young" in (out / "0880.srt").read_text() and "amiable" in (out / "0930.srt").read_text()
    assert plain((out / "0880.srt").read_text())
    capsys.readouterr()
    assert cli.main(["transcribe", *files, *to]) == 1 and "--out" in capsys.readouterr().err
    assert cli.main(["transcribe", files[0], files[0], "-o", str(out), *to]) == 1 and "twice" in capsys.readouterr().err
