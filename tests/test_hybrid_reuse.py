"""Hybrids: what was computed before is found with a state that was kept beside its blocks. Every answer is the one that a model without
either gives, token for token and bit for bit. About 25 s."""
import json
import random
import urllib.request

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import vivace
from tests import chat_templates
from tests.serving import NAME, inside
from tests.test_hybrid import NAMES, TINY, drawn
from tests.test_model_steps import DEVICE
from tests.test_sessions import NoWords
from vivace import capsule
from vivace.server.engine import Engine

STATE = 3 * 4 * (352 + 4 * 12 * 16)  # bytes of one of tiny/qwen35: three layers, taps and heads
KEY = b"a key of the tests, 32 bytes long"
ONE_CLASS = {} if DEVICE == "cpu" else {"num_kv_blocks": "full", "invariance": "strict"}  # answers' rows have the bits of prompts'


def load(name, precision="f32", kv="f32", **options):
    return vivace.load_model(TINY / name, **{"device": DEVICE, "precision": precision, "kv_dtype": kv, "threads": 2, "context": 256, "max_batch": 3} | ONE_CLASS | options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [63, 64, 65, 127, 128, 129, 150])
def test_a_longer_prompt_computes_what_is_new(name, n):
    ids, end = drawn(n, n), (n - 1) // 64 * 64
    with load(name, num_kv_blocks=0) as alone, load(name) as model:
        assert alone.report()["kept_states"] == 0 and model.report()["kept_states"] == 24  # two a block are fewer than 16 and 4 a sequence
        want = alone.generate_ids(ids, max_tokens=20)
        assert want.cache_miss == "off"
        first = model.generate_ids(ids, max_tokens=20)
        assert (first.tokens, first.logprobs) == (want.tokens, want.logprobs)
        assert (first.cached_tokens, first.cache_write_tokens, first.cache_miss) == (0, n + 19, "cold")
        again = model.generate_ids(ids, max_tokens=20)  # from its last end of a block on
        assert (again.tokens, again.logprobs) == (want.tokens, want.logprobs)
        assert (again.cached_tokens, again.cache_miss) == (end, "recurrent" if n - 1 - end >= 8 else "")
        longer = ids + first.tokens + drawn(9)
        want = alone.generate_ids(longer, max_tokens=20)
        turn = model.generate_ids(longer, max_tokens=20)  # from the end of the turn on
        assert (turn.tokens, turn.logprobs) == (want.tokens, want.logprobs)
        assert (turn.cached_tokens, turn.cache_miss) == (n + 19, "")
        exact = model.generate_ids(longer, max_tokens=20, deterministic=True)
        assert (exact.tokens, exact.logprobs) == (want.tokens, want.logprobs) and exact.cached_tokens == max(n + 19, (len(longer) - 1) // 64 * 64)
        other = ids[:40] + drawn(60, 9)
        assert model.generate_ids(other, max_tokens=5).tokens == alone.generate_ids(other, max_tokens=5).tokens
        assert model.generate_ids(longer, max_tokens=5, salt="another").cached_tokens == 0
        assert model.generate_ids(longer, max_tokens=5, reuse=False).cache_miss == "off"
        count, available, _ = model._live.blocks()
        assert count == available == 12


@pytest.mark.parametrize("seed, precision, kv, options", [(0, "f32", "f32", {}), (1, "bf16", "auto", {}), (2, "f32", "f32", {"max_in_flight_steps": 3}), (3, "f32", "f32", {"prefill_chunk": 48}), (4, "q8", "auto", {"invariance": "strict", "prefill_chunk": 16})])
@pytest.mark.parametrize("name", NAMES)
def test_drawn_conversations(name, seed, precision, kv, options):
    """Turns of conversations that begin alike, around ends of blocks, some with penalties, some left midway, on few blocks and fewer places of states."""
    draw = random.Random(seed)
    with load(name, precision, kv, num_kv_blocks=0, **{k: v for k, v in options.items() if k == "invariance"}) as alone, load(name, precision, kv, num_kv_blocks=7, state_cache_bytes=(3 + seed) * alone.report()["state_bytes"], **options) as model:
        assert model.report()["kept_states"] == 3 + seed
        talks, found, left = [drawn(20), drawn(62), drawn(130, 1)], 0, 0
        for turn in range(12):
            streams = []
            for i in range(3):
                if len(talks[i]) > 180:
                    talks[i] = drawn(130, 1)[:draw.choice((20, 63, 64, 65, 127, 129))]
                prompt = talks[i] + [draw.randrange(3, 192) for _ in range(draw.choice((1, 2, 9, 27, 40)))]
                how = dict(max_tokens=draw.choice((1, 2, 17, 30)), salt=str(i % 2), deterministic=bool(turn % 2))
                if draw.random() < 0.5:
                    how |= dict(temperature=0.9, seed=turn, repetition_penalty=1.2, frequency_penalty=0.3)
                if draw.random() < 0.3:
                    how["stop"] = [draw.randrange(3, 192)]
                streams.append((i, prompt, how, model._stream(prompt, None, **how)))
            for i, prompt, how, stream in streams:
                want = alone.generate_ids(prompt, **how)
                want_all = list(zip(want.tokens, want.logprobs))
                if draw.random() < 0.2:
                    left += 1
                    with stream:
                        got = [(c.token, c.logprob) for _, c in zip(range(draw.randrange(1, 8)), stream) if c.token is not None]
                    assert got == want_all[:len(got)], (turn, i)
                else:
                    assert [(c.token, c.logprob) for c in stream if c.token is not None] == want_all, (turn, i)
                    found += stream.cache()[0]
                talks[i] = prompt + want.tokens
        assert found > 300 and left > 1 and model._live.pending() == 0
        model.generate_ids(drawn(3), max_tokens=1)
        count, available, _ = model._live.blocks()
        assert available == count


@pytest.mark.parametrize("name", NAMES)
def test_n_answers_share_their_prompt(name):
    with load(name, context=128) as model:
        model._text = NoWords()
        answers = model.generate_n(drawn(90), 5, max_tokens=12, temperature=0.9, seed=7)
        assert [a.cached_tokens for a in answers] == [0, 64, 64, 64, 64]
        for i, a in enumerate(answers):
            assert a.tokens == model.generate_ids(drawn(90), max_tokens=12, temperature=0.9, seed=7 + i, reuse=False).tokens


def test_who_gives_way_goes_on_with_its_state():
    """Robots take slot and blocks of an answer, which comes back from host memory."""
    with load("qwen35", num_kv_blocks=0) as alone, load("qwen35", max_batch=1) as model:
        slow, fast = drawn(70), drawn(65, 4)
        want = [alone.generate_ids(p, max_tokens=m).tokens for p, m in ((slow, 150), (fast, 3))]
        stream = model._stream(slow, None, max_tokens=150, priority="batch")
        got = [next(stream).token]
        for _ in range(3):
            assert model.generate_ids(fast, max_tokens=3, priority="robot").tokens == want[1]
        got += [c.token for c in stream]
        assert got == want[0] and model._live.parked() > 0


def test_few_places_for_states():
    with load("qwen35", state_cache_bytes=0) as model:
        assert model.report()["kept_states"] == 0
        for miss in ("cold", "recurrent"):
            answer = model.generate_ids(drawn(100), max_tokens=2)
            assert (answer.cached_tokens, answer.cache_miss) == (0, miss)
    with load("qwen35", state_cache_bytes=2 * STATE + 5) as model:  # of three prompts in turn, each is forgotten when it comes again
        assert model.report()["kept_states"] == 2
        for turn in range(6):
            assert model.generate_ids(drawn(100, turn % 3), max_tokens=1).cached_tokens == 0
    for options, match in (({"state_cache_bytes": STATE - 1}, f"a state takes {STATE} bytes, got {STATE - 1}"), ({"state_cache_bytes": STATE, "num_kv_blocks": 0}, "states are kept beside KV blocks"), ({"state_cache_bytes": -1}, "state_cache_bytes: wanted"), ({"state_cache_bytes": "much"}, "state_cache_bytes: wanted")):
        with pytest.raises(vivace.InvalidArgumentError, match=match):
            load("qwen35", **options)
    with pytest.raises(vivace.InvalidArgumentError, match="qwen3 carries no recurrent state"):
        load("qwen3", context=128, state_cache_bytes=STATE)


def said(stream):
    return [(c.token, c.logprob, c.finish) for c in stream]


@pytest.mark.parametrize("how", [{}, dict(temperature=0.8, seed=3, repetition_penalty=1.3, presence_penalty=0.5)], ids=str)
@pytest.mark.parametrize("n", [20, 64, 90])
def test_capsules_hold_the_state(n, how, tmp_path):
    """Midway and again at the end, in memory, on the host and from a file: what goes on says what would have been said."""
    ids, path = drawn(n, 5), tmp_path / "capsule"
    with load("qwen35") as model:
        want = said(model._stream(ids, None, max_tokens=80, **how))
        model.generate_ids(drawn(3), max_tokens=1)
        for cut in (1, 45, 79):
            stream = model._stream(ids, None, max_tokens=80, **how)
            assert [(c.token, c.logprob, c.finish) for c in (next(stream) for _ in range(cut))] == want[:cut]
            kept = stream.capsule()
            assert said(stream) == want[cut:], "who is looked at goes on"
            assert kept.positions <= n + cut - 1 and (n < 64 or kept.positions >= n // 64 * 64 - (n % 64 == 0) * 64)
            assert kept.bytes == (-(-kept.positions // 64) * model._live.block()[1] + STATE if kept.positions else 0)
            assert said(model.restore(kept.fork())) == want[cut:]
            kept.save(path, key=KEY)
            assert said(model.restore(kept.fork().to_host())) == want[cut:]
            with load("qwen35", max_batch=1) as other:  # nothing of it is there
                again = other.restore(path, key=KEY)
                assert said(again) == want[cut:] and again.cache()[0] == kept.positions
    with load("qwen35_moe") as other, pytest.raises(vivace.InvalidArgumentError, match="another model"):
        other.restore(path, key=KEY)
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)
    with load("qwen35") as model, pytest.raises(vivace.CorruptDataError):
        model.restore(path, key=KEY)


def test_places_that_capsules_hold():
    """Half of them at most: the next capsules are copies on the host."""
    LONG = 100  # no stream may be at its end before its capsule is taken
    with load("qwen35", state_cache_bytes=6 * STATE, num_kv_blocks=40) as model:
        kept = []
        for i in range(5):
            stream = model._stream(drawn(70, i), None, max_tokens=LONG)
            next(stream)
            kept.append(stream.capsule())
            stream.close()
        assert [c.tier for c in kept] == ["device", "device", "device", "host", "host"]
        want = [model.generate_ids(drawn(70, i), max_tokens=LONG).tokens for i in range(5)]
        for c, w in zip(kept, want):
            assert [t for t, _, _ in said(model.restore(c))] == w[1:]
        assert capsule.bound(model).state_bytes == STATE


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    """A hybrid that reads and writes bytes, with a template for tools."""
    folder, r = tmp_path_factory.mktemp("hybrid"), np.random.default_rng(3)
    config = json.loads((TINY / "qwen35" / "config.json").read_text())
    signs = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    vocab = 256 + len(signs)
    weights = load_file(TINY / "qwen35" / "model.safetensors")
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        w = weights[key]
        weights[key] = np.concatenate([w, r.standard_normal((vocab - len(w), w.shape[1])).astype(w.dtype) * w.std()])
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": vocab, "max_position_embeddings": 4096, "eos_token_id": 257}))
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in signs[:2]])
    tok.add_tokens([AddedToken(s, special=False, normalized=False) for s in signs[2:]])
    tok.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": chat_templates.THINKING}))
    return folder


def test_a_session_says_what_a_chat_says(talking):
    with vivace.load_model(talking, device="cpu", precision="f32", kv_dtype="f32", context=2048) as model:
        chat = model.session(system="You answer in few words.", max_tokens=12)
        for turn, words in enumerate(["Name a colour.", "Another one?", "And a fruit?"]):
            answer = chat.send(words)
            again = model.generate_ids([*chat._ids[:-len(answer.tokens)]], max_tokens=12, reuse=False, stop=model.text.eos)
            assert (again.tokens, again.logprobs) == (answer.tokens, answer.logprobs)
            if turn:
                assert answer.prompt_tokens - answer.cached_tokens < 80, "a turn computes its own words"
        kept = chat.capsule()
        assert chat.send("Thanks!").tokens == model.restore(kept).send("Thanks!").tokens == model.restore(kept.to_host()).send("Thanks!").tokens


TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"], "additionalProperties": False}}}]


def test_the_server_answers_with_tools(talking):
    openai = pytest.importorskip("openai", reason="a GPU machine has no client")
    with vivace.load_model(talking, device="cpu", precision="f32", kv_dtype="f32", context=2048, max_batch=2, logit_bias=True) as model, inside(model, Engine) as (engine, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        ask = dict(model=NAME, messages=[{"role": "user", "content": "What is 3 and 4?"}], tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=160, temperature=1.0, seed=1)
        first, second = (client.chat.completions.create(**ask) for _ in range(2))
        for answer in (first, second):
            (call,) = answer.choices[0].message.tool_calls
            assert call.function.name == "add" and json.loads(call.function.arguments)["a"] <= 99
            assert answer.choices[0].message.tool_calls[0].function.arguments == first.choices[0].message.tool_calls[0].function.arguments
        prompt = first.usage.prompt_tokens
        assert first.usage.prompt_tokens_details.cached_tokens == 0 and second.usage.prompt_tokens_details.cached_tokens == (prompt - 1) // 64 * 64 > 0
        reply = [*ask["messages"], first.choices[0].message, {"role": "tool", "tool_call_id": first.choices[0].message.tool_calls[0].id, "content": "7"}]
        again = client.chat.completions.create(**ask | {"messages": reply, "tool_choice": "auto", "max_tokens": 8})
        assert again.usage.prompt_tokens_details.cached_tokens >= (prompt - 1) // 64 * 64
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
        found = second.usage.prompt_tokens_details.cached_tokens + again.usage.prompt_tokens_details.cached_tokens
        assert f"vivace_cached_tokens_total {found}" in metrics
