"""/v1/audio/transcriptions and /v1/audio/translations: a sound file to text, subtitles or JSON, whole or segment by segment."""
from __future__ import annotations

import asyncio
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor

import msgspec

from vivace.errors import CorruptDataError, Error, NotFoundError
from vivace.server import multipart
from vivace.server.errors import ApiError, bad, busy, of_engine, shutting_down, unsupported
from vivace.server.tokens import token_bytes
from vivace.server.web import EVENT_HEADERS, Call, Left
from vivace.speech.formats import written
from vivace.speech.languages import NAMES
from vivace.speech.vad import Settings

FORMATS = {"json": b"application/json", "text": b"text/plain; charset=utf-8", "srt": b"application/x-subrip; charset=utf-8", "vtt": b"text/vtt; charset=utf-8", "verbose_json": b"application/json"}
_FIELDS = ("file", "model", "language", "prompt", "response_format", "temperature", "stream", "include", "timestamp_granularities", "chunking_strategy")
_LISTS = ("include", "timestamp_granularities")
STREAM_THREADS = 16
_TEXT_BYTES = 64 << 10  # of a field that is no file


class Speech:
    """A speech model behind the routes: one transcription at a time, and some that wait."""

    def __init__(self, model, name: str, *, most_waiting: int = 16):
        self.model, self.name, self.most = model, name, 1 + most_waiting
        self.asked = 0  # transcriptions that run or wait
        self.sessions = 0  # of /v1/realtime
        self.leave = False  # transcriptions end at their next window
        self._bytes: list[bytes] | None = None  # of each token, once somebody asks for probabilities
        self._pool = ThreadPoolExecutor(1, "vivace-speech")
        self._streams = ThreadPoolExecutor(STREAM_THREADS, "vivace-realtime")  # they wait for a window's end, not for a transcription's
        try:
            model._activity_weights()
            self.vad = True
        except NotFoundError:
            self.vad = False

    @contextlib.contextmanager
    def admitted(self):
        if self.asked >= self.most:
            raise busy(f"{self.asked} transcriptions run or wait already, at most {self.most} may", 1000)
        self.asked += 1
        try:
            yield
        finally:
            self.asked -= 1

    def run(self, work):
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def streamed(self, work):
        return asyncio.get_running_loop().run_in_executor(self._streams, work)

    def logprobs(self, segment) -> list[dict]:
        """The tokens of a segment's text, as OpenAI's: what they write, and how likely each was."""
        if self._bytes is None:
            self._bytes, _ = token_bytes(self.model.text, self.model._live.limits()["vocab"])
        own = [(self._bytes[t], p) for t, p in zip(segment.tokens, segment.logprobs) if t < self.model._special["eot"]]
        return [{"token": raw.decode("utf-8", "replace"), "logprob": p, "bytes": list(raw)} for raw, p in own]

    def close(self) -> None:
        for pool in (self._pool, self._streams):
            pool.shutdown(wait=True, cancel_futures=True)


