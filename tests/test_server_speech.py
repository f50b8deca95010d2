"""/v1/audio: what OpenAI's own client makes of the answers, subtitles, streams of text, and what is refused."""
import struct

import numpy as np
import pytest
from openai import OpenAI
from openai.types.audio import TranscriptionVerbose

from tests import serving, speech_data
from tests.test_transcribe import cues, errors
from vivace import audio
from vivace.server import multipart
from vivace.server.errors import ApiError

MODEL = "whisper-tiny.en"


@pytest.fixture(scope="module")
def served():
    with serving.serve("--speech", speech_data.weights(MODEL), "--limit", "audio_bytes=400000", "--limit", "audio_s=20") as s:
        yield s


@pytest.fixture(scope="module")
def client(served):
    return OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)


def sentence():
    raw, text = speech_data.librivox()["0890"]
    return ("talk.wav", raw), text


def test_the_client(client):
    """Every form, as the client's types take it."""
    file, want = sentence()
    ask = lambda **more: client.audio.transcriptions.create(model=MODEL, file=file, **more)  # noqa: E731
    t = ask()
    assert errors(want, t.text) <= 1 and t.usage.type == "duration" and t.usage.seconds == 5
    verbose = ask(response_format="verbose_json", timestamp_granularities=["word", "segment"], language="en", prompt="A novel.", chunking_strategy="auto")
    TranscriptionVerbose.model_validate(verbose.model_dump(), strict=True)
    assert verbose.language == "english" and abs(verbose.duration - 5.3) < 0.1 and verbose.segments[0].tokens
    assert [w.word for w in verbose.words][0] == "Unless" and all(w.start <= w.end for w in verbose.words)
    assert ask(response_format="verbose_json", timestamp_granularities=["word"]).segments is None
    assert len(cues(ask(response_format="srt"), ",")) == len(cues(ask(response_format="vtt"), ".")) >= 1
    assert errors(want, ask(response_format="text")) <= 1
    with pytest.raises(Exception, match="English alone"):
        client.audio.translations.create(model=MODEL, file=file)
    assert MODEL in [m.id for m in client.models.list()]


def test_a_stream(client):
    file, want = sentence()
    events = list(client.audio.transcriptions.create(model=MODEL, file=file, stream=True))
    assert [e.type for e in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1) and events[-1].type == "transcript.text.done"
    assert "".join(e.delta for e in events[:-1]) == events[-1].text and errors(want, events[-1].text) <= 1
    assert [e.type for e in client.audio.transcriptions.create(model=MODEL, file=("a.wav", wav(np.zeros(16000))), stream=True)] == ["transcript.text.done"]


def test_probabilities_of_tokens(client):
    """Whole and streamed: their bytes are the text, and their mean is the segment's."""
    file, want = sentence()
    t = client.audio.transcriptions.create(model=MODEL, file=file, include=["logprobs"])
    assert bytes(int(b) for p in t.logprobs for b in p.bytes).decode().strip() == t.text and "".join(p.token for p in t.logprobs).strip() == t.text
    assert all(p.logprob <= 0 for p in t.logprobs) and -1 < sum(p.logprob for p in t.logprobs) / len(t.logprobs) < 0
    *deltas, done = client.audio.transcriptions.create(model=MODEL, file=file, include=["logprobs"], stream=True)
    assert [p.model_dump() for p in done.logprobs] == [p.model_dump() for p in t.logprobs] == [p.model_dump() for d in deltas for p in d.logprobs]
    assert client.audio.transcriptions.create(model=MODEL, file=file).logprobs is None


def wav(x, rate=16000, channels=1, size=None):
    data = np.clip(np.rint(np.asarray(x) * 32767), -32768, 32767).astype("<i2").tobytes()
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, channels, rate, rate * 2 * channels & 0xFFFFFFFF, 2 * channels & 0xFFFF, 16, b"data", len(data) if size is None else size)
    return head + data


def form(fields, boundary="xyz"):
    out = b""
    for name, value in fields:
        file = f'; filename="a.wav"\r\ncontent-type: audio/wav' if name == "file" else ""
        out += f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
    return out + f"--{boundary}--\r\n".encode()


QUIET = wav(np.zeros(1600))
NAN = struct.pack("<4sI4s4sIHHIIHH4sIff", b"RIFF", 44, b"WAVE", b"fmt ", 16, 3, 1, 16000, 64000, 4, 32, b"data", 8, 0.5, float("nan"))


