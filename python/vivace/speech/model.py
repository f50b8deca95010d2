"""load_speech and the model that it returns."""
from __future__ import annotations

import hashlib
import json
import queue
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vivace import _core, audio, files
from vivace.calibrate import PLAN, used
from vivace.errors import CorruptDataError, InvalidArgumentError, LimitExceededError, UnsupportedError
from vivace.loaded import Loaded
from vivace.options import flag, number, one, percent, shown, text, token_ids, whole
from vivace.speech.calibration import act_scales
from vivace.speech.engine import LANGUAGES, Engine, Lane, Window
from vivace.speech.result import Transcription
from vivace.speech.windows import HOP, STEP, Windows, batches

TASKS = ("transcribe", "translate")
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_ARCHITECTURE = "WhisperForConditionalGeneration"


def is_speech(path: str) -> bool:
    """Whether load_speech() is for this checkpoint: a hub folder whose config.json says so, by its class or by OpenAI's dimensions, or a folder of CTranslate2."""
    folder = Path(path)
    if not folder.is_dir():
        return False
    from vivace import ct2

    if ct2.file_of(folder) is not None:
        return True
    config = files.read_optional(folder / "config.json")
    try:
        config = json.loads(config) if config is not None else {}
        return _ARCHITECTURE in (config.get("architectures") or []) or "n_audio_state" in config.get("dims", config)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return False  # what reads it for good says what is wrong


def load_speech(path, *, device="auto", precision="auto", threads=0, windows=1, rows=5, random_weights=False, eager=False, calibration=None, percentile=100.0, tenant=None, decode_layers="auto", **unknown) -> "SpeechModel":
    """Loads a Whisper: a hub folder with safetensors under transformers' names or OpenAI's, or a folder of CTranslate2, which is converted once and kept.

    precision: "auto" (f32, on a GPU bf16), "f32", "bf16", "f16", "w8a16" (fp8 weights), "q8" (int8 weights and activations), "fp8" (fp8 weights and activations,
    a scale a token) or "fp8_static": scales found by hearing `calibration`, a list of sounds as transcribe() takes them, in bf16; `percentile` of the magnitudes that their
    windows bring counts. They are kept beside the other caches, under a digest of the whole checkpoint, the plan and the sounds. windows: of 30 s that are encoded together. rows: candidates of all windows that decode together: beams, or best_of. tenant: its place at a vivace.Scheduler, whose load_model() gives it.
    decode_layers: whether a step of one token is one launch for all layers, where rows is 1 and precision "bf16": "on", "off" or "auto" (on where the device has its kernel); its bits are others than those of launches. report()["decode_layers"] says what serves.
    Errors: NotFoundError, CorruptDataError, UnsupportedError, InvalidArgumentError, InvalidShapeError, OutOfMemoryError.
    """
    from vivace.model import find_compiler

    if unknown:
        raise InvalidArgumentError(f"load_model: {', '.join(sorted(unknown))}: a speech model takes device, precision, threads, windows, rows, calibration, percentile, decode_layers and random_weights")
    get = lambda name, read, value: one("load_model", name, read, value)  # noqa: E731
    device, precision, threads, windows, rows = get("device", text, device), get("precision", text, precision), get("threads", whole(0, 4096), threads), get("windows", whole(1, 64), windows), get("rows", whole(1, 64), rows)
    percentile = get("percentile", percent(0), percentile)
    if calibration is not None and precision != PLAN:
        raise InvalidArgumentError(f"calibration: only precision={PLAN!r} has scales to calibrate, got {precision!r}")
    decode_layers = get("decode_layers", text, decode_layers)
    find_compiler(device)
    folder = _hub_folder(Path(path))

    def load(scales):
        return _core.load_speech(str(folder), device=device, precision=precision, threads=threads, windows=windows, rows=rows, random_weights=random_weights, eager=eager, act_scales=scales, tenant=tenant, decode_layers=decode_layers)

    def scales(anew):
        return act_scales(str(folder), calibration, percentile=percentile, device=device, threads=threads, random_weights=random_weights, anew=anew)
    return SpeechModel(str(path), used(scales, load) if precision == PLAN else load([]), folder)