class Asked:
    """The form's fields, checked. Errors: ApiError 400 names the field."""

    def __init__(self, parts, engine, *, translate: bool):
        given: dict = {}
        for part in parts:
            name = part.name.removesuffix("[]")
            if name not in _FIELDS or (translate and name in ("language", "stream", "include", "timestamp_granularities", "chunking_strategy")):
                raise bad(f"{name[:80]}: no such field", name[:80], "unknown_parameter")
            if name == "file":
                value = part.value
            elif len(part.value) > _TEXT_BYTES:
                raise bad(f"{name}: more than {_TEXT_BYTES} bytes", name, "invalid_value")
            else:
                try:
                    value = bytes(part.value).decode()
                except UnicodeDecodeError:
                    raise bad(f"{name}: no UTF-8", name, "invalid_value") from None
            if name in _LISTS:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise multipart.too_many(name)
            else:
                given[name] = value
        speech = engine.speech
        for name in ("file", "model"):
            if name not in given:
                raise bad(f"{name}: it is missing", name, "invalid_type")
        if given["model"] != speech.name:
            raise ApiError(404, f"model: {given['model'][:80]!r} is not served here; {speech.name!r} hears", code="model_not_found", param="model")
        self.sound = given["file"]
        self.form = given.get("response_format", "json")
        if self.form == "diarized_json":
            raise unsupported("response_format", "who speaks is not told apart here")
        if self.form not in FORMATS:
            raise bad(f"response_format: wanted one of {', '.join(FORMATS)}, got {self.form[:40]!r}", "response_format", "invalid_value")
        self.stream = _flag("stream", given.get("stream", "false"))
        if self.stream and self.form not in ("json", "text"):
            raise bad("stream: with json and text only", "stream", "invalid_value")
        if unknown := [f for f in given.get("include", []) if f != "logprobs"]:
            raise bad(f"include: wanted logprobs, got {unknown[0][:40]!r}", "include", "invalid_value")
        self.logprobs = "include" in given
        if self.logprobs and self.form != "json":
            raise bad("include: logprobs come with response_format json only", "include", "invalid_value")
        fine = given.get("timestamp_granularities", [])
        if unknown := [f for f in fine if f not in ("word", "segment")]:
            raise bad(f"timestamp_granularities: wanted word or segment, got {unknown[0][:40]!r}", "timestamp_granularities", "invalid_value")
        if fine and self.form != "verbose_json":
            raise bad("timestamp_granularities: with response_format verbose_json only", "timestamp_granularities", "invalid_value")
        self.segments = not fine or "segment" in fine
        self.options = {"task": "translate" if translate else "transcribe", "words": "word" in fine, "vad": self._vad(given.get("chunking_strategy"), speech)}
        if translate and not speech.model._special["multilingual"]:
            raise unsupported("model", "it knows English alone and does not translate")
        if "language" in given:
            code = {v: k for k, v in NAMES.items()}.get(given["language"].lower(), given["language"].lower())
            if code not in speech.model.languages:
                raise bad(f"language: {given['language'][:40]!r} is none that this model knows; wanted a code such as {speech.model.languages[0]}", "language", "invalid_value")
            self.options["language"] = code
        if given.get("prompt"):
            most = speech.model._live.limits()["positions"] // 2 - 1
            self.options["prompt"] = speech.model.text.encode(" " + given["prompt"].strip())[-most:]  # its end counts, as in OpenAI's
        temperature = _number("temperature", given.get("temperature", "0"))
        if not 0 <= temperature <= 1:
            raise bad(f"temperature: wanted 0 to 1, got {temperature:g}", "temperature", "invalid_value")
        if temperature:
            self.options["temperature"] = temperature

    @staticmethod
    def _vad(given: str | None, speech):
        if given is None or given == "null":
            return "guard" if speech.vad else False
        if not speech.vad:
            raise unsupported("chunking_strategy", "the voice activity detector is not there; python -m vivace.fetch silero-vad")
        if given == "auto":
            return True
        try:
            asked = msgspec.json.decode(given.encode(), type=dict[str, object])
            kind = asked.pop("type", None)
            if kind != "server_vad" or (unknown := set(asked) - {"threshold", "prefix_padding_ms", "silence_duration_ms"}):
                raise ValueError(f"wanted auto, or type server_vad with threshold, prefix_padding_ms and silence_duration_ms{f', got {min(unknown)[:40]!r}' if kind == 'server_vad' else ''}")
            return Settings(threshold=asked.get("threshold", 0.5), pad=_ms(asked.get("prefix_padding_ms", 300)), min_silence=_ms(asked.get("silence_duration_ms", 200)))
        except (ValueError, Error) as e:  # msgspec's are ValueErrors
            raise bad(f"chunking_strategy: {str(e)[:200]}", "chunking_strategy", "invalid_value") from None


def _ms(value) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("wanted milliseconds")
    return value / 1000


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false", "True", "False", "1", "0"):
        raise bad(f"{name}: wanted true or false, got {value[:40]!r}", name, "invalid_value")
    return value in ("true", "True", "1")


def _number(name: str, value: str) -> float:
    try:
        return float(value) if len(value) <= 40 else float("nan")
    except ValueError:
        raise bad(f"{name}: wanted a number, got {value[:40]!r}", name, "invalid_type") from None


