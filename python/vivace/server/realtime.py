"""/v1/realtime: OpenAI's realtime transcription over a WebSocket. Sound comes in pieces, and text goes out while it is said."""
from __future__ import annotations

import asyncio
import base64
import binascii
import os
import time
from typing import Literal, Union
from urllib.parse import parse_qs

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from vivace.errors import Error
from vivace.server.errors import ApiError, bad, busy, of_engine, shutting_down, unsupported
from vivace.server.web import Left
from vivace.speech.languages import NAMES
from vivace.speech.vad import Settings

PATH = "/v1/realtime"
DELAYS = {"minimal": 0.3, "low": 0.5, "medium": 1.0, "high": 2.0, "xhigh": 4.0}  # seconds between updates while somebody speaks
PIECE_S = 1.0  # of sound that is heard before what it said goes out
RATES = (8000, 48000)
_ITEM = "conversation.item.input_audio_transcription"


class Pcm(msgspec.Struct, tag_field="type", tag="audio/pcm", forbid_unknown_fields=True):
    rate: int = 24000


class Pcmu(msgspec.Struct, tag_field="type", tag="audio/pcmu", forbid_unknown_fields=True):
    rate: Literal[8000] = 8000


class Pcma(msgspec.Struct, tag_field="type", tag="audio/pcma", forbid_unknown_fields=True):
    rate: Literal[8000] = 8000


class ServerVad(msgspec.Struct, tag_field="type", tag="server_vad", forbid_unknown_fields=True):
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: int | None = None


class SemanticVad(msgspec.Struct, tag_field="type", tag="semantic_vad"):
    pass


