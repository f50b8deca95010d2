"""A transcription as text, subtitles or JSON, in the forms that others read."""
from __future__ import annotations

import json

FORMATS = ("text", "srt", "vtt", "json", "verbose_json")


def written(t, form: str) -> str:
    """`t`, a Transcription, in one of FORMATS, with a newline at the end."""
    return {"text": _text, "srt": _srt, "vtt": _vtt, "json": _json, "verbose_json": _verbose}[form](t)


def clock(seconds: float, comma: str, hours: bool) -> str:
    ms = round(seconds * 1000)
    h, m, s, ms = ms // 3600000, ms // 60000 % 60, ms // 1000 % 60, ms % 1000
    return (f"{h:02}:" if hours or h else "") + f"{m:02}:{s:02}{comma}{ms:03}"


def _line(text: str) -> str:
    """Text of one cue: an arrow in it would end the cue's head, an empty line the cue."""
    return " ".join(text.split()).replace("-->", "->")


def _text(t):
    return "".join(f"{' '.join(s.text.split())}\n" for s in t.segments)


def _srt(t):
    return "".join(f"{i}\n{clock(s.start, ',', True)} --> {clock(s.end, ',', True)}\n{_line(s.text)}\n\n" for i, s in enumerate(t.segments, 1))


def _vtt(t):
    escaped = lambda text: _line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")  # noqa: E731
    return "WEBVTT\n\n" + "".join(f"{clock(s.start, '.', False)} --> {clock(s.end, '.', False)}\n{escaped(s.text)}\n\n" for s in t.segments)


def _json(t):
    return json.dumps({"text": t.text}, ensure_ascii=False) + "\n"


def _word(w):
    return {"word": w.text.strip(), "start": w.start, "end": w.end, "probability": round(w.probability, 6)}


def _segment(s):
    d = {"id": s.id, "seek": s.seek, "start": s.start, "end": s.end, "text": s.text, "tokens": s.tokens, "temperature": s.temperature, "avg_logprob": s.avg_logprob,
         "compression_ratio": s.compression_ratio, "no_speech_prob": s.no_speech_prob}
    return d | ({"words": [_word(w) for w in s.words]} if s.words else {})


def _verbose(t):
    d = {"task": t.task, "language": t.language, "duration": t.duration, "text": t.text, "segments": [_segment(s) for s in t.segments]}
    return json.dumps(d | ({"words": [_word(w) for w in t.words]} if t.words else {}), ensure_ascii=False) + "\n"
