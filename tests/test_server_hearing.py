"""A server of speech alone: what answers as beside a language model, and what says that there is none."""
import base64
import json

import numpy as np
import pytest
from openai import NotFoundError, OpenAI

from tests import serving, speech_data
from tests.test_server_speech import sentence
from tests.test_transcribe import errors
from vivace import audio, cli
from vivace.server.app import HEARING, ROUTES

MODEL = "whisper-tiny.en"


@pytest.fixture(scope="module")
def served():
    with serving.serve(alone=(speech_data.weights(MODEL), "--name", "ears", "--precision", "q8")) as s:
        yield s


@pytest.fixture(scope="module")
def client(served):
    return OpenAI(base_url=f"{served.url}/v1", websocket_base_url=f"{served.url.replace('http', 'ws')}/v1", api_key="x", max_retries=0)


def test_a_file(client):
    file, want = sentence()
    assert errors(want, client.audio.transcriptions.create(model="ears", file=file).text) <= 1
    assert [m.id for m in client.models.list()] == ["ears"] and client.models.retrieve("ears").id == "ears"
    with pytest.raises(NotFoundError, match="'ears' hears"):
        client.audio.transcriptions.create(model=MODEL, file=file)


def test_while_it_is_said(client):
    (_, raw), want = sentence()
    x = np.concatenate([audio.resample(audio.read(raw)[0], 16000, 24000), np.zeros(24000, np.float32)])
    pcm = np.clip(np.rint(x * 32767), -32768, 32767).astype("<i2").tobytes()
    with client.realtime.connect(extra_query={"intent": "transcription"}) as c:
        c.session.update(session={"type": "transcription", "audio": {"input": {"transcription": {"delay": "xhigh"}}}})
        for at in range(0, len(pcm), 96000):
            c.input_audio_buffer.append(audio=base64.b64encode(pcm[at:at + 96000]).decode())
        for event in c:
            assert event.type != "error", event
            if event.type == "conversation.item.input_audio_transcription.completed":
                break
    assert errors(want, event.transcript) <= 2, event.transcript


@pytest.mark.parametrize("method, path", [(m, p) for m, p, _ in ROUTES if p not in HEARING])
def test_routes_of_language_models(served, method, path):
    status, _, body = served.ask(method, path.replace("{id}", "x"), {"model": "ears", "messages": serving.SAY})
    error = body["error"] if "error" in body else body
    assert status == 404 and "no language model is served here: 'ears' hears" in error["message"], body


def test_what_is_served_of_its_own(served):
    for path in ("/livez", "/readyz", "/health"):
        assert served.ask("GET", path)[2] == {"status": "ok"}
    assert served.progress() == {"ready": True, "answering": 0, "waiting": 0, "realtime_sessions": 0, "last_step_s": None}
    assert served.metric("vivace_transcriptions") == served.metric("vivace_realtime_sessions") == 0 and served.metric("vivace_requests_total", route="/livez", status="200") == 1
    assert served.ask("GET", "/v1/models/other")[0] == 404
    paths = served.ask("GET", "/openapi.json")[2]["paths"]
    assert set(paths) == {p.replace(":path", "") for p in HEARING}


@pytest.mark.parametrize("options, said", [
    (["whisper-tiny.en", "--context", "64"], "--context: says something of a language model"),
    (["--speech", "whisper-tiny.en", "--temperature", "0"], "--temperature: says something"),
    (["whisper-tiny.en", "--speech", "whisper-tiny.en"], "one process serves one"),
    (["--speech", "smollm2-135m-instruct"], "no speech model"),
    (["whisper-tiny.en", "--precision", "int4"], "precision: wanted auto, f32"),
])
def test_refused(options, said, capsys):
    speech_data.weights(MODEL), serving.model_path()
    assert cli.main(["serve", *options, "--device", "cpu", "--port", "0"]) == 1 and said in capsys.readouterr().err


def test_by_its_option_alone():
    """--speech without a model: no language model is loaded."""
    with serving.serve(alone=("--speech", speech_data.weights(MODEL))) as s:
        assert [m["id"] for m in s.ask("GET", "/v1/models")[2]["data"]] == [MODEL]
        assert json.loads(json.dumps(s.progress()))["ready"]
