"""/v1/realtime: OpenAI's client and its types against sessions of a stream, by turns and by hand; what is refused, limits, frames that are none, clients
that read nothing, and several at once.

About 40 s."""
import base64
import contextlib
import functools
import json
import os
import random
import socket
import struct
import threading
import time

import numpy as np
import pytest
from openai import OpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests import serving, speech_data
from tests.test_speech_stream import said
from tests.test_transcribe import errors, model
from vivace import audio
from vivace.server.realtime import companded
from vivace.speech import VadSettings

MODEL = "whisper-tiny.en"
EVENTS = TypeAdapter(RealtimeServerEvent)
DELTA, DONE = (f"conversation.item.input_audio_transcription.{what}" for what in ("delta", "completed"))


@pytest.fixture(scope="module")
def served():
    speech_data.weights("silero-vad")
    with serving.serve("--speech", speech_data.weights(MODEL), "--limit", "realtime=3", "--limit", "realtime_bytes=300000", "--limit", "stalled_s=1") as s:
        yield s


@functools.cache
def pcm(rate=24000):
    """said() as i16 bytes."""
    return np.clip(np.rint(audio.resample(said()[0], 16000, rate) * 32768), -32768, 32767).astype("<i2").tobytes()


def update(**given):
    """session.update of the sound's side."""
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": given}}}


def append(data):
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}


COMMIT, CLEAR = {"type": "input_audio_buffer.commit"}, {"type": "input_audio_buffer.clear"}


class Session:
    def __init__(self, ws):
        self.ws = ws

    def send(self, *events):
        for e in events:
            self.ws.send(e if isinstance(e, (str, bytes)) else json.dumps(e))

    def next(self):
        """An event that the client's types take."""
        raw = self.ws.recv(timeout=60)
        EVENTS.validate_json(raw)
        return json.loads(raw)

    def until(self, kind, count=1):
        out = []
        while sum(e["type"] == kind for e in out) < count:
            out.append(self.next())
        return out

    def told(self, *events):
        """What is wrong with the last of these."""
        self.send(*events)
        return self.until("error")[-1]["error"]


@contextlib.contextmanager
def session(served, query="?intent=transcription", first=True, **options):
    with connect(f"ws://{served.host}:{served.port}/v1/realtime{query}", max_size=None, **options) as ws:
        s = Session(ws)
        if first:
            assert s.next()["type"] == "session.created"
        yield s


def pieces(data, seed, most=20000):
    rng, at = random.Random(seed), 0
    while at < len(data):
        n = rng.randint(1, most)
        yield data[at:at + n]
        at += n


def texts(events):
    """Transcripts of the items, each what its deltas make."""
    out = [(e["item_id"], e["transcript"]) for e in events if e["type"] == DONE]
    for item, text in out:
        assert "".join(e["delta"] for e in events if e["type"] == DELTA and e["item_id"] == item) == text
    return [text for _, text in out]


@functools.cache
def alone(rate=24000, step=2.0):
    """What a stream of this process hears."""
    with model(MODEL).stream_audio(rate=rate, step=step, vad=VadSettings(min_speech=0.1, min_silence=0.5, pad=0.3)) as s:
        heard = s.push(pcm(rate)) + s.finish()
    out = [""]
    for h in heard:
        out[-1] += h.stable
        if h.final:
            out.append("")
    return [t.strip() for t in out[:-1]]


