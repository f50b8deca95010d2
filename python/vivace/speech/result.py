"""What a transcription is: segments of text with their times."""
from __future__ import annotations

import zlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Word:
    text: str             # as it stands in the segment, with the space before it
    start: float          # seconds of the whole sound
    end: float
    probability: float


@dataclass(frozen=True)
class Segment:
    id: int
    start: float
    end: float
    text: str
    tokens: list[int] = field(repr=False)
    seek: int = field(repr=False)              # frame of 10 ms at which its window begins
    temperature: float = field(repr=False)
    avg_logprob: float = field(repr=False)
    compression_ratio: float = field(repr=False)
    no_speech_prob: float = field(repr=False)
    words: list[Word] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Transcription:
    segments: list[Segment] = field(repr=False)
    language: str
    language_probability: float
    task: str
    duration: float       # seconds of sound

    @property
    def text(self) -> str:
        return "".join(s.text for s in self.segments).strip()

    @property
    def words(self) -> list[Word]:
        return [w for s in self.segments for w in s.words]


def compression_ratio(text: str) -> float:
    """How often text repeats itself: its bytes over those that remain compressed."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0