class Transcription(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    model: str | None | UnsetType = UNSET
    language: str | None | UnsetType = UNSET
    prompt: str | None | UnsetType = UNSET
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None | UnsetType = UNSET
    keywords: list[str] | None | UnsetType = UNSET
    languages: list[str] | None = None


class Input(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: Union[Pcm, Pcmu, Pcma, None, UnsetType] = UNSET
    noise_reduction: dict | None = None
    transcription: Transcription | None | UnsetType = UNSET
    turn_detection: Union[ServerVad, SemanticVad, None, UnsetType] = UNSET


class Audio(msgspec.Struct, forbid_unknown_fields=True):
    input: Input = msgspec.field(default_factory=Input)


class Session(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    audio: Audio = msgspec.field(default_factory=Audio)
    include: list[str] | None = None


class _Event(msgspec.Struct, tag_field="type", forbid_unknown_fields=True):
    event_id: str | None = None


class Update(_Event, tag="session.update", kw_only=True):
    session: Session


class Append(_Event, tag="input_audio_buffer.append", kw_only=True):
    audio: str


class Commit(_Event, tag="input_audio_buffer.commit"):
    pass


class Clear(_Event, tag="input_audio_buffer.clear"):
    pass


_DECODER = msgspec.json.Decoder(Union[Update, Append, Commit, Clear])


class _Any(msgspec.Struct):
    type: str | None = None
    event_id: str | None = None


def companded(form: str) -> np.ndarray:
    """The 256 values of G.711 as i16."""
    code = np.arange(256)
    if form == "audio/pcmu":
        code = ~code & 0xFF
        size = ((((code & 15) << 3) + 0x84) << (code >> 4 & 7)) - 0x84
        return np.where(code & 0x80, -size, size).astype("<i2")
    code = code ^ 0x55
    step, low = code >> 4 & 7, (code & 15) << 4
    size = np.where(step == 0, low + 8, (low + 0x108) << np.maximum(step - 1, 0))
    return np.where(code & 0x80, size, -size).astype("<i2")


_TABLES = {form: companded(form) for form in ("audio/pcmu", "audio/pcma")}


class Options:
    """A session's settings, as session.update changes them. Errors: ApiError 400 names the field."""

    def __init__(self, speech):
        self.speech = speech
        self.form, self.rate = "audio/pcm", 24000
        self.language = self.prompt = self.keywords = None
        self.delay = "medium"
        self.turn = ServerVad()

    def changed(self, asked: Session) -> "Options":
        """A copy with what was asked for; nothing changes where something of it is refused."""
        new = Options.__new__(Options)
        new.__dict__ |= self.__dict__
        at, given = "session.audio.input", asked.audio.input
        if asked.type != "transcription":
            raise unsupported("session.type", "sessions transcribe here; wanted transcription")
        if asked.include:
            raise unsupported("session.include", "probabilities of tokens are not kept")
        if given.noise_reduction is not None:
            raise unsupported(f"{at}.noise_reduction", "sound is heard as it comes")
        if given.format is not UNSET:
            form = given.format or Pcm()
            if not RATES[0] <= form.rate <= RATES[1]:
                raise bad(f"{at}.format.rate: wanted {RATES[0]} to {RATES[1]}, got {form.rate}", f"{at}.format.rate", "invalid_value")
            new.form, new.rate = type(form).__struct_config__.tag, form.rate
        if given.transcription is None:
            raise unsupported(f"{at}.transcription", "a session without it has nothing to do here")
        if given.transcription is not UNSET:
            new._transcription(given.transcription, f"{at}.transcription")
        if given.turn_detection is not UNSET:
            new._turn(given.turn_detection, f"{at}.turn_detection")
        return new

    def _transcription(self, t: Transcription, at: str) -> None:
        model = self.speech.model
        if t.model not in (UNSET, None, self.speech.name):
            raise ApiError(404, f"{at}.model: {t.model[:80]!r} is not served here; {self.speech.name!r} hears", code="model_not_found", param=f"{at}.model")
        if t.languages:
            raise unsupported(f"{at}.languages", "name one as language, or none")
        if t.language is not UNSET:
            self.language = None if t.language is None else {v: k for k, v in NAMES.items()}.get(t.language.lower(), t.language.lower())
            if self.language is not None and self.language not in model.languages:
                raise bad(f"{at}.language: {t.language[:40]!r} is none that this model knows; wanted a code such as {model.languages[0]}", f"{at}.language", "invalid_value")
        if t.delay is not UNSET:
            self.delay = t.delay or "medium"
        try:
            for name, value in (("prompt", t.prompt), ("keywords", t.keywords)):
                if value is not UNSET:
                    text = ", ".join(value) if isinstance(value, list) else value
                    model._prompt(name, text)
                    setattr(self, name, text or None)
        except Error as e:
            raise bad(f"{at}.{str(e).removeprefix('transcribe: ')}", f"{at}.{name}", "invalid_value") from None

    def _turn(self, turn, at: str) -> None:
        if isinstance(turn, SemanticVad):
            raise unsupported(f"{at}.type", "wanted server_vad, or null")
        if turn is not None:
            for name in ("create_response", "interrupt_response", "idle_timeout_ms"):
                if getattr(turn, name):
                    raise unsupported(f"{at}.{name}", "sessions transcribe here and answer nothing")
            try:
                self._settings(turn)
            except Error as e:
                raise bad(f"{at}: {e}", at, "invalid_value") from None
        self.turn = turn

    @staticmethod
    def _settings(turn: ServerVad) -> Settings:
        return Settings(threshold=turn.threshold, min_speech=0.1, pad=turn.prefix_padding_ms / 1000, min_silence=turn.silence_duration_ms / 1000)

    def stream(self):
        """A stream of the model with these settings."""
        return self.speech.model.stream_audio(rate=self.rate, language=self.language, prompt=self.prompt, hotwords=self.keywords, step=DELAYS[self.delay],
                                              vad=None if self.turn is None else self._settings(self.turn))

    def shown(self, session: str) -> dict:
        form = {"type": self.form, "rate": self.rate} if self.form == "audio/pcm" else {"type": self.form}
        turn = None if self.turn is None else {"type": "server_vad", **{n: getattr(self.turn, n) for n in ("threshold", "prefix_padding_ms", "silence_duration_ms")}}
        heard = {"model": self.speech.name, "language": self.language, "prompt": self.prompt, "delay": self.delay, "keywords": None if self.keywords is None else self.keywords.split(", ")}
        return {"id": session, "object": "realtime.transcription_session", "type": "transcription", "include": None,
                "audio": {"input": {"format": form, "noise_reduction": None, "transcription": heard, "turn_detection": turn}}}


class Socket:
    """A session on one connection."""

    def __init__(self, scope, receive, send, engine):
        self.scope, self.receive, self._send, self.engine, self.speech = scope, receive, send, engine, engine.speech
        self.limits, self.id, self.events = engine.limits, f"sess_{os.urandom(12).hex()}", 0
        self.options, self.sound = Options(engine.speech), None
        self.item = self.before = None  # ids of the utterance that is said, and of the one before
        self.began = 0.0                # of it, in seconds
        self.text = ""                  # what is stable of it
        self.past = 0.0                 # seconds of sound that earlier streams heard
        self.pushed = 0                 # samples since the stream began

    async def run(self) -> None:
        await self._send({"type": "websocket.accept", "subprotocol": "realtime" if "realtime" in self.scope["subprotocols"] else None})
        await self.say("session.created", session=self.options.shown(self.id))
        ends = time.monotonic() + self.limits.realtime_s
        while True:
            try:
                message = await asyncio.wait_for(self.receive(), max(0.0, ends - time.monotonic()))
            except asyncio.TimeoutError:
                await self.say_error(ApiError(408, f"a session lasts {self.limits.realtime_s:g} s at most; begin another", code="session_expired"), None)
                return await self._close(1000)
            if message["type"] == "websocket.disconnect":
                return
            if self.engine.draining:
                await self.say_error(shutting_down(), None)
                return await self._close(1012)
            await self.take(message)

    async def take(self, message) -> None:
        """One event of the client's. What is wrong with it is said, and the session goes on."""
        event_id = None
        try:
            if (text := message.get("text")) is None:
                raise bad("wanted JSON in text messages, got bytes", code="invalid_json")
            event = self._event(text)
            event_id = event.event_id
            if isinstance(event, Append):
                await self.append(event)
            elif isinstance(event, Commit):
                await self.commit()
            elif isinstance(event, Clear):
                await self.clear()
            else:
                await self.update(event.session)
        except ApiError as e:
            await self.say_error(e, getattr(e, "event_id", event_id))

    @staticmethod
    def _event(text: str):
        try:
            return _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
            why, _, path = str(e).partition(" - at `")
            at, known = path.rstrip("`").removeprefix("$").lstrip("."), _Any()
            try:
                known = msgspec.json.decode(text, type=_Any)
                kind = (known.type or "")[:80]
                error = ApiError(400, f"type: {kind!r} is none of {', '.join(t.__struct_config__.tag for t in (Update, Append, Commit, Clear))}", param="type", code="invalid_value") if at == "type" else \
                    bad(f"{at}: {why[:200]}" if at else why[:200], at or None, "invalid_type")
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                error = bad(f"wanted an event as JSON: {why[:200]}", code="invalid_json")
            error.event_id = known.event_id
            raise error from None

    async def update(self, asked: Session) -> None:
        if self.item is not None or (self.options.turn is None and self.pushed):
            raise bad("session: sound waits that was not committed; commit or clear it first", "session", "buffer_not_empty")
        new = await self.engine.prepare(self.options.changed, asked)
        await self._drop()
        self.options = new
        await self.say("session.updated", session=new.shown(self.id))

    async def append(self, event: Append) -> None:
        try:
            data = base64.b64decode(event.audio, validate=True)
        except (binascii.Error, ValueError):
            raise bad("audio: wanted base64", "audio", "invalid_value") from None
        event.audio = ""
        if (table := _TABLES.get(self.options.form)) is not None:
            data = table[np.frombuffer(data, np.uint8)].tobytes()
        step = round(PIECE_S * self.options.rate) * 2
        for first in range(0, len(data), step):
            piece = data[first:first + step]
            self.pushed += len(piece) / 2
            await self.hear(lambda piece=piece: self._stream().push(piece))

    def _stream(self):
        if self.sound is None:
            self.sound = self.options.stream()
        return self.sound

    async def hear(self, work) -> None:
        """Runs what pushes to the stream, and says what was heard."""
        try:
            found = await self.speech.streamed(work)
        except Error as e:
            error = of_engine(e, began=True)
            if self.item is not None:
                await self.say(f"{_ITEM}.failed", item_id=self.item, content_index=0, error=error.body()["error"])
            self.item = None
            await self._drop()
            raise error from None
        by_turns = self.options.turn is not None
        for heard in found:
            if by_turns or heard.stable:
                await self._open(heard.start)
            if heard.stable:
                delta = heard.stable if self.text else heard.stable.lstrip()
                self.text += delta
                await self.say(f"{_ITEM}.delta", item_id=self.item, content_index=0, delta=delta)
            if heard.final and by_turns:
                await self.say("input_audio_buffer.speech_stopped", item_id=self.item, audio_end_ms=round((self.past + heard.at) * 1000))
                await self._done(heard.at - self.began)
        if by_turns and self.sound is not None and (start := self.sound.speaking) is not None:
            await self._open(start)

    async def _open(self, start: float) -> None:
        """An item begins, where none has."""
        if self.item is None:
            self.item, self.text, self.began = f"item_{os.urandom(12).hex()}", "", start
            if self.options.turn is not None:
                await self.say("input_audio_buffer.speech_started", item_id=self.item, audio_start_ms=round((self.past + start) * 1000))

    async def _done(self, seconds: float) -> None:
        """Its last text is out."""
        item, before, self.before, self.item = self.item, self.before, self.item, None
        await self.say("input_audio_buffer.committed", item_id=item, previous_item_id=before)
        content = [{"type": "input_audio", "transcript": self.text}]
        await self.say("conversation.item.added", previous_item_id=before, item={"id": item, "object": "realtime.item", "type": "message", "status": "completed", "role": "user", "content": content})
        await self.say(f"{_ITEM}.completed", item_id=item, content_index=0, transcript=self.text, usage={"type": "duration", "seconds": round(seconds, 3)})

    async def commit(self) -> None:
        """What was pushed is all of an item: what is unsaid of it is decided now."""
        seconds = self.pushed / self.options.rate
        if not self.pushed or (self.options.turn is not None and self.item is None):
            raise bad("commit: no sound waits to be committed", code="input_audio_buffer_commit_empty")
        if self.options.turn is None:
            await self.hear(lambda: self._stream().finish())
            await self._open(0.0)
            await self._done(seconds)
        else:
            await self.hear(lambda: self._stream().finish())
        await self._drop()

    async def clear(self) -> None:
        self.item = None
        await self._drop()
        await self.say("input_audio_buffer.cleared")

    async def _drop(self) -> None:
        """The stream ends; what it did not say is lost. The next one's times go on from here."""
        if self.sound is not None:
            self.sound.close()
        self.past, self.pushed, self.sound = self.past + self.pushed / self.options.rate, 0, None

    async def say(self, kind: str, **fields) -> None:
        """Errors: Left, where the client takes nothing for too long."""
        self.events += 1
        text = msgspec.json.encode({"type": kind, "event_id": f"event_{self.events}", **fields}).decode()
        try:
            await asyncio.wait_for(self._send({"type": "websocket.send", "text": text}), self.limits.stalled_s)
        except asyncio.TimeoutError:
            self.scope["vivace.abort"]()
            raise Left from None
        except OSError:  # it is gone
            raise Left from None

    async def say_error(self, e: ApiError, event_id: str | None) -> None:
        await self.say("error", error=e.body()["error"] | {"event_id": event_id})

    async def _close(self, code: int) -> None:
        await self._send({"type": "websocket.close", "code": code})


def asked(scope, engine) -> None:
    """Whether a connection may begin. Errors: ApiError."""
    if engine.speech is None:
        raise ApiError(404, "no speech model is served here; vivace serve --speech NAME adds one", code="model_not_found")
    if not engine.speech.vad:
        raise ApiError(501, "the voice activity detector is not there; python -m vivace.fetch silero-vad", code="unsupported_parameter")
    if engine.draining:
        raise shutting_down()
    try:
        query = parse_qs(scope["query_string"].decode("ascii"), max_num_fields=16)
    except ValueError:
        raise bad("the query is none", code="invalid_value") from None
    for name, wanted in (("intent", "transcription"), ("model", engine.speech.name)):
        if query.get(name, [wanted])[-1] != wanted:
            raise ApiError(404 if name == "model" else 400, f"{name}: {query[name][-1][:80]!r} is not served here; wanted {wanted}", param=name, code="model_not_found" if name == "model" else "unsupported_parameter")
    if engine.speech.sessions >= engine.limits.realtime:
        raise busy(f"{engine.speech.sessions} realtime sessions are open already, and no more are kept", 1000)


async def realtime(scope, receive, send, engine) -> None:
    asked(scope, engine)
    socket = Socket(scope, receive, send, engine)
    engine.speech.sessions += 1
    try:
        await socket.run()
    finally:
        engine.speech.sessions -= 1
        await socket._drop()
