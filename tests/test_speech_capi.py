"""vivace/capi/speech.h on real weights: its windows, fallback, prompts and words are a second implementation (models/whisper/transcriber.h), which
says to the bit what Python's says."""
import ctypes
import functools
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_size_t, c_uint64
from pathlib import Path

import numpy as np
import pytest

from tests import speech_data
from tests.test_transcribe import model
from vivace import audio

ROWS = 5


def struct(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": [("size", c_size_t), *fields.items()]})


Load = struct("Load", path=c_char_p, device=c_char_p, precision=c_char_p, threads=c_int, beams=c_int, random=c_int, act_scales=POINTER(c_float), act_scale_count=c_int)
Options = struct("Options", language=c_char_p, translate=c_int, beams=c_int, no_condition=c_int, no_timestamps=c_int, words=c_int, prompt=c_char_p, hotwords=c_char_p, temperatures=POINTER(c_float), count=c_size_t,
                 best_of=c_int, seed=c_uint64)
Info = struct("Info", language=c_char_p, segments=c_size_t)
Segment = struct("Segment", start=c_double, end=c_double, text=c_char_p, tokens=POINTER(c_int32), count=c_size_t, avg_logprob=c_double, no_speech=c_double, compression_ratio=c_double, temperature=c_double,
                 logprobs=POINTER(c_float), words=c_size_t)
Word = struct("Word", start=c_double, end=c_double, probability=c_double, text=c_char_p)


def filled(kind, **values):
    return kind(ctypes.sizeof(kind), **values)


@functools.cache
def library():
    found = sorted((Path(__file__).parents[1] / "build").glob("*/libvivace.so"), key=lambda p: p.stat().st_mtime)
    lib = ctypes.CDLL(str(found[-1])) if found else None
    if lib is None or not hasattr(lib, "vv_transcript_get_word"):
        pytest.skip("no libvivace.so of this tree: ./test builds it")
    lib.vv_last_error.restype = c_char_p
    return lib


@functools.cache
def loaded(name):
    lib, out = library(), ctypes.c_void_p()
    given = filled(Load, path=str(model(name)._folder).encode(), device=b"cpu", threads=2, beams=ROWS)
    assert lib.vv_speech_load(ctypes.byref(given), ctypes.byref(out)) == 0, lib.vv_last_error()
    return out


def asked(*, temperature=(0.0,), prompt=None, hotwords=None, language=None, condition=True, timestamps=True, task="transcribe", words=False, beams=1, best_of=0, seed=0):
    given = (c_float * len(temperature))(*temperature)
    text = lambda t: None if t is None else t.encode()  # noqa: E731
    return filled(Options, language=text(language), translate=task == "translate", beams=beams, no_condition=not condition, no_timestamps=not timestamps, words=words, prompt=text(prompt), hotwords=text(hotwords),
                  temperatures=given, count=len(given), best_of=best_of, seed=seed)


def said(name, x, options):
    """(language, segments) as C has them, or its error."""
    lib, t, info = library(), ctypes.c_void_p(), filled(Info)
    if lib.vv_speech_transcribe(loaded(name), x.ctypes.data_as(ctypes.c_void_p), c_size_t(len(x)), ctypes.byref(options), ctypes.byref(t)):
        return lib.vv_last_error().decode()
    assert lib.vv_transcript_get_info(t, ctypes.byref(info)) == 0
    out = []
    for i in range(info.segments):
        s, words = filled(Segment), []
        assert lib.vv_transcript_get_segment(t, c_size_t(i), ctypes.byref(s)) == 0
        for j in range(s.words):
            w = filled(Word)
            assert lib.vv_transcript_get_word(t, c_size_t(i), c_size_t(j), ctypes.byref(w)) == 0
            words.append((w.text.decode(), w.start, w.end, w.probability))
        assert lib.vv_transcript_get_word(t, c_size_t(i), c_size_t(s.words), ctypes.byref(filled(Word))) != 0 and b"there are" in lib.vv_last_error()
        out.append((s.start, s.end, s.text.decode(), s.tokens[:s.count], s.logprobs[:s.count], round(s.temperature, 6), s.compression_ratio, s.avg_logprob, s.no_speech, words))
    language = info.language.decode()
    lib.vv_transcript_destroy(t)
    return language, out


def pythons(t):
    return t.language, [(s.start, s.end, s.text, s.tokens, s.logprobs, s.temperature, s.compression_ratio, s.avg_logprob, s.no_speech_prob, [(w.text, w.start, w.end, w.probability) for w in s.words]) for s in t.segments]


def sentences(*names, gap=10.0):
    return np.concatenate([p for n in names for p in (audio.read(speech_data.librivox()[n][0])[0], np.zeros(round(gap * 16000), np.float32))])


@pytest.mark.parametrize("options", [
    dict(),
    dict(words=True, condition=False),
    dict(words=True, prompt="Mister Jon Dashwoode.", hotwords="Elinor"),
    dict(timestamps=False),
    dict(temperature=(0.9,), best_of=3, seed=5, words=True),
], ids=lambda o: "-".join(o) or "plain")
def test_python_says_the_same(options):
    """Two windows and more."""
    x = sentences("0870", "0930", "0880")
    got = said("whisper-tiny.en", x, asked(**options))
    want = pythons(model("whisper-tiny.en").transcribe(x, **{"temperature": (0.0,), **options}))
    assert got == want and len(got[1]) >= (3 if options.get("timestamps", True) else 2) and all(s[9] for s in got[1]) == options.get("words", False)


@pytest.mark.parametrize("beams, temperature", [(1, (0.0, 0.4)), (5, (0.0,))])
def test_text_that_goes_round_in_circles(beams, temperature):
    """The telephone: times run ahead, text repeats itself; both decode again without timestamps, and then hotter."""
    x = audio.samples_of(speech_data.telephone()[0], None, 16000)
    options = dict(beams=beams, temperature=temperature, words=True, seed=1)
    got = said("whisper-tiny.en", x, asked(**options))
    assert got == pythons(model("whisper-tiny.en").transcribe(x, best_of=ROWS, **options)) and len(got[1]) > 3


def test_other_languages_words():
    """Without spaces; its language is found."""
    name, raw = next((n, raw) for n, raw in speech_data.spoken().items() if n.startswith("ja/"))
    x = audio.samples_of(raw, None, 16000)
    got = said("whisper-base", x, asked(words=True))
    assert got == pythons(model("whisper-base").transcribe(x, temperature=0.0, words=True)) and got[0] == "ja" and len(got[1][0][9]) > 3, name


def test_refused():
    x = np.zeros(1600, np.float32)
    for options, message in ((dict(prompt="word " * 300), "prompt: 30"), (dict(hotwords="word " * 300), "hotwords: 30"), (dict(temperature=(0.0, float("nan"))), "temperature: wanted 0 to 10, got nan"),
                             (dict(temperature=(11.0,)), "temperature"), (dict(temperature=()), "got none"), (dict(temperature=(0.2,), best_of=6), "loaded with 5 rows"), (dict(beams=6), "loaded with 5 rows"),
                             (dict(language="xx"), "'xx'"), (dict(task="translate"), "English alone"), (dict(temperature=(0.0,) * 65), "at most 64, got 65")):
        assert message in said("whisper-tiny.en", x, asked(**options)), options
    bad = asked()
    bad.prompt = b"\xff\xfe"
    assert "prompt: it is no UTF-8" in said("whisper-tiny.en", x, bad)
    short = asked(prompt="x" * 4000)
    short.size = Options.no_timestamps.offset  # a program of before: nothing behind it is read
    assert said("whisper-tiny.en", x, short) == ("en", [])
