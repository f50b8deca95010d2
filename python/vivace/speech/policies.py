"""When text of sound that goes on is stable: AlignAtt asks the network's cross-attention, LocalAgreement-2 waits until two hypotheses in a row agree."""
from __future__ import annotations

from dataclasses import replace

from vivace.speech import words as word_times
from vivace.speech.engine import Align, Window
from vivace.speech.result import compression_ratio
from vivace.speech.windows import HOP, Windows

MARGIN, LAST_MARGIN = 25, 0  # places at the end of sound that are too near to it; where it has ended none is
REWIND = 200             # places
REPEATS = 2.4            # compression ratio of text that goes round in circles
SILENT = 0.9             # no_speech of what is none
_KEEP = 8.0              # seconds of sound that stay, at least, when a buffer is cut
_TOKENS_A_SECOND = 12    # nobody speaks faster
_NEAR, _NGRAM, _BACK = 1.0, 5, 0.1  # LocalAgreement: where repeated words are looked for, how many, and what counts as said already
_CONTEXT_CHARACTERS = 200


class AlignAtt:
    """Decodes behind what is said already and stops where a token hears the sound's end. Stable tokens are never decided again."""

    cut_above = 20.0  # seconds of a buffer

    def __init__(self, model, settings, context):
        self.m, self.core, self.o = model, model._live, settings
        self.t, self.limits = self.core.tokens(), self.core.limits()
        self.context = list(context)   # token ids of text before the buffer
        self.said = []                 # token ids of the buffer's text
        self.heads = model.alignment_heads

    def update(self, samples, last: bool):
        """Steps of a lane: (what became stable, what may follow) of the buffer as it is now."""
        seconds = len(samples) / self.limits["rate"]
        content = min(self.limits["encoded"], -(-len(samples) // (2 * self.limits["hop"])))
        yield Window(samples, 0, self.limits["frames"], self.core.peak(samples))  # behind the buffer is silence, as in training
        request = {"prompt": self._prompt(), "suppress": self.o.suppress, "suppress_first": [] if self.said else self.o.suppress_first, "timestamps": False,
                   "most": max(1, min(self.o.most_tokens, int(seconds * _TOKENS_A_SECOND) + 8 - len(self.said))),
                   "heads": self.heads, "content": content, "margin": LAST_MARGIN if last else MARGIN, "rewind": REWIND}
        tokens, _, end, no_speech = yield request
        if no_speech > SILENT or (end == "rewind" and not last) or compression_ratio(self.m.decode(tokens)) > REPEATS:
            return "", ""
        new = [t for t in tokens if t < self.t["eot"]]
        stable = new[:-1] if end in ("margin", "rewind") and new else new
        if not last:
            runs = word_times.split(stable, self.m.decode, self.o.language)
            stable = stable[:sum(len(ids) for _, ids in runs[:-1])]  # the last word may go on
        elif stable and "\ufffd" in (runs := word_times.characters(stable, self.m.decode))[-1][0]:
            stable = stable[:-len(runs[-1][1])]  # half a character
        self.said += stable
        return self.m.decode(stable), "" if last else self.m.decode(new[len(stable):])

    def _prompt(self) -> list[int]:
        room = min(self.limits["positions"] // 2 - 1, self.limits["positions"] - 20 - len(self.o.lead) - len(self.said))
        before = (self.o.hot_tokens + self.context)[-room:] if room > 0 else []
        return ([self.t["sot_prev"], *before] if before else []) + self.o.lead + self.said

    def cut(self, seconds: float):
        """Steps behind an update: how much of its buffer of `seconds` may go from its front: up to a stable word's begin. 0: nothing."""
        frames = min(self.limits["frames"], int(seconds / HOP))
        starts, _ = (yield Align(self.o.lead_for_words, self.said, frames, self.heads)) if self.said else ([], [])
        at = best = 0
        for _, ids in word_times.split(self.said, self.m.decode, self.o.language):
            if starts[at] * word_times.STEP <= seconds - _KEEP:
                best = at
            at += len(ids)
        if not best:
            return 0.0
        self.context = (self.context + self.said[:best])[-self.limits["positions"]:]
        self.said = self.said[best:]
        return starts[best] * word_times.STEP

    def finished(self) -> list[int]:
        """Context of what is said next."""
        return (self.context + self.said)[-self.limits["positions"]:]


class LocalAgreement:
    """Transcribes the whole buffer again; what two hypotheses in a row begin with is stable."""

    cut_above = 15.0

    def __init__(self, model, settings, context):
        self.m, self.o = model, settings
        self.rate = model._live.limits()["rate"]
        self.context = list(context)
        self.said, self.held = [], []  # words of the buffer: stable ones, and those of the last hypothesis behind them
        self.until = 0.0               # where the last stable word ends, from the buffer's begin
        self.ends = []                 # of the last hypothesis' segments

    def update(self, samples, last: bool):
        whole = Windows(self.m, samples, replace(self.o, prompt_tokens=self._prompt()))
        yield from whole.windows()
        segments = whole.segments
        self.ends = [s.end for s in segments]
        if not last and any(s.compression_ratio > REPEATS for s in segments):
            return "", "".join(w.text for w in self.held)
        found = self._unsaid([w for s in segments if s.no_speech_prob <= SILENT for w in s.words])
        n = len(found) if last else 0
        while n < min(len(found), len(self.held)) and found[n].text == self.held[n].text:
            n += 1
        stable, self.held = found[:n], found[n:]
        self.said += stable
        if stable:
            self.until = stable[-1].end
        return "".join(w.text for w in stable), "".join(w.text for w in self.held)

    def _unsaid(self, found):
        """Words behind the stable ones; those that the two say twice where they meet are left out."""
        found = [w for w in found if not self.said or w.start > self.until - _BACK]
        if found and self.said and abs(found[0].start - self.until) < _NEAR:
            for n in range(1, min(_NGRAM, len(found), len(self.said)) + 1):
                if [w.text for w in self.said[-n:]] == [w.text for w in found[:n]]:
                    return found[n:]
        return found

    def _prompt(self) -> list[int]:
        text = self.m.decode(self.context)[-_CONTEXT_CHARACTERS:]
        return self.m.text.encode(text)[-(self.m._live.limits()["positions"] // 2 - 1):] if text else []

    def cut(self, seconds: float):
        yield from ()
        where = max([e for e in self.ends[:-1] if e <= self.until], default=0.0)
        if not where and seconds >= 25:
            where = min(self.until, seconds - _KEEP)
        if where <= 0:
            return 0.0
        gone = [w for w in self.said if w.end <= where]
        self._remember(gone)
        move = lambda words: [replace(w, start=w.start - where, end=w.end - where) for w in words]  # noqa: E731
        self.said, self.held, self.until, self.ends = move(self.said[len(gone):]), move(self.held), self.until - where, []
        return where

    def _remember(self, gone) -> None:
        self.context = (self.context + self.m.text.encode("".join(w.text for w in gone)))[-self.m._live.limits()["positions"]:] if gone else self.context

    def finished(self) -> list[int]:
        self._remember(self.said)
        return self.context


POLICIES = {"alignatt": AlignAtt, "local_agreement": LocalAgreement}
