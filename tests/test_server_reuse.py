"""What a server finds computed before, whose it is, who goes first, and the likeliest tokens in a draw's place.

About 20 s."""
import json
import threading
from types import SimpleNamespace

import numpy as np
import openai
import pytest

import vivace
from tests.serving import NAME, data_of, model_path, serve
from tests.test_model_steps import IDS, PATH, last_logits, load, open_core
from vivace.server import sampling, schema
from vivace.server.auth import Identity
from vivace.server.limits import Limits
from vivace.server.sampling import Defaults

TALE = [{"role": "system", "content": "You are terse. " * 8}, {"role": "user", "content": "Name three colours of the rainbow, and say why you like them."}]


@pytest.fixture(scope="module")
def server():
    with serve("--max-batch", "2") as s:
        yield s


def used(got):
    assert got[0] == 200, got
    details = got[2]["usage"]["prompt_tokens_details"]
    return got[2]["usage"]["prompt_tokens"], details["cached_tokens"], details["cache_write_tokens"], details["cache_miss"]


def test_a_turn_computes_what_is_new(server):
    first = server.chat(TALE, max_tokens=12)
    prompt, cached, written, miss = used(first)
    assert (cached, miss) == (0, "cold") and prompt <= written <= prompt + 12
    more = [*TALE, first[2]["choices"][0]["message"], {"role": "user", "content": "And more?"}]
    again, found, _, miss = used(server.chat(more, max_tokens=4))
    assert prompt - 1 <= found < again and miss in (None, f"diverged@{found}")  # the template may write the answer otherwise
    whole = used(server.chat(TALE, max_tokens=12))
    assert prompt - 9 < whole[1] < prompt and whole[3] is None  # fewer than 8 behind whole blocks are computed again
    for path, fields in (("/v1/chat/completions", {"messages": TALE}), ("/v1/completions", {"prompt": ["The sky is blue and the sea is too"] * 2})):
        fields |= {"max_tokens": 3, "stream_options": {"include_usage": True}}
        server.events(path, **fields)
        usage = data_of(server.events(path, **fields)[2])[-2]["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] - 18
    assert server.metric("vivace_cached_tokens_total") >= prompt and server.metric("vivace_prompts_total", cache="all") >= 1 and server.metric("vivace_kv_blocks_remembered") > 0


def test_other_apis_say_what_they_found(server):
    ask = {"model": NAME, "max_tokens": 3, "messages": [{"role": "user", "content": "What do owls eat in winter, and why?"}]}
    first, second = (server.ask("POST", "/v1/messages", ask)[2]["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] < second["cache_read_input_tokens"] and second["cache_read_input_tokens"] + second["input_tokens"] == first["cache_read_input_tokens"] + first["input_tokens"]
    began = data_of(server.events("/v1/messages", **{k: v for k, v in ask.items() if k != "model"})[2])[0]["message"]["usage"]
    assert began["cache_read_input_tokens"] == second["cache_read_input_tokens"] and began["output_tokens"] == 0
    items = {"model": NAME, "max_output_tokens": 3, "input": "What do owls eat in winter, and why?"}
    assert server.ask("POST", "/v1/responses", items)[2]["usage"]["input_tokens_details"]["cached_tokens"] == second["cache_read_input_tokens"]


def test_deterministic_answers_and_narrower_salts(server):
    ask = dict(messages=[{"role": "user", "content": "Tell me of the moon and of the stars that are around it."}], max_tokens=10)
    plain, exact = server.chat(**ask), server.chat(**ask, deterministic=True)
    assert plain[2]["choices"] == exact[2]["choices"]
    assert used(server.chat(**ask, cache_salt="anna"))[1] == 0
    assert used(server.chat(**ask, cache_salt="anna"))[1] > 0 == used(server.chat(**ask, cache_salt="berta"))[1]
    for wrong in ({"cache_salt": ""}, {"cache_salt": "x" * 257}, {"deterministic": 1}, {"priority": "high"}, {"service_tier": "scale"}):
        status, _, body = server.chat(**ask, **wrong)
        assert status == 400 and body["error"]["param"] == next(iter(wrong)), body


def test_choices_compute_one_prompt(server):
    ask = dict(messages=[{"role": "user", "content": "Sing of seven ships that sail, each with a name of its own."}], max_tokens=6, temperature=1.0, seed=4)
    before = server.metric("vivace_cached_tokens_total")
    got = server.chat(**ask, n=4)
    prompt, cached, _, _ = used(got)
    assert server.metric("vivace_cached_tokens_total") - before == cached + 3 * (prompt - 1)
    assert [c["message"]["content"] for c in got[2]["choices"]] == [server.chat(**ask | dict(seed=4 + i))[2]["choices"][0]["message"]["content"] for i in range(4)]


def test_keys_do_not_share_and_have_classes(tmp_path):
    file = tmp_path / "keys"
    file.write_text("first-key-12345\nsecond-key-6789 robot\nthird-key-00000 batch\n")
    file.chmod(0o600)
    with serve("--api-key-file", str(file)) as server:
        first, second, third = ({"x-api-key": k} for k in ("first-key-12345", "second-key-6789", "third-key-00000"))
        assert used(server.chat(TALE, first, max_tokens=2))[1] == 0 < used(server.chat(TALE, first, max_tokens=2))[1]
        assert used(server.chat(TALE, second, max_tokens=2))[1:4:2] == (0, "cold")  # another's is not there, not even as a reason
        assert used(server.chat(TALE, third, max_tokens=2, cache_salt="x"))[1] == 0
        for headers, wanted, status in ((first, "robot", 403), (first, "interactive", 200), (first, "batch", 200), (second, "robot", 200), (third, "interactive", 403), (third, "batch", 200)):
            got = server.chat(headers=headers, max_tokens=1, priority=wanted)
            assert got[0] == status, (headers, wanted, got)
        assert server.chat(headers=third, max_tokens=1)[0] == 200 and server.chat(headers=third, max_tokens=1, service_tier="priority")[0] == 403
    file.write_text("first-key-12345 king\n")
    with pytest.raises(vivace.InvalidArgumentError, match="key 1: wanted one of robot"):
        from vivace.server import auth

        auth.read_keys([], str(file))


def test_who_would_begin_too_late_is_told_when_to_come():
    with serve("--max-batch", "1") as server:
        for _ in range(3):
            server.chat(max_tokens=60)
        ready, stop = threading.Semaphore(0), []

        def fill():
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
            with client.chat.completions.create(model=NAME, messages=TALE, max_tokens=900, stream=True, extra_body={"min_tokens": 900}) as stream:
                for n, _ in enumerate(stream):
                    if n == 0:
                        ready.release()
                    if stop:
                        return
        threads = [threading.Thread(target=fill) for _ in range(8)]
        [t.start() for t in threads]
        try:
            assert ready.acquire(timeout=60)
            while server.progress()["waiting"] < 7:
                pass
            status, headers, body = server.before_a_deadline(server.chat, max_tokens=5)
            assert status == 429 and int(headers["retry-after-ms"]) >= 100 and "deadline" in body["error"]["message"], (status, body)
            assert server.metric("vivace_rejections_total", cause="deadline") == 1
        finally:
            stop.append(True)
            server.process.terminate()
            [t.join(60) for t in threads]


def likeliest(row, k):
    """(token, log-probability), ties by the lower id, in float64."""
    row = np.asarray(row, np.float64)
    logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
    order = np.lexsort((np.arange(len(row)), -row))[:k]
    return [(int(t), float(logprobs[t])) for t in order]


@pytest.mark.parametrize("fields", [dict(), dict(temperature=1.2, seed=5, top_k=30), dict(repetition_penalty=1.3, presence_penalty=0.4)], ids=str)
def test_top_logprobs_are_those_of_the_logits(fields):
    """As NumPy has them of the logits of each step, whoever is answered beside it."""
    core = open_core(PATH)
    with load(PATH, context=128, max_batch=3) as model:
        beside = [model._stream(IDS[:i + 5], None, max_tokens=20, temperature=1.0, seed=i) for i in range(2)]
        answer = model.generate_ids(IDS[:30], max_tokens=12, top_logprobs=7, **fields)
        [list(s) for s in beside]
    assert len(answer.top_logprobs) == len(answer.tokens) == 12
    core.start(0)
    core.step([(t, i, 0, i == 29) for i, t in enumerate(IDS[:30])])
    for n, (token, logprob, top) in enumerate(zip(answer.tokens, answer.logprobs, answer.top_logprobs)):
        want = likeliest(last_logits(core)[0], 7)
        assert [t for t, _ in top] == [t for t, _ in want]
        np.testing.assert_allclose([v for _, v in top], [v for _, v in want], rtol=0, atol=2e-4)  # f32 sums of other order
        assert all(v == logprob for t, v in top if t == token)
        core.step([(token, 30 + n, 0, True)])


def test_top_logprobs_beside_grammars_and_bad_ones():
    with vivace.load_model(model_path(), device="cpu", context=256, max_batch=2) as model:
        a = model.generate("Yes or no?", regex="(yes|no), indeed", max_tokens=12, top_logprobs=3)
        assert len(a.tokens) > len(a.top_logprobs) >= 1 and all(len(t) == 3 for t in a.top_logprobs)  # tokens that must come are not drawn
        assert model.generate("Hi", max_tokens=3).top_logprobs == []
        for wrong in (-1, 21, 1.5, "3"):
            with pytest.raises(vivace.InvalidArgumentError, match="top_logprobs"):
                model.generate("Hi", max_tokens=3, top_logprobs=wrong)
        with pytest.raises(vivace.InvalidArgumentError, match="top_logprobs"):
            model.generate("Hi", max_tokens=3, top_logprobs=2, draft="lookup", num_speculative_tokens=1)


def test_top_logprobs_over_http(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    ask = dict(model=NAME, messages=TALE, max_tokens=6, logprobs=True)
    for count in (0, 1, 20):
        content = client.chat.completions.create(**ask, top_logprobs=count).choices[0].logprobs.content
        assert len(content) == 6
        for t in content:
            assert len(t.top_logprobs) == count and [x.logprob for x in t.top_logprobs] == sorted((x.logprob for x in t.top_logprobs), reverse=True)
            assert not count or (t.top_logprobs[0].token, t.top_logprobs[0].logprob) == (t.token, t.logprob)  # greedy
            assert all(bytes(x.bytes).decode("utf-8", "replace") == x.token for x in t.top_logprobs)
    old = client.completions.create(model=NAME, prompt="The sky is", max_tokens=4, logprobs=5, temperature=1.5, seed=1).choices[0].logprobs
    assert all(token in top and 5 <= len(top) <= 6 for token, top in zip(old.tokens, old.top_logprobs))
    for wrong in (-1, 21, 2**63):
        status, _, body = server.chat(logprobs=True, top_logprobs=wrong)
        assert status == 400 and "top_logprobs" in json.dumps(body)


def test_defaults_are_the_checkpoints():
    """vivace serve: what a request leaves out is generation_config.json's, unless the command line says otherwise; and then OpenAI's."""
    drawn = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}
    of = Defaults.of(drawn, temperature=None, top_p=None, seed=3)
    assert (of.temperature, of.top_k, of.top_p, of.min_p, of.repetition_penalty, of.seed) == (0.6, 20, 0.95, 0.01, 1.1, 3)
    assert Defaults.of(drawn, temperature=0.0, top_p=0.5, seed=None) == Defaults(0.0, 0.5, 20, 0.01, 1.1, None)
    assert Defaults.of({}, temperature=None, top_p=None, seed=None) == Defaults(1.0, 1.0, 0, 0.0, 1.0, None)
    call = SimpleNamespace(limits=Limits(), identity=Identity("local"))
    [options] = sampling.options(schema.Chat(model="m", messages=[], top_k=5), call, max_tokens=4, vocab=100, defaults=of)
    assert (options["temperature"], options["top_k"], options["min_p"], options["repetition_penalty"]) == (0.6, 5, 0.01, 1.1)
