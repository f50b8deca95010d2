"""previous_response_id and /v1/capsules: conversations that the server keeps, for their owner, in bounds; from one replica to another.

About 15 s."""
import http.client
import itertools
import json

import openai
import pytest

import vivace
from tests.serving import NAME, Served, inside, serve
from tests.test_smollm2 import model_path
from vivace import capsule

ASK = "Name a colour of the rainbow, and say in a few words why you like it best of all of them."
FIRST, SECOND = ({"x-api-key": k} for k in ("first-key-12345", "second-key-6789"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name, text in (("keys", "first-key-12345\nsecond-key-6789\n"), ("seal", "a seal that two replicas share")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    with serve("--api-key-file", str(folder / "keys"), "--capsule-key-file", str(folder / "seal"), "--limit", "responses=4", "--limit", "capsules=3") as s:
        s.folder = folder
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="first-key-12345", max_retries=0)


def respond(server, headers=FIRST, **fields):
    return server.ask("POST", "/v1/responses", {"model": NAME, "max_output_tokens": 12, "temperature": 0, **fields}, headers)


def test_a_response_goes_on(server, client):
    """What the whole conversation as input says; only the new turn is computed."""
    first = client.responses.create(model=NAME, input=ASK, max_output_tokens=12, temperature=0)
    assert first.store and client.responses.retrieve(first.id).output_text == first.output_text
    more = "And another one?"
    want = client.responses.create(model=NAME, input=[{"role": "user", "content": ASK}, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": more}], max_output_tokens=12, temperature=0, store=False)
    got = client.responses.create(model=NAME, input=more, previous_response_id=first.id, max_output_tokens=12, temperature=0)
    assert got.output_text == want.output_text and got.previous_response_id == first.id and got.usage.input_tokens == want.usage.input_tokens
    assert got.usage.input_tokens_details.cached_tokens > first.usage.input_tokens
    *_, last = client.responses.create(model=NAME, input=more, previous_response_id=first.id, max_output_tokens=12, temperature=0, stream=True)
    assert last.response.output_text == got.output_text and client.responses.retrieve(last.response.id).output_text == got.output_text
    third = client.responses.create(model=NAME, input="Thanks.", previous_response_id=got.id, instructions="Be kind.", max_output_tokens=4)
    assert third.usage.input_tokens > got.usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(want.id)  # store: false


def test_what_is_kept_is_bounded_and_its_owners(server):
    mine = respond(server, input=ASK)[2]["id"]
    assert respond(server, SECOND, input="x", previous_response_id=mine)[0] == 404 and server.ask("GET", f"/v1/responses/{mine}", headers=SECOND)[0] == 404
    assert server.ask("DELETE", f"/v1/responses/{mine}", headers=SECOND)[0] == 404 and server.ask("GET", f"/v1/responses/{mine}", headers=FIRST)[0] == 200
    for _ in range(4):
        respond(server, input="Hi", max_output_tokens=1)
    status, _, body = respond(server, input="x", previous_response_id=mine)
    assert status == 404 and body["error"]["param"] == "previous_response_id" and body["error"]["code"] == "response_not_found"
    last = respond(server, input="Hi", max_output_tokens=1)[2]["id"]
    assert server.ask("DELETE", f"/v1/responses/{last}", headers=FIRST)[2]["deleted"] and server.ask("GET", f"/v1/responses/{last}", headers=FIRST)[0] == 404


def octets(server, method, path, data=None, headers=FIRST):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    connection.request(method, path, data, {**headers, **({"content-type": "application/octet-stream"} if data is not None else {})})
    got = connection.getresponse()
    body = got.read()
    connection.close()
    return got.status, body


def test_capsules(server):
    first = respond(server, input=ASK, max_output_tokens=16)[2]
    want = respond(server, input="And another one?", previous_response_id=first["id"])[2]["output"][0]["content"][0]["text"]
    status, _, made = server.ask("POST", "/v1/capsules", {"response_id": first["id"]}, FIRST)
    assert status == 201 and made["object"] == "capsule" and made["tier"] == "device" and made["computed_tokens"] >= first["usage"]["input_tokens"] and made["bytes"] > 0
    assert server.ask("POST", "/v1/capsules", {"response_id": made["id"], "tier": "tape"}, FIRST)[2]["error"]["param"] == "tier"
    _, _, host = server.ask("POST", "/v1/capsules", {"response_id": made["id"], "tier": "host"}, FIRST)
    status, _, fork = server.ask("POST", f"/v1/capsules/{made['id']}/fork", {}, FIRST)
    assert host["tier"] == "host" and status == 201 and fork["id"] != made["id"] and fork["tokens"] == made["tokens"]
    assert {c["id"] for c in server.ask("GET", "/v1/capsules", headers=FIRST)[2]["data"]} == {c["id"] for c in (made, host, fork)}
    assert server.ask("GET", "/v1/capsules", headers=SECOND)[2]["data"] == []
    for one in (made, host, fork):
        for _ in range(2):  # it never changes
            got = respond(server, input="And another one?", previous_response_id=one["id"])
            assert got[0] == 200 and got[2]["output"][0]["content"][0]["text"] == want and got[2]["usage"]["input_tokens_details"]["cached_tokens"] >= one["computed_tokens"] - 8
        assert server.ask("GET", f"/v1/capsules/{one['id']}", headers=FIRST)[2] == one
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/fork"), ("GET", "/bytes")):
            assert server.ask(method, f"/v1/capsules/{one['id']}{path}", {} if method == "POST" else None, SECOND)[0] == 404
        assert respond(server, SECOND, input="x", previous_response_id=one["id"])[0] == 404
    status, headers, body = server.ask("POST", "/v1/capsules", {"response_id": made["id"]}, FIRST)
    assert status == 429 and body["error"]["code"] == "capsules_full" and int(headers["retry-after-ms"]) > 0
    moved(server, made, want)
    for one in (made, host, fork):
        assert server.ask("DELETE", f"/v1/capsules/{one['id']}", headers=FIRST)[2]["deleted"]
    assert server.ask("GET", "/v1/capsules", headers=FIRST)[2]["data"] == []
    for body, param in (({"response_id": "resp_none"}, "response_id"), ({}, "response_id"), ({"response_id": 5}, "response_id")):
        status, _, got = server.ask("POST", "/v1/capsules", body, FIRST)
        assert status in (400, 404) and got["error"]["param"] == param, got


def test_what_is_dearer_is_computed(monkeypatch):
    """A capsule on the host is brought back where that takes less time than its tokens; else the answer is the same, and says why nothing was found."""
    from vivace.server.engine import Engine

    decides, others = capsule.dearer, itertools.count(5)
    with vivace.load_model(model_path(), device="cpu", context=512, max_batch=1, num_kv_blocks=9, logit_bias=True) as model, inside(model, Engine) as (_, url):
        here = Served(None, url)
        first = respond(here, {}, input=ASK, max_output_tokens=16)[2]
        status, _, kept = here.ask("POST", "/v1/capsules", {"response_id": first["id"], "tier": "host"})
        assert status == 201 and kept["tier"] == "host" and kept["bytes"] > 0

        def again(prefill, restore, restores):
            for _ in range(2):  # they take every block
                status, _, body = here.ask("POST", "/v1/completions", {"model": NAME, "prompt": [next(others), *range(100, 580)], "max_tokens": 1})
                assert status == 200, body
            before = model._live.rates()[2]
            monkeypatch.setattr(capsule, "dearer", lambda measured, *what: decides((prefill, restore, restores), *what))
            status, _, got = respond(here, {}, input="And another one?", previous_response_id=kept["id"])
            assert status == 200
            facts = got["usage"]["input_tokens_details"]
            return got["output"][0]["content"][0]["text"], facts["cached_tokens"], facts.get("cache_miss"), model._live.rates()[2] - before

        said, cached, miss, restores = again(1.0, 1e-12, 3)
        assert cached >= kept["computed_tokens"] - 8 and miss != "dearer" and restores == 1
        assert again(1e-12, 1.0, 3) == (said, 0, "dearer", 0)
        assert again(1e-12, 1.0, 2)[1:] == (cached, miss, 1), "two restores say nothing of the next one"


def moved(server, made, want):
    """To another replica, which has computed nothing of it."""
    status, data = octets(server, "GET", f"/v1/capsules/{made['id']}/bytes")
    assert status == 200 and data.startswith(b"VVCAPSUL")
    with serve("--capsule-key-file", str(server.folder / "seal")) as other:
        status, body = octets(other, "PUT", "/v1/capsules", data, {})
        there = json.loads(body)
        assert status == 201 and there["computed_tokens"] == made["computed_tokens"] and there["tier"] == "host"
        got = respond(other, {}, input="And another one?", previous_response_id=there["id"])[2]
        assert got["output"][0]["content"][0]["text"] == want and got["usage"]["input_tokens_details"]["cached_tokens"] >= made["computed_tokens"] - 8
        nice = dict(other.priorities())
        assert nice["vivace-engine"] == nice["vivace-outbox"] < max(n for _, n in other.priorities()), "what prepares requests is behind, and nobody else"
        changed = data[:4100] + bytes([data[4100] ^ 1]) + data[4101:]
        for wrong in (b"", data[:-1], changed, b"x" * 100):
            got, body = octets(other, "PUT", "/v1/capsules", wrong, {})
            assert got == 400 and "capsule" in json.loads(body)["error"]["message"], body
        assert octets(other, "PUT", "/v1/capsules", b"{}", {"content-type": "application/json"})[0] in (400, 415)
    with serve() as closed:
        assert octets(closed, "PUT", "/v1/capsules", data, {})[0] == 400 and b"--capsule-key-file" in octets(closed, "PUT", "/v1/capsules", data, {})[1]
