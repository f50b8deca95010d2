"""vivace serve as clients see it: the `openai` package, sync and async, golden events, streamed and whole answers, llm-comply.

About 25 s on two cores."""
import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

import vivace
from tests.serving import NAME, SAY, comply, data_of, model_path, serve

ASK = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def server():
    with serve() as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model():
    with vivace.load_model(model_path(), device="cpu", context=1024, logit_bias=True) as m:
        yield m


def test_a_chat_is_what_the_model_says(client, model):
    want = model.generate(ASK, max_tokens=24)
    got = client.chat.completions.create(model=NAME, messages=ASK, max_tokens=24)
    assert got.choices[0].message.content == want.text and got.choices[0].finish_reason == want.finish
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (want.prompt_tokens, len(want.tokens))
    assert got.usage.total_tokens == want.prompt_tokens + len(want.tokens) and got.model == NAME and got.id.startswith("chatcmpl-")


@pytest.mark.parametrize("fields", [
    dict(), dict(temperature=0.9, seed=7), dict(temperature=1.3, seed=-5, extra_body=dict(top_k=40, min_p=0.02)), dict(temperature=0.7, top_p=0.8, seed=2**63 - 1),
    dict(presence_penalty=1.5, frequency_penalty=0.5), dict(extra_body=dict(repetition_penalty=1.3)),
])
def test_every_sampling_parameter_reaches_the_engine(client, model, fields):
    own = {k: v for k, v in fields.items() if k != "extra_body"} | fields.get("extra_body", {})
    own |= {"seed": own["seed"] % 2**63} if "seed" in own else {}
    want = model.generate(ASK, max_tokens=20, **own)
    got = client.chat.completions.create(model=NAME, messages=ASK, max_completion_tokens=20, **fields)
    assert got.choices[0].message.content == want.text


def test_logit_bias_forbids_and_forces(client, model):
    first = model.generate(ASK, max_tokens=1).tokens[0]
    with_it = client.chat.completions.create(model=NAME, messages=ASK, max_tokens=4, logit_bias={str(first): -100}).choices[0].message.content
    assert with_it == model.generate(ASK, max_tokens=4, logit_bias={first: -100.0}).text != model.generate(ASK, max_tokens=4).text
    forced = model.text.encode(" blue")[0]
    assert client.chat.completions.create(model=NAME, messages=ASK, max_tokens=3, logit_bias={str(forced): 100}).choices[0].message.content == model.text.decode([forced] * 3)


def test_choices_have_seeds_of_their_own(client, model):
    got = client.chat.completions.create(model=NAME, messages=ASK, max_tokens=12, temperature=1.0, seed=40, n=3)
    assert [c.index for c in got.choices] == [0, 1, 2]
    assert [c.message.content for c in got.choices] == [model.generate(ASK, max_tokens=12, temperature=1.0, seed=40 + i).text for i in range(3)]
    assert got.usage.completion_tokens == sum(len(model.generate(ASK, max_tokens=12, temperature=1.0, seed=40 + i).tokens) for i in range(3))


def test_without_a_seed_answers_differ(client):
    said = {client.chat.completions.create(model=NAME, messages=ASK, max_tokens=16, temperature=1.5).choices[0].message.content for _ in range(3)}
    assert len(said) > 1


def test_logprobs(client, model):
    want = model.generate(ASK, max_tokens=6)
    got = client.chat.completions.create(model=NAME, messages=ASK, max_tokens=6, logprobs=True).choices[0].logprobs.content
    assert [t.logprob for t in got] == pytest.approx(want.logprobs, abs=1e-6)
    assert b"".join(bytes(t.bytes) for t in got).decode() == want.text and all(t.top_logprobs == [] for t in got)


def joined(events):
    """What a stream says, choice by choice: text, logprobs, finish."""
    out = {}
    for e in events:
        assert isinstance(e, dict) and "choices" in e and "error" not in e, e
        for c in e["choices"]:
            text, logprobs, finish = out.get(c["index"], ("", [], None))
            assert finish is None, "an event after the finish"
            more = c["delta"].get("content") or "" if "delta" in c else c["text"]
            if c["logprobs"]:
                logprobs = logprobs + (c["logprobs"]["content"] if "delta" in c else list(zip(*c["logprobs"].values())))
            out[c["index"]] = (text + more, logprobs, c["finish_reason"])
    return out


CASES = [
    dict(), dict(n=3, temperature=1.1, seed=3), dict(logprobs=True), dict(stop=["colour"]), dict(stop=[" Blue", "\n"]), dict(logprobs=True, stop=["re", "Red"], temperature=0.8, seed=11), dict(logprobs=True, top_logprobs=20, n=2, temperature=1.0, seed=2),
    dict(messages=[{"role": "user", "content": "Write five emoji and the word 'colour' in Chinese: 颜色 🎨🙂"}], temperature=1.4, seed=21, logprobs=True),
    dict(messages=[{"role": "user", "content": "🙂🙃🙂🙃 repeat"}], temperature=1.6, seed=8, n=2, stop=["🙃"]),
]