def test_the_client(served):
    """Sound in drawn pieces through OpenAI's client: two turns, with the text that a stream of this process hears."""
    client = OpenAI(base_url=f"{served.url}/v1", websocket_base_url=f"ws://{served.host}:{served.port}/v1", api_key="x")
    with client.realtime.connect(extra_query={"intent": "transcription"}) as c:
        assert c.recv().type == "session.created"
        c.session.update(session={"type": "transcription", "audio": {"input": {"format": {"type": "audio/pcm", "rate": 24000}, "transcription": {"model": MODEL, "language": "en", "delay": "high"},
                                                                               "turn_detection": {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500}}}})
        updated = EVENTS.validate_json(c.recv_bytes())
        assert updated.type == "session.updated" and updated.session.audio.input.transcription.model == MODEL and updated.session.audio.input.turn_detection.silence_duration_ms == 500
        for piece in pieces(pcm(), 1):
            c.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
        events = []
        while sum(e["type"] == DONE for e in events) < 2:
            raw = c.recv_bytes()
            EVENTS.validate_json(raw)
            events.append(json.loads(raw))
    assert texts(events) == alone() and errors(said()[1], " ".join(texts(events))) <= 4
    items = list(dict.fromkeys(e["item_id"] for e in events if "item_id" in e))
    for before, item in zip([None, *items], items):
        kinds = [e["type"] for e in events if e.get("item_id", e.get("item", {}).get("id")) == item]
        deltas = kinds.count(DELTA)
        assert deltas and kinds[0] == "input_audio_buffer.speech_started" and kinds[-3:] == ["input_audio_buffer.committed", "conversation.item.added", DONE]
        assert kinds[1:-3] == [*[DELTA] * deltas, "input_audio_buffer.speech_stopped"]
        assert [e["previous_item_id"] for e in events if e["type"].endswith("committed") and e["item_id"] == item] == [before]
    at = [e.get("audio_start_ms", e.get("audio_end_ms")) for e in events if "speech_" in e["type"]]
    assert at == sorted(at) and 500 <= at[0] <= 1300 and at[-1] <= len(pcm()) / 48
    assert len({e["event_id"] for e in events}) == len(events)


def test_by_hand(served):
    """Without turns: an item is what was pushed between two commits; what was cleared is not heard; times go on."""
    with session(served) as s:
        s.send(update(turn_detection=None, transcription={"delay": "xhigh"}))
        assert s.next()["session"]["audio"]["input"]["turn_detection"] is None
        assert s.told(COMMIT)["code"] == "input_audio_buffer_commit_empty"
        s.send(append(pcm()[:200000]), CLEAR)
        assert [e["type"] for e in s.until("input_audio_buffer.cleared")][-1] == "input_audio_buffer.cleared"
        s.send(*(append(p) for p in pieces(pcm(), 2, 200000)), COMMIT)
        events = s.until(DONE)
        text, = texts(events)
        assert errors(said()[1], text) <= 4 and not any("speech_" in e["type"] for e in events)
        assert abs(events[-1]["usage"]["seconds"] - len(pcm()) / 48000) < 0.01
        s.send(append(b"\0\0" * 2400), COMMIT)
        assert s.until(DONE)[-1]["transcript"] == ""
    with session(served, f"?model={MODEL}") as s:  # by turns, and committed in the middle of one
        s.send(update(transcription={"delay": "xhigh"}), append(pcm()[:150000]))
        s.until("input_audio_buffer.speech_started")
        assert s.told(update(turn_detection=None))["code"] == "buffer_not_empty"
        s.send(COMMIT)
        assert len(s.until(DONE)[-1]["transcript"]) > 3
        assert s.told(COMMIT)["code"] == "input_audio_buffer_commit_empty"


@pytest.mark.parametrize("form", ["audio/pcmu", "audio/pcma"])
def test_companded(form):
    """G.711 as its tables have it, and through a code and back."""
    table = companded(form)
    known = {"audio/pcmu": {0xFF: 0, 0x7F: 0, 0x80: 32124, 0x00: -32124, 0xFE: 8, 0xEF: 132}, "audio/pcma": {0xD5: 8, 0x55: -8, 0xAA: 32256, 0x2A: -32256, 0x80: 5504, 0xC5: 264}}[form]
    assert {k: int(table[k]) for k in known} == known
    assert len(table) == 256 and len(set(table.tolist())) in (255, 256)


def test_telephone_line(served):
    x = audio.resample(said()[0], 16000, 8000) * 32768
    table = companded("audio/pcmu").astype(np.int32)
    data = np.abs(x[:, None] - table[None]).argmin(1).astype(np.uint8).tobytes()
    with session(served) as s:
        s.send(update(format={"type": "audio/pcmu"}, turn_detection=None, transcription={"delay": "xhigh"}), append(data), COMMIT)
        events = s.until(DONE)
    assert errors(said()[1], texts(events)[0]) <= 8


