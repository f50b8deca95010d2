"""Text that nobody said stays out: odd words between silences, windows without a voice, times that leave no room for their text."""
import random
import zlib

import numpy as np
import pytest

import vivace
from tests import speech_data
from tests.test_transcribe import model, plain
from vivace import audio
from vivace.speech import Word, guards
from vivace.speech.result import compression_ratio


def segment(start, end, *words):
    """Words of even length from start to end: (text, probability) or text."""
    words = [w if isinstance(w, tuple) else (w, 0.9) for w in words]
    at = np.linspace(start, end, len(words) + 1)
    return {"start": start, "end": end, "words": [Word(t, float(a), float(b), p) for (t, p), a, b in zip(words, at, at[1:])]}


SAID = (" what", " was", " said", " here.")
ODD = ((" Thanks", 0.01), (" for", 0.02), (" watching!", 0.03))


@pytest.mark.parametrize("words, want", [
    (segment(0, 1.2, *SAID), False),
    (segment(0, 1.2, *ODD), True),
    (segment(0, 0.2, *SAID), True),          # 50 ms a word: 4 x 1.25
    (segment(0, 6, " you"), True),           # six seconds: 4
    (segment(0, 2.5, " you"), False),
    (segment(0, 1, (" you", 0.1)), True),    # one of one
    (segment(0, 9, *SAID, *[" and"] * 4, *ODD * 3), False),  # eight are looked at
    (segment(0, 1, (" ...", 0.01), " you"), False),          # marks are no words
    (segment(0, 1), False),
])
def test_odd(words, want):
    assert guards.odd(words["words"]) == want


@pytest.mark.parametrize("parts, spoken, stay, after", [
    ([segment(0, 3, *SAID), segment(3, 6, *SAID)], 0, 2, None),
    ([segment(12, 13, *ODD)], 9, 0, 12),                                # first and odd: on to where it is
    ([segment(0, 3, *SAID), segment(10, 11, *ODD), segment(20, 23, *SAID)], 0, 1, 10),   # between pauses
    ([segment(0, 3, *SAID), segment(4, 5, *ODD), segment(5.5, 9, *SAID)], 0, 3, None),   # among words
    ([segment(0, 3, *SAID), segment(10, 11, *ODD), segment(11.5, 12, *ODD), segment(12.2, 15, *SAID)], 0, 1, 10),
    ([segment(0, 3, *SAID), segment(28.5, 29.5, *ODD)], 0, 1, 60),      # at the window's end; the sound ends there too
    ([segment(1, 2, *ODD), segment(10, 12, *SAID)], 0, 0, 1),
    ([], 0, 0, None),
])
def test_after_silence(parts, spoken, stay, after):
    content = 60.0 if after != 60 else 31.0
    got = guards.after_silence(parts, 0.0, 30.0, content, spoken, 2.0)
    assert got == (stay, content if after == 60 else after)


def test_how_often_text_repeats_itself():
    """Drawn texts, repeated and not, of one byte a character and three: the bytes that zlib takes for them, but for 2 and 4 % (matches are looked for otherwise)."""
    said = " ".join(text for _, text in speech_data.librivox().values()).split()
    for seed in range(300):
        rng = random.Random(seed)
        at, n = rng.randrange(len(said)), rng.randint(1, 60)
        text = (" ".join(said[at:at + n]) if seed % 3 else "".join(chr(rng.randint(0x3040, 0x30FF)) for _ in range(n))) * rng.choice((1, 1, 2, 5, 20))
        raw, ratio = text.encode(), compression_ratio(text)
        want = len(zlib.compress(raw))
        assert abs(len(raw) / ratio - want) <= 2 + 0.04 * want, (seed, text, ratio)
    assert compression_ratio("") == 0 and compression_ratio("no, " * 40) > 2.4 > compression_ratio(" ".join(said[:60]))


def test_times_leave_no_room():
    decode = lambda ids: "".join(chr(i) for i in ids)  # noqa: E731
    part = lambda text, end: {"text_tokens": [ord(c) for c in text], "start": 0.0, "end": end}  # noqa: E731
    assert guards.too_fast([part("a quiet word", 5.0), part("twenty-five characters and more", 1.0)], decode)
    assert not guards.too_fast([part("twenty-five characters and more", 1.5), part("short", 0.0)], decode)
    assert not guards.too_fast([], decode)
    text = [ord(c) for c in "Who? I am. And"]
    found = guards.sentences(text, list(range(len(text) + 1)), decode, "en")
    assert [(decode(ids), a, b) for ids, a, b in found] == [("Who?", 0, 4), (" I am.", 4, 10), (" And", 10, 14)]


@pytest.mark.parametrize("what", speech_data.NOBODY)
def test_nobody_speaks(what):
    """All of it is heard, and nothing is written down."""
    assert model("whisper-tiny.en").transcribe(speech_data.nobody(what, 30), vad="guard", temperature=0.0).text == ""


def test_speech_stays():
    """A sentence, 20 seconds of a quiet room, the sentence again: both are there, and nothing between them."""
    raw, _ = speech_data.librivox()["0890"]
    y = audio.read(raw)[0]
    x = np.concatenate([y, np.random.default_rng(2).normal(0, 0.001, 16000 * 20).astype(np.float32), y])
    t = model("whisper-tiny.en").transcribe(x, words=True, hallucination_silence=2.0, vad="guard", temperature=0.0)
    assert [plain(t.text).count(w) for w in ("unless", "rather", "selfish")] == [2, 4, 2], t.text
    assert not [w for w in t.words if 7 < w.start < 24], t.words


@pytest.mark.parametrize("options", [dict(hallucination_silence=2.0), dict(hallucination_silence=0, words=True), dict(hallucination_silence="x", words=True), dict(vad="guards")])
def test_refused(options):
    with pytest.raises(vivace.InvalidArgumentError, match=next(iter(options))):
        model("whisper-tiny.en").transcribe(np.ones(1600, np.float32) * 0.01, **options)