@pytest.mark.parametrize("fields", CASES, ids=str)
def test_streamed_equals_whole(server, fields):
    fields = {"messages": ASK, "max_tokens": 20, **fields}
    status, _, whole = server.chat(**fields)
    assert status == 200
    got = joined(data_of(server.events(**fields)[2])[:-1])
    for c in whole["choices"]:
        text, logprobs, finish = got[c["index"]]
        assert (text, finish) == (c["message"]["content"], c["finish_reason"])
        assert logprobs == (c["logprobs"]["content"] if c["logprobs"] else [])


def test_streamed_equals_whole_at_random(server):
    """Any temperature, stops cut from what was said: the answer does not depend on how it is sent."""
    rng = random.Random(25)
    for _ in range(5):
        fields = dict(messages=[{"role": "user", "content": rng.choice(["Hello", "Write a list.", "写一句话。", "Count: 1 2 3", "😀 means"])}], max_tokens=16, temperature=rng.choice([0, 1.0, 1.8]), seed=rng.randrange(1 << 40))
        said = server.chat(**fields)[2]["choices"][0]["message"]["content"]
        at = rng.randrange(max(1, len(said)))
        stop = said[at:at + rng.randint(1, 4)] or "x"
        whole = server.chat(**fields, stop=[stop])[2]["choices"][0]
        streamed = joined(data_of(server.events(**fields, stop=[stop])[2])[:-1])[0]
        assert (streamed[0], streamed[2]) == (whole["message"]["content"], whole["finish_reason"])
        if stop in said:
            assert whole["message"]["content"] == said[:said.index(stop)] and whole["finish_reason"] == "stop", (said, stop)


def test_golden_events(server):
    """Byte for byte what a stream is, but for the id and the time."""
    server.chat(messages=ASK, max_tokens=2)
    status, headers, text = server.events(messages=ASK, max_tokens=2, stream_options={"include_usage": True})
    assert status == 200 and headers["content-type"] == "text/event-stream; charset=utf-8" and headers["cache-control"] == "no-cache, no-transform" and headers["x-accel-buffering"] == "no"
    ident, created, print_ = re.search(r'"id":"(chatcmpl-[0-9a-f]{24})"', text)[1], re.search(r'"created":(\d+)', text)[1], re.search(r'"system_fingerprint":"(vivace-[0-9a-f]{12})"', text)[1]
    words = [d["choices"][0]["delta"].get("content") for d in data_of(text)[1:3]]
    used = server.chat(messages=ASK, max_tokens=2)[2]["usage"]
    prompt, cached, written = used["prompt_tokens"], *list(used["prompt_tokens_details"].values())[:2]
    assert 0 < cached < prompt
    head = f'data: {{"id":"{ident}","object":"chat.completion.chunk","created":{created},"model":"{NAME}","system_fingerprint":"{print_}","choices":['
    rest = '],"usage":null}\n\n'
    want = head + '{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}' + rest
    for word in words:
        want += head + '{"index":0,"delta":{"content":%s},"logprobs":null,"finish_reason":null}' % json.dumps(word) + rest
    want += head + '{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}' + rest
    want += head + '],"usage":{"prompt_tokens":%d,"completion_tokens":2,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d,"cache_write_tokens":%d,"cache_miss":null},"completion_tokens_details":{"reasoning_tokens":0}}}\n\n' % (prompt, prompt + 2, cached, written)
    assert text == want + "data: [DONE]\n\n"


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_no_usage_unless_asked_for(server, options):
    events = data_of(server.events(messages=ASK, max_tokens=2, **({} if options is None else {"stream_options": options}))[2])
    assert events[-1] == "[DONE]" and all(e["choices"] and "usage" not in e for e in events[:-1])


def test_the_client_streams(client, model):
    with client.chat.completions.create(model=NAME, messages=ASK, max_tokens=12, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == model.generate(ASK, max_tokens=12).text
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert len({c.id for c in chunks}) == 1
    with client.chat.completions.stream(model=NAME, messages=ASK, max_tokens=8) as helper:
        assert [e.type for e in helper][-1] == "content.done"


def test_async_clients_side_by_side(server, model):
    """Ten at once, streamed and whole: each gets what it gets alone."""
    prompts = [[{"role": "user", "content": f"Count to {n}."}] for n in range(2, 12)]

    async def one(client, i):
        if i % 2:
            stream = await client.chat.completions.create(model=NAME, messages=prompts[i], max_tokens=16, stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream])
        return (await client.chat.completions.create(model=NAME, messages=prompts[i], max_tokens=16)).choices[0].message.content

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, i) for i in range(10)))

    assert asyncio.run(all_of_them()) == [model.generate(p, max_tokens=16).text for p in prompts]