def _hub_folder(folder: Path) -> Path:
    """`folder`, or what CTranslate2's becomes, from the cache where it was converted before."""
    from vivace import ct2

    file = ct2.file_of(folder)
    if file is None:
        return folder
    from vivace.cache import kept_folder
    from vivace.fetch import cache_dir

    digest = hashlib.sha256()
    for part in (file, folder / "config.json", folder / "tokenizer.json"):
        if part.exists():
            with open(files.open_regular(part), "rb") as f:
                while block := f.read(1 << 20):
                    digest.update(block)
        digest.update(b"\0")
    return kept_folder(cache_dir() / "converted", f"whisper-{digest.hexdigest()[:32]}", lambda out: ct2.convert(file, out, "auto"))


@dataclass
class Settings:
    """What transcribe() was asked for, checked, in the network's terms."""

    language: str
    task: str
    lead: list[int]             # what every window's text begins with
    lead_for_words: list[int]   # the same for alignments
    timestamps: bool
    words: bool
    temperatures: tuple
    beams: int
    best_of: int
    patience: float
    length_penalty: float | None
    compression_limit: float | None
    logprob_limit: float | None
    no_speech_limit: float | None
    condition: bool
    prompt_tokens: list[int]
    hot_tokens: list[int]
    suppress: list[int]
    suppress_first: list[int]
    max_first_timestamp: int
    most_tokens: int
    seed: int
    clips: list[tuple[int, int]]  # frames; empty: all
    untimed: bool               # times that leave no room for text are left out
    hallucination_silence: float | None
    voice: Callable | None      # (begin, end) in seconds -> whether somebody speaks there
    progress: Callable
    heard: Callable             # each Segment


