"""Sessions and what is found computed: every answer is the one that a model without either gives."""
import random
import time

import pytest

import vivace
from tests.test_model_steps import IDS, load
from tests.test_pages import PATH

NAME = "smollm2-135m-instruct"
EXACT = dict(precision="f32", kv_dtype="f32")


def test_a_longer_prompt_computes_what_is_new():
    with load(PATH, **EXACT, context=128, max_batch=2) as model:
        assert model.report()["num_kv_blocks"] == 4  # on the CPU as many as the contexts need
        first = model.generate_ids(IDS[:70], max_tokens=20)
        assert (first.cached_tokens, first.cache_write_tokens, first.cache_miss) == (0, 89, "cold")
        longer = IDS[:70] + first.tokens + IDS[:9]
        second = model.generate_ids(longer, max_tokens=20)
        assert (second.cached_tokens, second.cache_miss) == (89, "")
        other = model.generate_ids(IDS[:30] + IDS[40:80], max_tokens=5)
        assert (other.cached_tokens, other.cache_miss) == (30, "diverged@30")
        assert model.generate_ids(longer, max_tokens=5, salt="another").cached_tokens == 0
        off = model.generate_ids(longer, max_tokens=20, reuse=False)
        assert (off.cached_tokens, off.cache_write_tokens, off.cache_miss) == (0, 0, "off")
        assert off.tokens == second.tokens and off.logprobs == second.logprobs
        exact = model.generate_ids(longer, max_tokens=20, deterministic=True)
        assert (exact.tokens, exact.logprobs) == (second.tokens, second.logprobs)
        assert model.generate_ids(IDS[:3], max_tokens=2).cache_miss in ("", "short")
        count, available, remembered = model._live.blocks()
        assert count == 4 and available == 4 and remembered > 0
    with load(PATH, **EXACT, context=128, num_kv_blocks=0) as model:
        assert model.generate_ids(longer, max_tokens=20).tokens == second.tokens
        assert model.generate_ids(longer, max_tokens=2).cache_miss == "off"


@pytest.mark.parametrize("precision, kv", [("f32", "f32"), ("bf16", "auto")])
def test_random_conversations(precision, kv):
    """Turns of conversations that begin alike, some of them with penalties, on a pool that holds little more than one: bit for bit what
    each prompt is answered with where nothing is kept."""
    draw = random.Random(5)
    with load(PATH, precision, kv_dtype=kv, context=128, num_kv_blocks=0) as alone, load(PATH, precision, kv_dtype=kv, context=128, max_batch=3, num_kv_blocks=4) as model:
        talks, found = [IDS[:20], IDS[:20], IDS[5:50]], 0
        for turn in range(25):
            streams = []
            for i in range(3):
                if len(talks[i]) > 72:
                    talks[i] = IDS[:20] + [draw.randrange(3, 90)]
                prompt = talks[i] + [draw.randrange(3, 90) for _ in range(draw.randrange(1, 28))]
                options = dict(max_tokens=draw.randrange(1, 30), salt=str(i % 2), deterministic=bool(turn % 2))
                if draw.random() < 0.5:
                    options |= dict(temperature=0.9, seed=turn, repetition_penalty=1.2, frequency_penalty=0.3)
                streams.append((i, prompt, options, model._stream(prompt, None, **options)))
            for i, prompt, options, stream in streams:
                got = [(c.token, c.logprob) for c in stream]
                want = alone.generate_ids(prompt, **options)
                assert got == list(zip(want.tokens, want.logprobs)), (turn, i)
                found += stream.cache()[0]
                talks[i] = prompt + want.tokens
        assert found > 500 and model._live.pending() == 0
        count, available, _ = model._live.blocks()
        assert available == count


def test_n_answers_compute_one_prompt():
    with load(PATH, **EXACT, context=128, max_batch=3) as model:
        model._text = NoWords()
        answers = model.generate_n(IDS[:90], 5, max_tokens=12, temperature=0.9, seed=7)
        assert [a.cached_tokens for a in answers] == [0, 89, 89, 89, 89]
        for i, a in enumerate(answers):
            assert a.tokens == model.generate_ids(IDS[:90], max_tokens=12, temperature=0.9, seed=7 + i, reuse=False).tokens
        with pytest.raises(vivace.InvalidArgumentError, match="generate_n: n: wanted a whole number from 1 to 65536, got 0"):
            model.generate_n(IDS, 0)


class NoWords:
    eos, template, notes, replies = [], None, [], None

    def stream(self):
        return lambda token: ""


def test_a_session_says_what_a_chat_says():
    """The same words as whole prompts give, and only what is new is computed."""
    with vivace.load_model(NAME, device="cpu", context=1024) as model:
        chat = model.session(system="You answer in few words.", max_tokens=12)
        for turn, said in enumerate(["Name a colour.", "Another one?", "And a fruit?", "Say it in French.", "Thank you."]):
            answer = chat.send(said)
            prompt = [*chat._ids[:-len(answer.tokens)]]
            again = model.generate_ids(prompt, max_tokens=12, reuse=False, stop=model.text.eos)
            assert (again.tokens, again.logprobs) == (answer.tokens, answer.logprobs)
            if turn:
                assert answer.prompt_tokens - answer.cached_tokens < 30, "a turn computes its own words"
        assert [m["role"] for m in chat.messages] == ["system"] + ["user", "assistant"] * 5 and chat.forgotten == 0


def test_a_session_slides():
    with vivace.load_model(NAME, device="cpu", context=192) as model:
        chat = model.session(system="Be brief.", max_tokens=16)
        for i in range(12):
            assert chat.send(f"Tell me about the number {i}.").tokens
        assert chat.forgotten > 0 and chat.messages[0]["content"] == "Be brief."
        assert chat.messages[1]["role"] == "user" and chat.messages[-1]["role"] == "assistant"
        before = chat.messages
        with pytest.raises(vivace.LimitExceededError):
            chat.send("word " * 400)
        with pytest.raises(vivace.InvalidArgumentError, match="session: text: wanted a text, got 5"):
            chat.send(5)
        assert chat.messages == before
        with chat.stream("And the number 20?") as turn:
            first = next(turn)
        assert chat.messages[-1]["content"] == first.text  # closed: as far as it came


def test_late_turns_begin_as_soon_as_early_ones():
    """16 turns: before the first token of the last its own words are computed, not those of all before it."""
    with vivace.load_model(NAME, device="cpu", context=2048) as model:
        chat, first = model.session(max_tokens=20), []
        for i in range(16):
            start = time.perf_counter()
            with chat.stream(f"Tell me one short fact about the number {i}, please.", stop=[]) as turn:
                next(turn)
                first.append(time.perf_counter() - start)
                list(turn)
        assert turn.prompt_tokens > 400 and turn.cache()[0] > turn.prompt_tokens - 60
        print("first token, ms:", [round(1e3 * t) for t in first])


def test_wrong_options():
    with load(PATH) as model:
        for name, value, wanted in (("salt", 5, "a text"), ("reuse", "yes", "True or False"), ("deterministic", 3, "True or False")):
            with pytest.raises(vivace.InvalidArgumentError, match=f"generate: {name}: wanted {wanted}, got"):
                model.generate_ids(IDS[:5], **{name: value})
        with pytest.raises(vivace.InvalidArgumentError, match="session: no option 'max_token', did you mean max_tokens"):
            model.session(max_token=5)
    for bad in (-1, "most", 1.5):
        with pytest.raises(vivace.InvalidArgumentError, match="load_model: num_kv_blocks: wanted auto, full or a whole number from 0 on, got"):
            load(PATH, num_kv_blocks=bad)
