"""What a transcription is: segments of text with their times."""
from __future__ import annotations

from dataclasses import dataclass, field

from vivace import _core


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
    logprobs: list[float] = field(default_factory=list, repr=False)  # of tokens, each among all that might follow


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
    """How often text repeats itself: its bytes over those that a zlib stream of it takes."""
    return _core.compression_ratio(text)
