"""What keeps text that nobody said out: text faster than speech, words that cannot have been said as they are, windows without a voice."""
from __future__ import annotations

from vivace.speech import words as word_times

FAST = 25.0          # characters a second of a segment's text that nobody speaks
_LEAST = 20          # characters of a segment that is looked at
SURELY_SILENT = 0.9  # no_speech above which a window is heard only where somebody speaks
_UNLIKELY, _SHORT, _LONG = 0.15, 0.133, 2.0  # probability; seconds of a word
_LOOKED_AT, _ODD = 8, 3.0  # words of a segment; score from which it is odd
_NEAR = 2.0          # seconds of a window's ends


def too_fast(parts, decode) -> bool:
    """Whether a segment has more text than its times have room for: the network lost count of time, and what follows is not where it says."""
    texts = [(decode(p["text_tokens"]).strip(), p["end"] - p["start"]) for p in parts]
    return any(len(text) >= _LEAST and len(text) > FAST * seconds for text, seconds in texts)


def sentences(tokens, starts, decode, language) -> list[tuple[list[int], int, int]]:
    """(tokens, first and last place) of each sentence of text by the alignment's starts."""
    out, ids, at, begin = [], [], 0, 0
    for text, run in word_times.split(tokens, decode, language):
        ids = ids + run
        at += len(run)
        if text.strip()[-1:] in word_times.ENDS and text.strip():
            out.append((ids, starts[begin], starts[at]))
            ids, begin = [], at
    return out + ([(ids, starts[begin], starts[at])] if ids else [])


def odd(words) -> bool:
    """Whether a segment's words are unlikely, or too short or too long to have been said."""
    words = [w for w in words if w.text.strip(word_times.MARKS + " ")][:_LOOKED_AT]
    lasted = [w.end - w.start for w in words]
    score = sum((w.probability < _UNLIKELY) + 15 * max(0.0, _SHORT - d) + max(0.0, d - _LONG) for w, d in zip(words, lasted))
    return bool(words) and (score >= _ODD or score + 0.01 >= len(words))


def after_silence(parts, begin: float, end: float, content: float, spoken: float, longest: float) -> tuple[int, float | None]:
    """Of a window [begin, end) seconds whose segments have words: (how many of `parts` stay, where the next window begins or None). Odd segments
    between pauses of more than `longest`, the window's ends or other odd ones were not said. `spoken`: where the last word before ended."""
    worded = [i for i, p in enumerate(parts) if p["words"]]
    if worded and odd(parts[worded[0]]["words"]) and (gap := parts[worded[0]]["start"] - begin) > longest:
        return 0, begin + gap
    for n, i in enumerate(worded):
        p = parts[i]
        if odd(p["words"]):
            following = parts[worded[n + 1]] if n + 1 < len(worded) else None
            until = following["words"][0].start if following else end
            before = p["start"] - spoken > longest or p["start"] < longest or p["start"] - begin < _NEAR
            after = until - p["end"] > longest or (following is not None and odd(following["words"])) or end - p["end"] < _NEAR
            if before and after:
                return i, content if content - p["end"] < longest else max(begin + 1, p["start"])
        spoken = p["end"]
    return len(parts), None
