"""Long sound by windows of 30 seconds: what a window says decides where the next begins. Several transcriptions go side by side."""
from __future__ import annotations

from dataclasses import replace

from vivace.speech import guards
from vivace.speech import words as word_times
from vivace.speech.engine import Align, Window
from vivace.speech.result import Segment, compression_ratio

HOP, STEP, STEPS_A_FRAME = 0.01, 0.02, 2
RESET_ABOVE = 0.5  # temperature of text that is no prompt for what follows


def seconds(frames: float) -> float:
    return round(frames * HOP, 2)


class Windows:
    """One transcription: windows() are the steps of a lane. `o`: a Settings of model.py."""

    def __init__(self, model, samples, settings):
        self.m, self.samples, self.o = model, samples, settings
        core = model._live
        self.t, limits = core.tokens(), core.limits()
        self.frames, self.most_prompt = limits["frames"], limits["positions"] // 2 - 1
        self.content, self.length = len(samples) // limits["hop"], len(samples) / limits["rate"]
        self.peak = core.peak(samples) if len(samples) else 0.0
        self.said, self.fresh = list(settings.prompt_tokens), 0  # tokens so far; from where on they are a prompt
        self.segments, self.spoken = [], 0.0

    def windows(self):
        seek = 0
        for first, end in self.o.clips or [(0, self.content)]:
            seek, end = max(seek, first), min(end, self.content)
            while seek < end:
                frames = min(self.frames, end - seek)
                yield Window(self.samples, seek, frames, self.peak)
                seek = yield from self.window(seek, frames)
                self.o.progress(min(seek, end), self.content)

    def window(self, seek: int, frames: int):
        """Transcribes a window; where the next begins."""
        found = yield from self.decode(seek, frames)
        if self.silent(found, seek, frames):
            return seek + frames
        parts, after = found["parts"]
        if self.o.words:
            said = self.spoken
            yield from self.add_words(parts, seek, frames)
            ends = [w.end for p in parts for w in p["words"]]
            if ends and not self.ends_alone(found["tokens"]) and (last := round(ends[-1] / HOP)) > seek:
                after = last
                if self.o.hallucination_silence is not None and seconds(seek + frames) - ends[-1] <= self.o.hallucination_silence:
                    after = seek + frames
            if self.o.hallucination_silence is not None:
                parts, after = self.without_odd(parts, after, seek, frames, said)
        for p in parts:
            text = self.m.decode(p["text_tokens"])
            if p["start"] == p["end"] or not text.strip():
                continue
            start, end = min(p["start"], self.length), min(p["end"], self.length)  # the network may write a time in the silence behind the sound
            self.segments.append(Segment(len(self.segments), start, end, text, p["tokens"], seek, found["temperature"], found["avg_logprob"], found["compression_ratio"], found["no_speech"], p.get("words", []), p["logprobs"]))
            self.said += p["tokens"]
            self.o.heard(self.segments[-1])
        if not self.o.condition or found["temperature"] > RESET_ABOVE:
            self.fresh = len(self.said)
        return after if after > seek else seek + frames  # whatever was said, the sound goes on

    def without_odd(self, parts, after, seek, frames, said):
        """Segments that somebody said, and where the next window begins."""
        stay, on = guards.after_silence(parts, seconds(seek), seconds(seek + frames), seconds(self.content), said, self.o.hallucination_silence)
        ends = [w.end for p in parts[:stay] for w in p["words"]]
        self.spoken = ends[-1] if ends else said
        return parts[:stay], after if on is None else round(on / HOP)

    def silent(self, found, seek, frames) -> bool:
        """Nobody speaks: the network says so, and what it made of it all the same is not likely, or no voice is there."""
        o = self.o
        if o.voice is not None and found["no_speech"] > guards.SURELY_SILENT and not o.voice(seconds(seek), seconds(seek + frames)):
            return True
        return o.no_speech_limit is not None and found["no_speech"] > o.no_speech_limit and not (o.logprob_limit is not None and found["avg_logprob"] > o.logprob_limit)

    def decode(self, seek, frames):
        """The window's text: at the first temperature whose text neither repeats itself nor is unlikely, else the likeliest of all. Where times
        leave no room for the text they are left out of the decoding, and alignment says where sentences lie."""
        o, tries = self.o, []
        prompt = ([self.t["sot_prev"], *self.prefix()] if self.prefix() else []) + o.lead
        request = {"prompt": prompt, "suppress": o.suppress, "suppress_first": o.suppress_first, "timestamps": o.timestamps, "max_first_timestamp": o.max_first_timestamp,
                   "most": o.most_tokens, "length_penalty": -1.0 if o.length_penalty is None else o.length_penalty}
        for n, temperature in enumerate(o.temperatures):
            how = {"candidates": o.best_of, "seed": o.seed + n} if temperature > 0 else {"candidates": o.beams, "patience": o.patience}
            tries.append((yield from self.tried(request | how | {"temperature": temperature}, seek, frames)))
            if o.untimed and (guards.too_fast(tries[-1]["parts"][0], self.m.decode) or self.repeats(tries[-1])):
                tries[-1] = yield from self.tried(request | how | {"temperature": temperature, "timestamps": False, "prompt": prompt + [self.t["no_timestamps"]]}, seek, frames)
            if not self.poor(tries[-1]):
                return tries[-1]
        sound = [t for t in tries if o.compression_limit is None or t["compression_ratio"] <= o.compression_limit]
        return max(sound or tries, key=lambda t: t["avg_logprob"])

    def tried(self, request, seek, frames):
        tokens, logprob, no_speech, each = yield request | {"logprobs": True}
        text = self.m.decode([t for t in tokens if t < self.t["eot"]]).strip()
        timed = request["timestamps"] or not self.o.timestamps
        parts = self.cut(tokens, each, seek, frames) if timed else (yield from self.aligned(tokens, each, seek, frames))
        return {"tokens": tokens, "avg_logprob": logprob / (len(tokens) + 1), "no_speech": no_speech, "temperature": request["temperature"], "compression_ratio": compression_ratio(text),
                "parts": parts}

    def repeats(self, t) -> bool:
        return self.o.compression_limit is not None and t["compression_ratio"] > self.o.compression_limit

    def poor(self, t) -> bool:
        o = self.o
        unlikely = o.logprob_limit is not None and t["avg_logprob"] < o.logprob_limit
        if unlikely and o.no_speech_limit is not None and t["no_speech"] > o.no_speech_limit:
            return False  # silence, which another try does not change
        return unlikely or self.repeats(t)

    def prefix(self) -> list[int]:
        """What was said before: the newest that fits, behind the hot words."""
        hot = self.o.hot_tokens[:self.most_prompt]
        return hot + (self.said[self.fresh:][-(self.most_prompt - len(hot)):] if len(hot) < self.most_prompt else [])

    def ends_alone(self, tokens) -> bool:
        """Whether one timestamp stands at the end, so that nothing is said behind it."""
        marks = [t >= self.t["first_timestamp"] for t in tokens[-2:]]
        return marks == [False, True]

    def cut(self, tokens, logprobs, seek, frames):
        """Segments between timestamps, and where the next window begins."""
        first = self.t["first_timestamp"]
        marks = [t >= first for t in tokens]
        cuts = [i for i in range(1, len(tokens)) if marks[i - 1] and marks[i]]
        alone = self.ends_alone(tokens)
        part = lambda at, to, start, end: {"start": seconds(seek + start), "end": seconds(seek + end), "tokens": tokens[at:to], "logprobs": logprobs[at:to], "text_tokens": [t for t in tokens[at:to] if t < self.t["eot"]]}  # noqa: E731
        frame = lambda token: (token - first) * STEPS_A_FRAME  # noqa: E731
        if not cuts:
            last = [t for t in tokens if t >= first]
            return [part(0, len(tokens), 0, frame(last[-1]) if last and last[-1] != first else frames)], seek + frames
        parts, at = [], 0
        for cut in cuts + ([len(tokens)] if alone else []):
            parts.append(part(at, cut, frame(tokens[at]), frame(tokens[cut - 1])))
            at = cut
        return parts, seek + (frames if alone else frame(tokens[at - 1]))

    def aligned(self, tokens, logprobs, seek, frames):
        """The same for text without timestamps: sentences, of which the last waits for the next window where the sound goes on and it has no end."""
        text, likely = [t for t in tokens if t < self.t["eot"]], iter([p for t, p in zip(tokens, logprobs) if t < self.t["eot"]])
        if not text or frames < 2:
            return self.cut(tokens, logprobs, seek, frames)
        starts, _ = yield Align(self.o.lead_for_words, text, frames, self.m.alignment_heads)
        found = guards.sentences(text, starts, self.m.decode, self.o.language)
        after = seek + frames
        if len(found) > 1 and after < self.content and self.m.decode(found[-1][0]).strip()[-1:] not in word_times.ENDS:
            after = seek + STEPS_A_FRAME * found.pop()[1]
        return [{"start": seconds(seek + STEPS_A_FRAME * a), "end": seconds(seek + STEPS_A_FRAME * b), "tokens": ids, "text_tokens": ids, "logprobs": [next(likely) for _ in ids]} for ids, a, b in found], after

    def add_words(self, parts, seek, frames) -> None:
        text = [t for p in parts for t in p["text_tokens"]]
        for p in parts:
            p["words"] = []
        if not text or frames < 2:
            return
        starts, probabilities = yield Align(self.o.lead_for_words, text, frames, self.m.alignment_heads)
        timed = word_times.timed(text, starts, probabilities, self.m.decode, self.o.language)
        self.spoken = word_times.place(parts, timed, seek * HOP, self.spoken)


def batches(model, samples, settings) -> list[Windows]:
    """A lane for each of the clips: none knows what another said."""
    done, all_ = {}, sum(end - first for first, end in settings.clips)

    def lane(first, end):
        def progress(at, _):
            done[first] = at - first
            settings.progress(sum(done.values()), all_)

        return Windows(model, samples, replace(settings, clips=[(first, end)], condition=False, progress=progress))

    return [lane(first, end) for first, end in settings.clips]