@pytest.mark.parametrize("event, code, said", [
    ("{", "invalid_json", "wanted an event as JSON"),
    ('"x"', "invalid_json", ""),
    ("[" * 5000, "invalid_json", ""),
    (b"\0\1", "invalid_json", "text messages"),
    ({"type": "response.create"}, "invalid_value", "'response.create' is none of session.update"),
    ({"event_id": "e7"}, "invalid_type", "missing required field `type`"),
    ({"type": "input_audio_buffer.append"}, "invalid_type", "audio"),
    ({"type": "input_audio_buffer.append", "audio": 5}, "invalid_type", "audio"),
    ({"type": "input_audio_buffer.append", "audio": "%%%"}, "invalid_value", "audio: wanted base64"),
    ({"type": "input_audio_buffer.commit", "speed": 2}, "invalid_type", "speed"),
    ({"type": "session.update", "session": {"type": "realtime"}}, "unsupported_parameter", "session.type"),
    ({"type": "session.update", "session": {"type": "transcription", "include": ["item.input_audio_transcription.logprobs"]}}, "unsupported_parameter", "include"),
    (update(transcription=None), "unsupported_parameter", "transcription"),
    (update(transcription={"model": "whisper-9"}), "model_not_found", "not served here"),
    (update(transcription={"language": "xx"}), "invalid_value", "language"),
    (update(transcription={"languages": ["en", "de"]}), "unsupported_parameter", "languages"),
    (update(transcription={"prompt": "word " * 300}), "invalid_value", "prompt"),
    (update(transcription={"delay": "never"}), "invalid_type", "delay"),
    (update(noise_reduction={"type": "near_field"}), "unsupported_parameter", "noise_reduction"),
    (update(format={"type": "audio/pcm", "rate": 1}), "invalid_value", "rate: wanted 8000"),
    (update(format={"type": "audio/opus"}), "invalid_type", "format"),
    (update(turn_detection={"type": "semantic_vad"}), "unsupported_parameter", "server_vad, or null"),
    (update(turn_detection={"type": "server_vad", "threshold": 7}), "invalid_value", "threshold"),
    (update(turn_detection={"type": "server_vad", "create_response": True}), "unsupported_parameter", "create_response"),
])
def test_refused_events(served, event, code, said):
    """Said with the event's own id; the session goes on, as it was."""
    with session(served) as s:
        if isinstance(event, dict):
            event = event | {"event_id": "mine"}
        error = s.told(event)
        assert error["code"] == code and said in error["message"] and error["event_id"] == ("mine" if isinstance(event, dict) else None), error
        s.send(update())
        assert s.next()["session"]["audio"]["input"]["turn_detection"]["type"] == "server_vad"


@pytest.mark.parametrize("path, headers, status", [
    ("/v1/realtime?intent=conversation", {}, 400), ("/v1/realtime?model=gpt-realtime", {}, 404), ("/v1/chat/completions", {}, 404), ("/", {}, 404),
    ("/v1/realtime", {"origin": "http://elsewhere.example"}, 403), ("/v1/realtime", {"host": "elsewhere.example"}, 403),
])
def test_refused_connections(served, path, headers, status):
    with socket.create_connection((served.host, served.port), timeout=30) as raw:
        raw.sendall(handshake(served, path, headers))
        got = raw.recv(1 << 16)
    assert got.startswith(b"HTTP/1.1 %d " % status) and b'"message"' in got, got
    assert served.ask("GET", "/v1/realtime")[0] == 404


