"""Words and when they were said: tokens split into words, times from the network's alignment, and what such times get wrong put right."""
from __future__ import annotations

import string
from dataclasses import dataclass
from statistics import median

from vivace.speech.result import Word

_BEFORE = "\"'\u201c\u00bf([{-"
_AFTER = "\"'.\u3002,\uff0c!\uff01?\uff1f:\uff1a\u201d)]}\u3001"
ENDS = ".\u3002!\uff01?\uff1f"
MARKS = _BEFORE + _AFTER
_UNSPACED = {"zh", "ja", "th", "lo", "my", "yue"}  # written without spaces
_LONGEST_MEDIAN = 0.7  # seconds
STEP = 0.02            # of the alignment


@dataclass
class _Timed:
    text: str
    tokens: list[int]
    start: float
    end: float
    probability: float


def characters(tokens, decode) -> list[tuple[str, list[int]]]:
    """Tokens in runs that are whole characters. What never becomes one stays the run that it is in."""
    whole, out, run, at = decode(tokens), [], [], 0
    for t in tokens:
        run.append(t)
        text = decode(run)
        # A replacement character that the whole text has at this place is a character of its own.
        if "\ufffd" not in text or (at + text.index("\ufffd") < len(whole) and whole[at + text.index("\ufffd")] == "\ufffd"):
            out.append((text, run))
            at += len(text)
            run = []
    if run:
        out.append((decode(run), run))
    return out


def split(tokens, decode, language: str) -> list[tuple[str, list[int]]]:
    """Tokens in runs that are words, with the space before them."""
    runs = characters(tokens, decode)
    if language in _UNSPACED:
        return runs
    words = []
    for text, ids in runs:
        if not words or text.startswith(" ") or text.strip() in string.punctuation:
            words.append((text, list(ids)))
        else:
            words[-1] = (words[-1][0] + text, words[-1][1] + ids)
    return words


def timed(tokens, starts, probabilities, decode, language) -> list[_Timed]:
    """Words of `tokens` by starts[i], the step at which token i begins; starts has one more, where the last one ends."""
    out, at = [], 0
    for text, ids in split(tokens, decode, language):
        n = len(ids)
        out.append(_Timed(text, ids, starts[at] * STEP, starts[at + n] * STEP, sum(probabilities[at:at + n]) / n))
        at += n
    return out


def _longest(words) -> tuple[float, float]:
    """The median duration, and what no word next to a pause may be longer than."""
    lengths = [w.end - w.start for w in words if w.end > w.start]
    usual = min(_LONGEST_MEDIAN, median(lengths)) if lengths else 0.0
    return usual, 2 * usual


def cut_at_sentences(words, most: float) -> None:
    """A word that is too long at a sentence's end has a pause in it."""
    for before, word in zip(words, words[1:]):
        if word.end - word.start > most > 0:
            if word.text in ENDS:
                word.end = word.start + most
            elif before.text in ENDS:
                word.start = word.end - most


def join_punctuation(words) -> None:
    """Marks join the word that they open or close; their own place stays empty."""
    at = len(words) - 1
    for i in range(len(words) - 2, -1, -1):
        mark, word = words[i], words[at]
        if mark.text.startswith(" ") and mark.text.strip() in _BEFORE and mark.text.strip():
            word.text, word.tokens = mark.text + word.text, mark.tokens + word.tokens
            mark.text, mark.tokens = "", []
        else:
            at = i
    at = 0
    for i in range(1, len(words)):
        word, mark = words[at], words[i]
        if not mark.text:
            continue
        if not word.text.endswith(" ") and mark.text in _AFTER:
            word.text, word.tokens = word.text + mark.text, word.tokens + mark.tokens
            mark.text, mark.tokens = "", []
        else:
            at = i


def place(segments, words, offset: float, spoken: float) -> float:
    """Gives each of `segments` (dicts with start, end, text tokens) its words, and both the same ends. `spoken`: where the
    last word before ended. Returns where the last one ends now."""
    usual, most = _longest(words)
    cut_at_sentences(words, most)
    join_punctuation(words)
    at = 0
    for s in segments:
        own, taken = [], 0
        while at < len(words) and taken < len(s["text_tokens"]):
            w = words[at]
            if w.text:
                own.append([w.text, round(offset + w.start, 2), round(offset + w.end, 2), w.probability])
            taken += len(w.tokens)
            at += 1
        if own:
            _after_pause(own, spoken, usual, most)
            _meet(s, own, usual)
            spoken = s["end"]
        s["start"], s["end"] = round(s["start"], 2), round(s["end"], 2)
        s["words"] = [Word(text, round(a, 2), round(b, 2), p) for text, a, b, p in own]
    return spoken


def _after_pause(own, spoken, usual, most) -> None:
    """The first words after a pause must not begin in it."""
    first, second = own[0], own[1] if len(own) > 1 else None
    if first[2] - spoken > 4 * usual and (first[2] - first[1] > most or (second and second[2] - first[1] > 2 * most)):
        if second and second[2] - second[1] > most:
            first[2] = second[1] = max(second[2] / 2, second[2] - most)
        first[1] = max(0.0, first[2] - most)


def _meet(s, own, usual) -> None:
    """A segment's own ends count where they are within half a second of a word's that sticks out."""
    first, last = own[0], own[-1]
    if s["start"] < first[2] and s["start"] - 0.5 > first[1]:
        first[1] = max(0.0, min(first[2] - usual, s["start"]))
    else:
        s["start"] = first[1]
    if s["end"] > last[1] and s["end"] + 0.5 < last[2]:
        last[2] = max(last[1] + usual, s["end"])
    else:
        s["end"] = last[2]