@pytest.mark.parametrize("fields, status, said", [
    ([("model", MODEL)], 400, "file: it is missing"),
    ([("file", QUIET)], 400, "model: it is missing"),
    ([("file", QUIET), ("model", "whisper-9")], 404, "not served here"),
    ([("file", QUIET), ("model", MODEL), ("model", MODEL)], 400, "more than once"),
    ([("file", QUIET), ("model", MODEL), ("speed", "2")], 400, "speed: no such field"),
    ([("file", QUIET), ("model", MODEL), ("response_format", "diarized_json")], 400, "told apart"),
    ([("file", QUIET), ("model", MODEL), ("response_format", "xml")], 400, "response_format: wanted one of"),
    ([("file", QUIET), ("model", MODEL), ("stream", "maybe")], 400, "stream: wanted true or false"),
    ([("file", QUIET), ("model", MODEL), ("stream", "true"), ("response_format", "srt")], 400, "stream: with json and text only"),
    ([("file", QUIET), ("model", MODEL), ("include[]", "tokens")], 400, "include: wanted logprobs"),
    ([("file", QUIET), ("model", MODEL), ("include[]", "logprobs"), ("response_format", "verbose_json")], 400, "response_format json only"),
    ([("file", QUIET), ("model", MODEL), ("timestamp_granularities[]", "word")], 400, "verbose_json only"),
    ([("file", QUIET), ("model", MODEL), ("timestamp_granularities[]", "bar"), ("response_format", "verbose_json")], 400, "wanted word or segment"),
    ([("file", QUIET), ("model", MODEL), ("language", "xx")], 400, "language"),
    ([("file", QUIET), ("model", MODEL), ("temperature", "nan")], 400, "temperature: wanted 0 to 1"),
    ([("file", QUIET), ("model", MODEL), ("temperature", "hot")], 400, "temperature: wanted a number"),
    ([("file", QUIET), ("model", MODEL), ("prompt", b"\xff")], 400, "prompt: no UTF-8"),
    ([("file", QUIET), ("model", MODEL), ("prompt", "x" * 70000)], 400, "prompt: more than 65536 bytes"),
    ([("file", QUIET), ("model", MODEL), ("chunking_strategy", '{"type": "server_vad", "threshold": 9}')], 400, "threshold"),
    ([("file", QUIET), ("model", MODEL), ("chunking_strategy", '{"type": "other"}')], 400, "chunking_strategy"),
    ([("file", QUIET), ("model", MODEL), ("chunking_strategy", "[")], 400, "chunking_strategy"),
    ([("file", b""), ("model", MODEL)], 400, "an empty file"),
    ([("file", b"\0" * 100), ("model", MODEL)], 400, "audio"),
    ([("file", wav(np.zeros(16), size=1 << 31)), ("model", MODEL)], 400, "the file ends after"),
    ([("file", wav(np.zeros(16), rate=1)), ("model", MODEL)], 400, "samples a second"),
    ([("file", NAN), ("model", MODEL)], 400, "frame 1 is not finite"),
    ([("file", wav(np.zeros(800))[:-7]), ("model", MODEL)], 400, "the file ends after"),
    ([("file", wav(np.zeros(16), channels=65535)), ("model", MODEL)], 400, "channels"),
    ([("file", wav(np.zeros(8000 * 21), rate=8000)), ("model", MODEL)], 400, "seconds, at most 20"),
    ([("file", wav(np.zeros(200000))), ("model", MODEL)], 413, "more than 400000 bytes"),
    ([("x", "y")] * 65, 400, "more than 64 parts"),
])
def test_refused(served, fields, status, said):
    got, _, body = served.ask("POST", "/v1/audio/transcriptions", raw=form(fields), headers={"content-type": "multipart/form-data; boundary=xyz"})
    assert got == status and said in body["error"]["message"], body


@pytest.mark.parametrize("kind, raw, status", [
    ("application/json", b"{}", 415), ("multipart/form-data", form([]), 400), ("multipart/form-data; boundary=xyz", b"", 400), ("multipart/form-data; boundary=xyz", b"--xyz", 400),
    ("multipart/form-data; boundary=xyz", form([("file", QUIET)])[:-9], 400), ("multipart/form-data; boundary=xyz", b"--xyz\r\n\r\n\r\n--xyz--", 400),
])
def test_what_is_no_form(served, kind, raw, status):
    assert served.ask("POST", "/v1/audio/transcriptions", raw=raw, headers={"content-type": kind})[0] == status


def test_nothing_to_hear_with():
    class Engine:
        speech, draining = None, False

    from vivace.server.speech import transcriptions

    with pytest.raises(ApiError, match="--speech"):
        next(transcriptions(None, Engine()).__await__())


def test_forms():
    """Files with every byte, marks within them, changed bytes: the parts as they were, or an error of ours."""
    value = bytes(range(256)) + b"\r\n--xy\r\n--xyzz"
    raw = form([("file", value), ("model", "m"), ("a\"b", "")]).replace(b'a"b', b'a\\"b')
    got = multipart.parts(raw.replace(b"--xyzz", b"--xyww"), b"xyz")
    assert [(p.name, bytes(p.value)) for p in got] == [("file", value.replace(b"xyzz", b"xyww")), ("model", b"m"), ('a"b', b"")] and got[0].filename == "a.wav"
    assert multipart.boundary(b'multipart/form-data; charset=x; boundary="a b"') == b"a b" and multipart.boundary(b"multipart/form-data;boundary=ab; x=y") == b"ab"
    rng = np.random.default_rng(3)
    for _ in range(500):
        bad = bytearray(raw)
        for _ in range(rng.integers(1, 4)):
            bad[rng.integers(len(bad))] = rng.integers(256)
        try:
            assert sum(len(p.value) for p in multipart.parts(bytes(bad[:rng.integers(1, len(bad) + 1)]), b"xyz")) <= len(raw)
        except ApiError as e:
            assert e.status == 400


def test_who_leaves_frees_its_place(served):
    """A client that goes while it is heard: the next one is."""
    import http.client

    x = np.concatenate([audio.read(sentence()[0][1])[0]] * 2)
    c = http.client.HTTPConnection(served.host, served.port, timeout=30)
    c.request("POST", "/v1/audio/transcriptions", form([("file", wav(x)), ("model", MODEL)]), {"content-type": "multipart/form-data; boundary=xyz"})
    c.close()
    got, _, body = served.ask("POST", "/v1/audio/transcriptions", raw=form([("file", QUIET), ("model", MODEL)]), headers={"content-type": "multipart/form-data; boundary=xyz"})
    assert got == 200 and body["text"] == ""