def handshake(served, path="/v1/realtime", headers=()):
    head = {"host": f"{served.host}:{served.port}", "upgrade": "websocket", "connection": "Upgrade", "sec-websocket-version": "13", "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(), **dict(headers)}
    return (f"GET {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in head.items()) + "\r\n").encode()


def test_keys(tmp_path):
    """A key in a header, or as a subprotocol, which is all that browsers can say."""
    speech_data.weights("silero-vad")
    file = tmp_path / "keys"
    file.write_text("secret-key\n")
    file.chmod(0o600)
    with serving.serve("--speech", speech_data.weights(MODEL), "--api-key-file", str(file), "--limit", "realtime_s=2") as s:
        with pytest.raises(InvalidStatus, match="401"):
            with session(s):
                pass
        with session(s, additional_headers={"authorization": "Bearer secret-key"}):
            pass
        with session(s, subprotocols=["realtime", "openai-insecure-api-key.secret-key"]) as c:
            assert c.ws.subprotocol == "realtime"
            assert c.until("error")[-1]["error"]["code"] == "session_expired"
            with pytest.raises(ConnectionClosed):
                c.next()


def frame(data, opcode=1, fin=True, mask=b"\1\2\3\4"):
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
    return bytes([fin << 7 | opcode]) + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data))


def closed(served, data):
    """The close code that these bytes get behind a handshake; None where the connection ends without."""
    with socket.create_connection((served.host, served.port), timeout=30) as raw:
        raw.sendall(handshake(served))
        got = raw.recv(1 << 16)
        while b"session.created" not in got:
            got += raw.recv(1 << 16)
        with contextlib.suppress(ConnectionError):
            raw.sendall(data)
            got = b""
            while block := raw.recv(1 << 16):
                got += block
    return struct.unpack(">H", got[got.index(b"\x88") + 2:][:2])[0] if b"\x88" in got else None


def test_limits_and_frames(served):
    with session(served) as s:
        with pytest.raises(ConnectionClosed) as e:
            s.send("x" * 300001)
            s.next()
        assert e.value.rcvd.code == 1009
    assert closed(served, b"\x81\xff" + struct.pack(">Q", 1 << 40) + b"\0" * 4) == 1009, "a size that is only said"
    assert closed(served, frame(b"x", fin=False) + b"".join(frame(b"", 0, fin=False) for _ in range(1100))) == 1008
    assert closed(served, b"\x81\x05hello") == 1002, "not masked"
    assert closed(served, frame(b"\xff\xfe")) == 1007
    assert closed(served, frame(b"x", 3)) == 1002
    with contextlib.ExitStack() as many:
        for _ in range(3):
            many.enter_context(session(served))
        with pytest.raises(InvalidStatus, match="429"), session(served):
            pass
    for cut in (3, 40, 1000):  # half a message, then nobody
        with socket.create_connection((served.host, served.port), timeout=30) as raw:
            raw.sendall((handshake(served) + frame(json.dumps(append(b"\0" * 300)).encode()))[:cut])
    with session(served) as s:
        s.send(update())
        s.until("session.updated")


def test_who_reads_nothing(served):
    """A client that sends and takes nothing is cut off; the server and others go on."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(60)
    with raw, session(served) as other:
        raw.connect((served.host, served.port))
        raw.sendall(handshake(served))
        bad = frame(json.dumps({"type": "x" * 60}).encode())
        with pytest.raises((ConnectionError, socket.timeout)) as e:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                raw.sendall(bad * 100)
        assert not isinstance(e.value, socket.timeout)
        other.send(update())
        other.until("session.updated")


def test_side_by_side(served):
    """Three sessions and a file at once: each hears what it hears alone."""
    found, data = {}, pcm()

    def hear(n):
        with session(served, ping_interval=None) as s:  # on busy cores an update may take longer than a ping waits
            s.send(update(transcription={"delay": "high"}))
            s.until("session.updated")
            for piece in pieces(data, n, 64000):
                s.send(append(piece))
            found[n] = texts(s.until(DONE, 2))

    threads = [threading.Thread(target=hear, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    file = ("a.wav", speech_data.librivox()["0930"][0])
    text = OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0).audio.transcriptions.create(model=MODEL, file=file).text
    for t in threads:
        t.join(120)
    assert errors(speech_data.librivox()["0930"][1], text) <= 2
    assert [found.get(n) for n in range(3)] == [alone()] * 3