def body_of(t, asked: Asked, speech) -> bytes:
    usage = {"type": "duration", "seconds": round(t.duration)}
    if asked.form == "json":
        likely = {"logprobs": [p for s in t.segments for p in speech.logprobs(s)]} if asked.logprobs else {}
        return msgspec.json.encode({"text": t.text, **likely, "usage": usage})
    if asked.form != "verbose_json":
        return written(t, asked.form).encode()
    d = json.loads(written(t, "verbose_json")) | {"language": NAMES.get(t.language, t.language), "usage": usage}
    if asked.options["words"]:
        d["words"] = [{"word": w["word"], "start": w["start"], "end": w["end"]} for w in d.get("words", [])]
    for s in d["segments"]:
        s.pop("words", None)
    if not asked.segments:
        del d["segments"]
    return json.dumps(d, ensure_ascii=False).encode()


def _event(kind: str, **fields) -> bytes:
    return b"data: " + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"


async def transcriptions(call: Call, engine) -> None:
    await _hear(call, engine, translate=False)


async def translations(call: Call, engine) -> None:
    await _hear(call, engine, translate=True)


async def _hear(call: Call, engine, *, translate: bool) -> None:
    speech = engine.speech
    if speech is None:
        raise ApiError(404, "no speech model is served here; vivace serve --speech NAME adds one", code="model_not_found")
    if engine.draining:
        raise shutting_down()
    with speech.admitted():
        body = await call.body(multipart.KIND, call.limits.audio_bytes)
        mark = multipart.boundary(call.header(b"content-type") or b"")
        asked = await engine.prepare(lambda: Asked(multipart.parts(body, mark), engine, translate=translate))
        if asked.stream and engine.streams >= call.limits.streams:
            raise busy(f"{engine.streams} streams are open already, and no more are kept", 1000)
        loop, said, gone = asyncio.get_running_loop(), asyncio.Queue(), []

        def work():
            def stop(done, all_):
                if gone or speech.leave or engine.draining and loop.is_closed():
                    raise Left

            def came(segment):
                if gone:
                    raise Left
                loop.call_soon_threadsafe(said.put_nowait, (segment.text, speech.logprobs(segment) if asked.logprobs else None))

            stop(0, 0)
            return speech.model.transcribe(bytes(asked.sound), on_progress=stop, on_segment=came, most_seconds=call.limits.audio_s, **asked.options)

        call.work_began = True
        task = asyncio.ensure_future(speech.run(work))
        task.add_done_callback(lambda _: said.put_nowait(None))
        engine.streams += asked.stream
        try:
            async with call.watched(lambda: gone.append(True)):
                await (_streamed if asked.stream else _whole)(call, asked, task, said, speech)
        except CorruptDataError as e:
            raise bad(f"file: {e}", "file", "invalid_value") from None
        except Error as e:
            raise of_engine(e, began=True) from None
        finally:
            engine.streams -= asked.stream
            gone.append(True)
            with contextlib.suppress(BaseException):
                await asyncio.shield(task)  # its place is free when it is over


async def _whole(call: Call, asked: Asked, task, said, speech) -> None:
    t = await task
    await call.whole(body_of(t, asked, speech), FORMATS[asked.form])


async def _streamed(call: Call, asked: Asked, task, said, speech) -> None:
    began, text, every = False, "", []
    while (came := await said.get()) is not None:
        delta, likely = came
        every += likely or []
        if not began:
            await call.begin(EVENT_HEADERS)
            began, delta = True, delta.lstrip()
        text += delta
        if delta:
            await _sent(call, _event("transcript.text.delta", delta=delta, **({"logprobs": likely} if asked.logprobs else {})))
    t = await task  # raises what went wrong
    if not began:
        await call.begin(EVENT_HEADERS)
    await _sent(call, _event("transcript.text.done", text=text, **({"logprobs": every} if asked.logprobs else {}), usage={"type": "duration", "seconds": round(t.duration)}), last=True)


async def _sent(call: Call, event: bytes, *, last: bool = False) -> None:
    """Errors: Left, where the client takes nothing for too long."""
    try:
        await asyncio.wait_for(call.part(event, last=last), call.limits.stalled_s)
    except asyncio.TimeoutError:
        call.abort()
        raise Left from None