class SpeechModel(Loaded):
    """A speech model. Threads may share one: windows of their transcriptions and streams that wait at the same time are computed together. Use as a context
    manager or close() it."""

    _kind = "model"

    def __init__(self, path: str, core, folder: Path):
        super().__init__(path, core)
        self._folder, self._engine = folder, Engine(lambda: self._live)
        self._text = self._vad = None
        self._special = core.tokens()
        self._generation = files.json_object(files.text_of(raw, folder / "generation_config.json"), folder / "generation_config.json") if (raw := files.read_optional(folder / "generation_config.json")) else {}

    def __repr__(self):
        if self._core is None:
            return f"<SpeechModel {self._path}: closed>"
        facts = self.report()
        return f"<SpeechModel {self._path}: {facts['family']}, {facts['device']}, precision {facts['precision']}>"

    def report(self) -> dict:
        """What a load decided."""
        return {k: json.loads(v) for k, v in self._live.report()}

    def memory(self) -> dict[str, int]:
        """Bytes by region."""
        return dict(self._live.memory())

    @property
    def text(self):
        """Its tokenizer (vivace.text.Text), built on first use."""
        if self._text is None:
            from vivace.text import load_text

            self._text = load_text(str(self._folder), {})
        return self._text

    def decode(self, tokens) -> str:
        return self.text.decode([t for t in tokens if t < self._special["eot"]])

    @property
    def languages(self) -> list[str]:
        """Codes of the languages, in the order of their tokens."""
        if not self._special["multilingual"]:
            return ["en"]
        first = self._special["first_language"]
        names = [self.text.tokenizer.id_to_token(first + i) for i in range(self._special["languages"])]
        if not all(n and n.startswith("<|") and n.endswith("|>") for n in names):
            raise CorruptDataError(f"{self._folder}: its tokenizer has no languages where the model has them; they do not belong together")
        return [n[2:-2] for n in names]

    @property
    def alignment_heads(self) -> list[tuple[int, int]]:
        """Heads of cross-attention that follow the sound: the checkpoint's, else all of the later half of the layers."""
        limits = self._live.limits()
        given = self._generation.get("alignment_heads")
        if given:
            try:
                return [(int(layer), int(head)) for layer, head in given]
            except (TypeError, ValueError) as e:
                raise CorruptDataError(f"{self._folder}: generation_config.json: alignment_heads: wanted pairs of layer and head") from e
        return [(layer, head) for layer in range(limits["layers"] // 2, limits["layers"]) for head in range(limits["heads"])]

    def detect_language(self, sound, *, rate=None) -> tuple[str, float]:
        """(code, probability) of what the first 30 seconds are spoken in."""
        samples = audio.samples_of(sound, rate, self._live.limits()["rate"])
        return self._detect(samples)

    def _detect(self, samples) -> tuple[str, float]:
        return self._engine.run([Lane(self._detected(samples))])[0]

    def _detected(self, samples):
        limits = self._live.limits()
        yield Window(samples, 0, min(limits["frames"], len(samples) // limits["hop"]), self._live.peak(samples) if len(samples) else 0.0)
        p = np.frombuffer((yield LANGUAGES), np.float32)
        best = int(p.argmax())
        return self.languages[best], float(p[best])

    def transcribe(self, sound, *, rate=None, language=None, task="transcribe", timestamps=True, words=False, temperature=TEMPERATURES, beams=1, best_of=5, patience=1.0, length_penalty=None,
                   compression_limit=2.4, logprob_limit=-1.0, no_speech_limit=0.6, condition=True, prompt=None, hotwords=None, suppress=None, max_first_timestamp=1.0, max_tokens=224, seed=0,
                   clips=None, vad=False, batched=False, hallucination_silence=None, on_progress=None, on_segment=None, most_seconds=audio.MOST_SECONDS) -> Transcription:
        """What is said in `sound`: a path, "-", a file's bytes, or samples [N] or [N, channels] (f32 of full scale 1, or i16) at `rate` a second (16000).

        language: a code such as "en"; None: that of the first 30 seconds. task: "transcribe", or "translate" into English. timestamps: segments
        as the network says them; without, a segment a window. words: when each word was said. temperature: one, or several to try in turn
        while text repeats itself (compression_limit), is unlikely (logprob_limit, mean a token): 0 is greedy, with `beams` above 1 a beam
        search with `patience` and `length_penalty`; above 0 best_of draws, from `seed`. no_speech_limit: windows beyond it whose text is no
        likelier than logprob_limit are silent. condition: text so far is a prompt for what follows. prompt: text, or token ids, before all; hotwords: text
        before every window. vad: only where somebody speaks is heard, by Silero VAD (python -m vivace.fetch silero-vad): True, or
        a vivace.speech.VadSettings; "guard": all is heard, and windows that the network takes for silence count only where somebody speaks.
        batched: with vad, stretches are heard independently, several at once. hallucination_silence: seconds of silence around odd words (of words=True) that nobody said. suppress: token ids that never come, beside the checkpoint's. max_first_timestamp: seconds. clips: (start, end) pairs of seconds.
        on_progress(seconds done, seconds in all); on_segment(Segment), when it is there; what they raise ends it. most_seconds: of sound. Errors: those of vivace.audio; InvalidArgumentError names the option.
        """
        options = dict(locals())
        del options["self"], options["sound"]
        return self._all([sound], options)[0]

    def transcribe_all(self, sounds, **options) -> list[Transcription]:
        """Several sounds, each as transcribe() hears it alone, to the bit, with as many windows at once as load_model(windows=) said.

        The options are transcribe()'s, but for on_progress and on_segment. Errors: those of transcribe(); all sounds are read before any is heard.
        """
        known = SpeechModel.transcribe.__kwdefaults__
        if wrong := sorted((options.keys() - known.keys()) | (options.keys() & {"on_progress", "on_segment"})):
            raise InvalidArgumentError(f"transcribe_all: {wrong[0]}: no such option")
        return self._all(list(sounds), known | options)

    def _all(self, sounds, options) -> list[Transcription]:
        rate, language, clips, vad, batched, most = (options.pop(k) for k in ("rate", "language", "clips", "vad", "batched", "most_seconds"))
        guard, own = isinstance(vad, str) and vad == "guard", self._live.limits()["rate"]
        if vad is not False and not guard and clips is not None:
            raise InvalidArgumentError("transcribe: vad: clips say what is heard already; give one of them")
        if one("transcribe", "batched", flag, batched) and (vad is False or guard):
            raise InvalidArgumentError("transcribe: batched: wanted with vad, whose pauses say where sound may be cut")
        held = [audio.samples_of(sound, rate, own, most_seconds=one("transcribe", "most_seconds", number, most)) for sound in sounds]
        parts = [clips if vad is False or guard else self._spoken(samples, vad) for samples in held]
        events = queue.SimpleQueue()  # callbacks are this thread's
        for name in ("on_progress", "on_segment"):
            if (function := options.get(name)) is not None:
                options[name] = lambda *given, function=function: events.put((function, given))
        told = []  # (samples, settings, probability of its language, transcriptions)
        for samples, clips in zip(held, parts):
            spoken, likely = self._language(language, samples, clips)
            settings = self._settings(language=spoken, clips=clips, untimed=True, voice=self._voice(samples) if guard else None, **options)
            told.append((samples, settings, likely, [] if clips == [] else batches(self, samples, settings) if batched else [Windows(self, samples, settings)]))
        self._engine.run([Lane(part.windows()) for *_, parts in told for part in parts], events)
        return [Transcription([replace(s, id=i) for i, s in enumerate(s for part in parts for s in part.segments)], settings.language, likely, settings.task, round(len(samples) / own, 3))
                for samples, settings, likely, parts in told]

    def _spoken(self, samples, vad) -> list[tuple[float, float]]:
        """Stretches where somebody speaks; empty where nobody does."""
        from vivace.speech import vad as activity

        settings = activity.Settings() if vad is True else vad
        if not isinstance(settings, activity.Settings):
            raise InvalidArgumentError(f"transcribe: vad: wanted True, False, 'guard' or a VadSettings, got {shown(vad)}")
        return activity.joined(activity.stretches(activity.probabilities(samples, self._activity_weights()), len(samples), settings), settings.longest)

    def _voice(self, samples) -> Callable:
        from vivace.speech import vad as activity

        weights, s, rate = self._activity_weights(), activity.Settings(), self._live.limits()["rate"]
        return lambda begin, end: bool((activity.probabilities(samples[round(begin * rate):round(end * rate)], weights) >= s.threshold).any())

    def _activity_weights(self):
        from vivace import fetch
        from vivace.speech import vad as activity

        if self._vad is None:
            self._vad = activity.Weights(fetch.path_of("silero-vad"))
        return self._vad

    def stream_audio(self, *, rate=None, channels=1, policy="alignatt", step=0.5, language=None, task="transcribe", prompt=None, hotwords=None, condition=True, suppress=None, vad=None):
        """A vivace.speech.SpeechStream: push() sound as it comes, in pieces of any size, and get text that is stable and text that may follow it.

        rate, channels: of what will be pushed (16000, 1). policy: "alignatt" (stops where the network hears the sound's end) or "local_agreement"
        (what two hypotheses in a row begin with). step: seconds between updates while somebody speaks; each encodes a window, so that it must be
        longer than one takes. vad: a vivace.speech.VadSettings; an utterance ends behind its min_silence. The others are transcribe()'s.
        """
        from vivace.speech.stream import opened

        return opened(self, rate=rate, channels=channels, policy=policy, step=step, language=language, task=task, prompt=prompt, hotwords=hotwords, condition=condition, suppress=suppress, vad=vad)

    def _stream_settings(self, *, words, **options) -> Settings:
        return self._settings(words=words, temperature=0.0, beams=1, best_of=1, patience=1.0, length_penalty=None, compression_limit=None, logprob_limit=None, no_speech_limit=0.6, condition=False,
                              max_first_timestamp=1.0, max_tokens=224, seed=0, clips=None, untimed=False, hallucination_silence=None, voice=None, on_progress=None, **options)

    def _language(self, language, samples, clips=None) -> tuple[str, float]:
        if language is not None and language not in (known := self.languages):
            raise InvalidArgumentError(f"transcribe: language: wanted one of {', '.join(known)}, got {shown(language)}")
        if language is None and self._special["multilingual"]:
            first = round(clips[0][0] * self._live.limits()["rate"]) if clips else 0  # of what is heard
            return self._detect(np.ascontiguousarray(samples[first:]))
        return language or "en", 1.0

    def _settings(self, *, language, task, timestamps, words, temperature, beams, best_of, patience, length_penalty, compression_limit, logprob_limit, no_speech_limit, condition, prompt, hotwords, suppress,
                  max_first_timestamp, max_tokens, seed, clips, untimed, hallucination_silence, voice, on_progress, on_segment=None) -> Settings:
        limits, t = self._live.limits(), self._special
        get = lambda name, read, value: one("transcribe", name, read, value)  # noqa: E731
        optional = lambda name, value: None if value is None else get(name, number, value)  # noqa: E731
        if task not in TASKS:
            raise InvalidArgumentError(f"transcribe: task: wanted one of {', '.join(TASKS)}, got {shown(task)}")
        if task == "translate" and not t["multilingual"]:
            raise UnsupportedError("transcribe: task: this model knows English alone and does not translate")
        timestamps, words, condition = get("timestamps", flag, timestamps), get("words", flag, words), get("condition", flag, condition)
        temperatures = tuple(get("temperature", number, v) for v in (temperature if isinstance(temperature, (tuple, list)) else (temperature,)))
        if not temperatures or not all(0 <= v <= 10 for v in temperatures):
            raise InvalidArgumentError(f"transcribe: temperature: wanted one or several from 0 to 10, got {shown(temperature)}")
        beams, best_of = get("beams", whole(1, 64), beams), get("best_of", whole(1, 64), best_of)
        if beams > limits["rows"] or (any(temperatures) and best_of > limits["rows"]):
            raise LimitExceededError(f"transcribe: beams {beams} and best_of {best_of}: the model was loaded with {limits['rows']} rows; load with rows")
        hot = self._prompt("hotwords", hotwords)
        if clips is not None:
            clips = self._clips(clips) if clips != [] else []
        hallucination_silence = optional("hallucination_silence", hallucination_silence)
        if hallucination_silence is not None and not (words and hallucination_silence > 0):
            raise InvalidArgumentError(f"transcribe: hallucination_silence: wanted seconds above 0, with words=True, got {shown(hallucination_silence)}")
        hop = limits["rate"] / limits["hop"]
        return Settings(
            language=language, task=task, lead=self._lead(language, task, timestamps), lead_for_words=self._lead(language, task, True), timestamps=timestamps, words=words, temperatures=temperatures, beams=beams, best_of=best_of,
            patience=get("patience", number, patience), length_penalty=optional("length_penalty", length_penalty), compression_limit=optional("compression_limit", compression_limit),
            logprob_limit=optional("logprob_limit", logprob_limit), no_speech_limit=optional("no_speech_limit", no_speech_limit), condition=condition, prompt_tokens=self._prompt("prompt", prompt), hot_tokens=hot,
            suppress=sorted({*self._ids("suppress_tokens"), *([] if suppress is None else get("suppress", token_ids, suppress))}), suppress_first=self._ids("begin_suppress_tokens"),
            max_first_timestamp=round(get("max_first_timestamp", number, max_first_timestamp) / STEP), most_tokens=get("max_tokens", whole(1, limits["positions"]), max_tokens), seed=get("seed", whole(0, (1 << 63) - 1), seed),
            clips=clips or [], untimed=untimed and timestamps, hallucination_silence=hallucination_silence, voice=voice, progress=(lambda done, all_: on_progress(done / hop, all_ / hop)) if on_progress else lambda done, all_: None, heard=on_segment or (lambda segment: None))

    def _lead(self, language: str, task: str, timestamps: bool) -> list[int]:
        """What a window's text begins with."""
        t = self._special
        known = [t["first_language"] + self.languages.index(language), t[task]] if t["multilingual"] else []
        return [t["sot"], *known, *([] if timestamps else [t["no_timestamps"]])]

    def _ids(self, key: str) -> list[int]:
        """Token ids of the generation config; -1 stands for nothing here: the list is the checkpoint's."""
        given = self._generation.get(key) or []
        if not isinstance(given, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in given):
            raise CorruptDataError(f"{self._folder}: generation_config.json: {key}: wanted a list of token ids")
        return [i for i in given if 0 <= i < self._live.limits()["vocab"]]

    def _prompt(self, name: str, value) -> list[int]:
        """Token ids of text before what is said. Errors: InvalidArgumentError; LimitExceededError beyond what a window may be told."""
        if value is None:
            return []
        if isinstance(value, str):
            ids = self.text.encode(" " + one("transcribe", name, text, value).strip())
        else:
            ids = one("transcribe", name, token_ids, value)
            if not all(0 <= i < self._special["eot"] for i in ids):
                raise InvalidArgumentError(f"transcribe: {name}: wanted ids of text, below {self._special['eot']}")
        most = self._live.limits()["positions"] // 2 - 1
        if len(ids) > most:
            raise LimitExceededError(f"transcribe: {name}: {len(ids)} tokens, a window may be told {most}; shorten it")
        return ids

    def _clips(self, clips) -> list[tuple[int, int]]:
        try:
            pairs = [(float(a), float(b)) for a, b in clips]
        except (TypeError, ValueError):
            pairs = []
        if not pairs or not all(0 <= a < b < float("inf") for a, b in pairs) or any(b > c for (_, b), (c, _) in zip(pairs, pairs[1:])):
            raise InvalidArgumentError(f"transcribe: clips: wanted pairs of seconds (start, end) that rise, got {shown(clips)}")
        return [(round(a / HOP), round(b / HOP)) for a, b in pairs]
