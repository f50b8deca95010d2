"""Sound that goes on to text: what is stable, and what may follow. Decisions fall at frames of the voice activity detector, counted from the first
sample, and see nothing behind them: how sound is cut into pieces changes nothing."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vivace import audio
from vivace.errors import ClosedError, InvalidArgumentError
from vivace.options import flag, number, one, shown, whole
from vivace.speech import vad as activity
from vivace.speech.engine import Lane
from vivace.speech.policies import POLICIES

VAD = activity.Settings(min_speech=0.1, min_silence=0.5, pad=0.4)
_AT_ONCE = 512       # frames that are looked at in one go
_LANGUAGE_AT = 2.0   # seconds of speech that say which language it is
_MOST_WINDOW = 28.0  # seconds of a buffer: a window has 30


@dataclass(frozen=True)
class Heard:
    """What an update decided. All `stable` texts in a row are the text."""

    at: float        # seconds of sound that were heard
    start: float     # where this utterance began
    stable: str      # what is new and will not change
    partial: str     # what may follow it; the next one's replaces it
    final: bool      # the utterance has ended, and this was its last


class SpeechStream:
    """model.stream_audio(). One thread at a time; updates of several streams that are due together are computed together."""

    def __init__(self, model, settings, *, policy, step, rate, channels, vad, condition, find_language):
        self._m, self._o, self._policy, self._condition, self._find_language = model, settings, POLICIES[policy], condition, find_language
        self._rate = model._live.limits()["rate"]
        self._in = audio.Pieces(rate, channels, self._rate)
        self._activity, self._vad = activity.Stream(model._activity_weights()), vad
        self._step, self._pad = round(step * self._rate), round(vad.pad * self._rate)
        self._sound, self._base = np.zeros(0, np.float32), 0  # what is kept, and which sample its first one is
        self._frames = 0               # looked at so far
        self._now = None               # the utterance's policy
        self._start = self._due = 0    # samples: where its buffer begins, when the next update is
        self._began = self._spoken = 0  # where the utterance began; frames of speech in it
        self._quiet = None             # the frame since which nobody speaks
        self._end = 0                  # of the utterance before
        self._context = list(settings.prompt_tokens)
        self._ends = False
        self.stable = self.partial = ""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    @property
    def seconds(self) -> float:
        """Of sound that were pushed and looked at."""
        return self._frames * activity.FRAME / self._rate

    @property
    def speaking(self) -> float | None:
        """Where the utterance that is said now began, in seconds; None where nobody speaks."""
        return None if self._now is None else round(self._began / self._rate, 3)

    def close(self) -> None:
        """Drops what was not said yet. Closing twice is fine."""
        self._ends, self._sound, self._now = True, np.zeros(0, np.float32), None

    def push(self, samples) -> list[Heard]:
        """Hears more: f32 of full scale 1 or i16, [N] or [N, channels]; or bytes, i16 of little end, cut anywhere. What that decided.

        Errors: InvalidArgumentError for samples that are not finite: nothing of the piece is heard; ClosedError.
        """
        self._check()
        return self._hear(self._in.push(samples))

    def finish(self) -> list[Heard]:
        """No more sound comes: what is still unsaid is decided. The stream is closed."""
        self._check()
        rest = self._in.finish()
        short = -(self._base + len(self._sound) + len(rest) - self._frames * activity.FRAME) % activity.FRAME
        out = self._hear(np.concatenate([rest, np.zeros(short, np.float32)]))
        if self._now is not None:
            out.append(self._last(self._frames * activity.FRAME))
        self.close()
        return out

    def _check(self) -> None:
        self._m._live
        if self._ends:
            raise ClosedError("this stream has ended; model.stream_audio() begins another")

    def _hear(self, samples) -> list[Heard]:
        out, frame = [], activity.FRAME
        for first in range(0, len(samples), _AT_ONCE * frame):
            self._sound = np.concatenate([self._sound, samples[first:first + _AT_ONCE * frame]])
            while n := (self._base + len(self._sound)) // frame - self._frames:
                at = self._frames * frame - self._base
                likely = self._activity.push(self._sound[at:at + n * frame])
                taken = 0
                while taken < n:
                    if self._now is None:  # nobody speaks: on to where somebody does
                        loud = likely[taken:] >= self._vad.threshold
                        skip = int(loud.argmax()) if loud.any() else n - taken
                        taken, self._frames = taken + skip, self._frames + skip
                        if taken == n:
                            break
                        self._begin()
                    ended = self._frame(likely[taken], out)
                    taken += 1
                    if ended:
                        self._activity.reset()  # what follows is looked at again, from a fresh state
                        break
            self._forget()
        return out

    def _begin(self) -> None:
        self._start = self._began = max(self._frames * activity.FRAME - self._pad, self._end)
        self._due, self._spoken, self._quiet = self._start + self._step, 0, None
        self._now = self._policy(self._m, self._o, self._context if self._condition else self._o.prompt_tokens)
        if self._find_language:
            self._o.language = None

    def _frame(self, likely: float, out: list[Heard]) -> bool:
        """One frame of an utterance. Whether it ends here."""
        self._frames += 1
        at = self._frames * activity.FRAME
        self._spoken += likely >= self._vad.threshold
        if likely >= self._vad.threshold:
            self._quiet = None
        elif likely < max(self._vad.threshold - 0.15, 0.01) and self._quiet is None:
            self._quiet = self._frames - 1
        if self._quiet is not None and (self._frames - self._quiet) * activity.FRAME >= self._vad.min_silence * self._rate:
            out.append(self._last(min(at, self._quiet * activity.FRAME + self._pad)))
            return True
        if at >= self._due:
            self._due += self._step
            out += self._update(at)
        return False

    def _update(self, end: int) -> list[Heard]:
        if not self._known(end, False):
            return []
        stable, partial = self._run(self._updated(end))
        if not stable and partial == self.partial:
            return []
        return [self._heard(end, stable, partial, False)]

    def _run(self, steps):
        """What steps of a lane return; updates of other streams that are due meanwhile are computed with them."""
        return self._m._engine.run([Lane(steps)])[0]

    def _updated(self, end: int):
        stable, partial = yield from self._now.update(self._buffer(end), False)
        buffered = (end - self._start) / self._rate
        if buffered > self._now.cut_above:
            self._start += round((yield from self._now.cut(buffered)) * self._rate)
        if (end - self._start) / self._rate > _MOST_WINDOW:  # nothing became stable: what there is has to do
            more, partial = yield from self._now.update(self._buffer(end), True)
            stable, self._context = stable + more, self._now.finished()
            self._now, self._start = self._policy(self._m, self._o, self._context), end
        return stable, partial

    def _last(self, end: int) -> Heard:
        stable = ""
        if self._spoken * activity.FRAME >= self._vad.min_speech * self._rate and end - self._start >= activity.FRAME:
            self._known(end, True)
            stable, _ = self._run(self._now.update(self._buffer(end), True))
            self._context = self._now.finished()
        self._now, self._end = None, end
        return self._heard(self._frames * activity.FRAME, stable, "", True)

    def _heard(self, at, stable, partial, final) -> Heard:
        self.stable, self.partial = self.stable + stable, partial
        return Heard(round(at / self._rate, 3), round(self._began / self._rate, 3), stable, partial, final)

    def _known(self, end: int, last: bool) -> bool:
        """Whether the language is known, which it may be after this."""
        if self._o.language is None:
            if not last and end - self._start < _LANGUAGE_AT * self._rate:
                return False
            code, _ = self._m._detect(self._buffer(end))
            self._o.language, self._o.lead = code, self._m._lead(code, self._o.task, self._o.timestamps)
            self._o.lead_for_words = self._m._lead(code, self._o.task, True)
        return True

    def _buffer(self, end: int) -> np.ndarray:
        return np.ascontiguousarray(self._sound[self._start - self._base:end - self._base])

    def _forget(self) -> None:
        """Sound that nothing will ask for again."""
        keep = self._start if self._now is not None else max(self._end, self._frames * activity.FRAME - self._pad)
        if keep > self._base:
            self._sound, self._base = self._sound[keep - self._base:].copy(), keep


def opened(model, *, rate=None, channels=1, policy="alignatt", step=0.5, vad=None, condition=True, language=None, **options) -> SpeechStream:
    """The options of stream_audio(), checked."""
    get = lambda name, read, value: one("stream_audio", name, read, value)  # noqa: E731
    if policy not in POLICIES:
        raise InvalidArgumentError(f"stream_audio: policy: wanted one of {', '.join(POLICIES)}, got {shown(policy)}")
    if not 0.1 <= get("step", number, step) <= 10:
        raise InvalidArgumentError(f"stream_audio: step: wanted 0.1 to 10 seconds, got {shown(step)}")
    vad = VAD if vad is None else vad
    if not isinstance(vad, activity.Settings):
        raise InvalidArgumentError(f"stream_audio: vad: wanted None or a VadSettings, got {shown(vad)}")
    find = language is None and model._special["multilingual"]
    spoken, _ = model._language(language or "en", None)
    follows = policy == "alignatt"
    settings = model._stream_settings(language=spoken, timestamps=not follows, words=not follows, **options)
    if follows:
        t = model._special
        settings.suppress = sorted({*settings.suppress, *range(t["first_timestamp"], model._live.limits()["vocab"])})
    if find:
        settings.language = None
    return SpeechStream(model, settings, policy=policy, step=step, rate=get("rate", whole(audio.LEAST_RATE, audio.MOST_RATE), model._live.limits()["rate"] if rate is None else rate),
                        channels=get("channels", whole(1, audio.MOST_CHANNELS), channels), vad=vad, condition=get("condition", flag, condition), find_language=find)