def test_completions(client, server, model):
    ids = model.text.prompt_ids("The sky is")
    want = model.generate_ids(ids, max_tokens=8)
    said = model.text.decode(want.tokens)
    assert client.completions.create(model=NAME, prompt="The sky is", max_tokens=8).choices[0].text == said
    assert client.completions.create(model=NAME, prompt=ids, max_tokens=8, echo=True).choices[0].text == "The sky is" + said
    several = client.completions.create(model=NAME, prompt=["The sky is", "One two"], max_tokens=5, n=2, temperature=1.0, seed=9)
    assert [c.index for c in several.choices] == [0, 1, 2, 3] and several.choices[0].text != several.choices[2].text
    probed = client.completions.create(model=NAME, prompt=[ids, ids], max_tokens=4, logprobs=0).choices
    assert probed[0].logprobs.token_logprobs == pytest.approx(want.logprobs[:4], abs=1e-6) and probed[1].logprobs.tokens == probed[0].logprobs.tokens
    whole = server.ask("POST", "/v1/completions", {"model": NAME, "prompt": "The sky is", "max_tokens": 12, "logprobs": 0, "stop": "blue"})[2]["choices"][0]
    text, logprobs, finish = joined(data_of(server.events("/v1/completions", prompt="The sky is", max_tokens=12, logprobs=0, stop="blue")[2])[:-1])[0]
    assert (text, finish) == (whole["text"], whole["finish_reason"]) and logprobs == list(zip(*whole["logprobs"].values()))


def test_models(client):
    assert [m.id for m in client.models.list()] == [NAME] and client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("gpt-5")
    assert e.value.code == "model_not_found"


def test_tokens_there_and_back(server, model):
    text = "Hello 世界 🙂 <|im_end|>"
    got = server.ask("POST", "/tokenize", {"prompt": text})[2]
    assert got == {"tokens": model.text.prompt_ids(text), "count": len(got["tokens"]), "max_model_len": 1024}
    assert server.ask("POST", "/detokenize", {"tokens": got["tokens"]})[2]["prompt"] == text
    assert server.ask("POST", "/tokenize", {"messages": ASK})[2]["tokens"] == model.text.chat_ids(ASK)


def test_parts_of_text_and_developers(client, model):
    parts = [{"role": "developer", "content": "You are terse."}, {"role": "user", "content": [{"type": "text", "text": "Name"}, {"type": "text", "text": "three colours."}]}]
    want = [ASK[0], {"role": "user", "content": "Name\nthree colours."}]
    assert client.chat.completions.create(model=NAME, messages=parts, max_tokens=10).choices[0].message.content == model.generate(want, max_tokens=10).text


REFUSED = {
    "model": ({"model": "gpt-5"}, 404, "model"), "no messages": ({"messages": []}, 400, "messages"), "field": ({"temperatur": 1}, 400, "temperatur"), "type": ({"max_tokens": "ten"}, 400, "max_tokens"),
    "temperature": ({"temperature": 2.01}, 400, "temperature"), "top_p": ({"top_p": -0.1}, 400, "top_p"), "max_tokens": ({"max_tokens": 0}, 400, "max_tokens"),
    "context": ({"max_tokens": 1024}, 400, "max_tokens"), "image": ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}, 400, "messages[0].content[0]"),
    "schema": ({"response_format": {"type": "xml"}}, 400, "response_format"), "tools": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"), "tops alone": ({"top_logprobs": 3}, 400, "top_logprobs"), "template": ({"chat_template": "{{ 1 }}"}, 400, "chat_template"), "role": ({"messages": [{"role": "wizard", "content": "x"}]}, 400, None),
    "usage": ({"stream_options": {"include_usage": True}}, 400, "stream_options"), "bias": ({"logit_bias": {"49152": 1}}, 400, "logit_bias"), "bias word": ({"logit_bias": {"red": 1}}, 400, "logit_bias"),
    "store": ({"store": True}, 400, "store"), "kwargs": ({"chat_template_kwargs": {"x": 1}}, 400, "chat_template_kwargs"), "empty stop": ({"stop": [""]}, 400, "stop"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_says_why(server, what):
    fields, status, param = REFUSED[what]
    got, headers, body = server.chat(**{"messages": SAY, **{k: v for k, v in fields.items() if k != "model"}}) if "model" not in fields else server.ask("POST", "/v1/chat/completions", {**fields, "messages": SAY})
    assert got == status and set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"} and body["error"]["type"] == "invalid_request_error", body
    assert body["error"]["param"] == param and len(body["error"]["message"]) > 10 and headers["x-request-id"].startswith("req-")


def test_errors_of_the_client_package(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "x " * 3000}])
    assert e.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=NAME, input="x")


def test_routes_and_methods(server):
    for method, path, status in [("GET", "/nothing", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/livez", 405), ("GET", "/v1/models/", 404), ("DELETE", "/v1/models", 405)]:
        got, headers, body = server.ask(method, path)
        assert got == status and body["error"]["message"], (method, path, got)
        assert status != 405 or headers["allow"]
    for path in ("/livez", "/readyz", "/health"):
        assert server.ask("GET", path)[2] == {"status": "ok"}
    assert server.ask("GET", "/livez", headers={"x-request-id": "mine-1"})[1]["x-request-id"] == "mine-1"


def test_metrics_are_what_prometheus_reads(server):
    before = server.metric("vivace_generated_tokens_total")
    server.chat(messages=ASK, max_tokens=5)
    families = {f.name: f for f in text_string_to_metric_families(server.ask("GET", "/metrics")[2])}
    value = lambda name: families[name].samples[0].value  # noqa: E731
    assert value("vivace_generated_tokens") == before + 5 and value("vivace_slots") == 4 and value("vivace_requests_answering") == 0
    for name, f in families.items():
        assert f.documentation, name
        if f.type == "histogram":
            buckets = [s.value for s in f.samples if s.name.endswith("_bucket")]
            count = next(s.value for s in f.samples if s.name.endswith("_count"))
            assert buckets == sorted(buckets) and buckets[-1] == count > 0 and next(s for s in f.samples if s.name.endswith("_sum"))


# Forced calls: test_server_tools.py, with a template that has tools. A picture: test_images.py, with a model that sees. Left out: reasoning of named models.
COMPLY = {
    "openai-chat": ["chat-basic-response", "chat-system-prompt", "chat-multi-turn", "chat-streaming-response", "chat-streaming-usage", "chat-error-handling"],
    "open-responses": ["basic-response", "system-prompt", "multi-turn", "streaming-response", "streaming-usage", "assistant-phase", "response-output-phase-schema", "compact-response", "compact-missing-model", "error-handling"],
    "anthropic": ["anth-basic-response", "anth-system-prompt", "anth-multi-turn", "anth-streaming-response", "anth-streaming-usage", "anth-error-handling"],
}


@pytest.mark.parametrize("form", COMPLY)
def test_llm_comply(server, form):
    comply(server.url, form, COMPLY[form])


NODE = """
import {ask} from '%s';
const [url, model] = process.argv.slice(-2), told = [];
for await (const e of await ask(url, {model, messages: [{role: 'user', content: 'Say 🙂 and Zürich.'}], max_tokens: 24, logit_bias: {'%d': 100}})) told.push(e);
const leaves = new AbortController();
try {
  for await (const e of await ask(url, {model, messages: [{role: 'user', content: 'Count on and on.'}], max_tokens: 900, min_tokens: 900}, leaves.signal)) leaves.abort();
} catch (e) { told.push(e.name); }
try { await ask(url, {model, messages: []}); } catch (e) { told.push(e.message); }
console.log(JSON.stringify(told));
"""


@pytest.mark.skipif(not (shutil.which("node") and int(subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.lstrip("v").split(".")[0]) >= 20), reason="no node 20")
def test_node(server, model, tmp_path):
    """fetch and its stream: the words of a whole answer, letters of several bytes in one piece, who leaves is not answered, errors are read."""
    example = Path(__file__).parents[1] / "examples/node/ask_server.mjs"
    done = subprocess.run(["node", example, server.url, NAME, "Name three colours."], capture_output=True, text=True, timeout=120)
    whole = server.chat([{"role": "user", "content": "Name three colours."}], max_tokens=48)[2]
    assert done.stdout == f"{whole['choices'][0]['message']['content']}\n{whole['usage']['completion_tokens']} tokens\n", done
    letter = model.text.encode("ü")[0]  # the first of its two bytes, or both
    (tmp_path / "more.mjs").write_text(NODE % (example.as_uri(), letter))
    done = subprocess.run(["node", tmp_path / "more.mjs", server.url, NAME], capture_output=True, text=True, timeout=120)
    *chunks, left, refused = json.loads(done.stdout)
    whole = server.chat([{"role": "user", "content": "Say 🙂 and Zürich."}], max_tokens=24, logit_bias={str(letter): 100})[2]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]) == whole["choices"][0]["message"]["content"] and chunks[-1]["usage"] == whole["usage"] | chunks[-1]["usage"]
    assert any(ord(c) > 127 for c in whole["choices"][0]["message"]["content"])
    assert left == "AbortError" and server.until_idle() < 10 and refused.startswith("400: messages"), (left, refused)


def test_the_example():
    done = subprocess.run([sys.executable, Path(__file__).parents[1] / "examples/python/ask_server.py", "Name a colour."], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "answered the openai package" in done.stdout and len(done.stdout) > 60, done.stderr
