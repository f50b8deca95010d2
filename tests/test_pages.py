"""num_kv_blocks: caches as pages that sequences share. The same answers, fewer places, errors that say what is short."""
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import vivace
from tests.test_model import answers
from tests.test_model_steps import DEVICE, IDS, last_logits, load
from vivace import _core

TINY = Path(__file__).parent / "fixtures" / "tiny"
PATH = TINY / "llama_untied"


@pytest.mark.parametrize("name", ["llama_untied", "qwen3", "gemma3", "gpt2"])
def test_text_is_the_references(name):
    want = load_file(TINY / name / "expected.safetensors")
    ids, greedy = want["prompt_ids"].tolist(), want["greedy_ids"].tolist()
    with load(TINY / name, num_kv_blocks=4) as model:
        for _ in range(3):  # the pages change hands
            assert model.generate_ids(ids, max_tokens=len(greedy)).tokens == greedy


@pytest.mark.parametrize("precision, kv", [("f32", "f32"), ("bf16", "auto"), ("bf16", "e4m3")])
def test_rows_answer_as_if_alone(precision, kv):
    """Requests of many lengths on three slots and fewer pages than these want together: those who find none wait."""
    requests = [dict(prompt=[IDS[i % 90] for i in range(n)], max_tokens=20 + n % 7) for n in (3, 60, 100, 9, 64, 65, 30)]
    with load(PATH, precision, kv_dtype=kv, num_kv_blocks=3) as model:
        alone = [answers(model, [r])[0] for r in requests]
    for ahead in (1, 4):
        with load(PATH, precision, kv_dtype=kv, num_kv_blocks=4, max_batch=3, max_in_flight_steps=ahead) as model:
            assert list(dict(sorted(answers(model, requests).items())).values()) == alone
            assert list(dict(sorted(answers(model, requests[::-1]).items())).values()) == alone[::-1]
            assert model.report()["num_kv_blocks"] == 4


def test_memory_is_that_of_the_pages():
    size = lambda **options: sum(b for name, b in load(PATH, "bf16", max_batch=8, context=128, **options).memory() if "cache" in name)  # noqa: E731
    assert size(num_kv_blocks=4) * 4 == size()


def test_logits_are_near_those_of_whole_caches():
    rows = [(t, i, 0, True) for i, t in enumerate(IDS[:32])]
    got = []
    for pages in (0, 3):
        core = _core.load_text_model(str(PATH), device=DEVICE, precision="f32", kv_dtype="f32", threads=2, context=0, max_batch=32, prefill_chunk=128, num_kv_blocks=pages)
        if pages:
            with pytest.raises(vivace.Error, match=r"num_kv_blocks: 128 positions need 2 pages of 64, 1 of 3 are free"):
                core.start(0), core.start(1)
            core = _core.load_text_model(str(PATH), device=DEVICE, precision="f32", kv_dtype="f32", threads=2, context=0, max_batch=32, prefill_chunk=128, num_kv_blocks=pages)
            with pytest.raises(vivace.Error, match=r"step: position 0 of slot 0 has no page"):
                core.step(rows)
        core.start(0)
        core.step(rows)
        raw, n, vocab = core.logits()
        got.append(np.frombuffer(raw, np.float32).reshape(n, vocab))
    np.testing.assert_allclose(got[1], got[0], rtol=0, atol=1e-4)


def test_bad_input():
    with load(PATH, num_kv_blocks=1) as model, pytest.raises(vivace.LimitExceededError, match=r"60 prompt tokens \+ 20 new ones need 79 positions, all 1 pages of 64 together hold 64"):
        model.generate_ids(IDS[:60], max_tokens=20)
    with pytest.raises(vivace.InvalidArgumentError, match="num_kv_blocks: wanted auto, full or a whole number from 0 on, got -1"):
        load(PATH, num_kv_blocks=-1)


def test_pages_of_direct_steps_go_to_requests():
    """Sequences that were started past the engine's loop end when a request comes, and cannot go on after it."""
    with load(PATH, num_kv_blocks=2) as model:
        core = model._live
        core.start(0)
        core.step([(5, 0, 0, True)])
        assert len(model.generate_ids(IDS[:20], max_tokens=4).tokens) == 4
        with pytest.raises(vivace.FailedPreconditionError, match=r"requests have used slot 0 since its sequence began; start\(0\) another"):
            core.step([(5, 1, 0, True)])
        core.start(0)
        core.step([(5, 0, 0, True)])


def test_speculation_and_profile_find_their_pages():
    with load(PATH, max_batch=8, num_kv_blocks=4) as model:
        plain = model.generate_ids(IDS[:20], max_tokens=30).tokens
        assert model.generate_ids(IDS[:20], max_tokens=30, draft="lookup").tokens == plain
        assert model.profile(rows=2, position=127)["step_us"] > 0  # the last position of the last page
        assert model.generate_ids(IDS[:20], max_tokens=30).tokens == plain  # its pages are free again: it has all of them
        with pytest.raises(vivace.LimitExceededError, match="128 positions need 2 pages of 64, 0 of 4 are free"):
            model.profile(rows=3, position=127)
        assert model.generate_ids(IDS[:20], max_tokens=30).tokens == plain


def test_profile_stays_where_it_is():
    """Hundreds of replays of one step write that step's position and no other: what stands behind it decodes as before."""
    model = _core.load_text_model(str(PATH), device=DEVICE, precision="f32", kv_dtype="f32", threads=2, context=0, max_batch=1, prefill_chunk=128)
    answer = lambda: last_logits(model).tobytes()  # noqa: E731
    again = lambda at: model.step([(IDS[at], at, 0, True)])  # noqa: E731
    model.start(0)
    for i in range(40):
        again(i)
    want = answer()
    assert model.profile(rows=1, pos=10, decode=True)["step_us"] > 0
    again(10), again(39)
    assert answer() == want
    assert model.profile(rows=1, pos=127, decode=True)["step_us"] > 0  # the last place of the context


def test_answers_grow_and_give_way():
    """Three who want five blocks at last, in five: all begin, the youngest moves to host memory and goes on as if nothing had been, penalties
    and masks with it."""
    vocab = 100
    requests = [dict(prompt=IDS[:n], max_tokens=100, temperature=0.8, seed=n, repetition=1.3, presence=0.2) for n in (20, 25, 3)]
    with load(PATH, "f32", kv_dtype="f32", context=128, num_kv_blocks=2, logit_bias=True) as model:
        vocab = model.report()["vocab"]
        alone = [answers(model, [r])[0][0] for r in requests]
        masked = model.generate_ids(IDS[:30], max_tokens=90, mask=lambda so_far: [(t + len(so_far)) % 3 > 0 for t in range(vocab)]).tokens
    for ahead in (1, 4):
        with load(PATH, "f32", kv_dtype="f32", context=128, num_kv_blocks=3, max_batch=3, max_in_flight_steps=ahead, logit_bias=True) as model:
            for _ in range(10):  # until answers met: the engine may end one before this thread has begun the next
                streams = [model._stream(r["prompt"], None, max_tokens=100, temperature=0.8, seed=r["seed"], repetition_penalty=1.3, presence_penalty=0.2) for r in requests]
                assert [[c.token for c in s] for s in streams] == alone
                first = model._stream(requests[0]["prompt"], None, max_tokens=100, temperature=0.8, seed=20, repetition_penalty=1.3, presence_penalty=0.2)
                second = model._stream(IDS[:30], None, max_tokens=90, mask=lambda so_far: [(t + len(so_far)) % 3 > 0 for t in range(vocab)])
                got = [c.token for c in second]
                assert got == masked and [c.token for c in first] == alone[0]
                assert model._live.pending() == 0
                if model._live.parked() > 0:
                    break
            assert model._live.parked() > 0


def test_classes_and_deadlines():
    with load(PATH, "f32", kv_dtype="f32", context=128, num_kv_blocks=3, max_batch=1) as model:
        want = model.generate_ids(IDS[:20], max_tokens=90).tokens
        slow = model._stream(IDS[:20], None, max_tokens=90, priority="batch")
        next(slow)
        assert len(model.generate_ids(IDS[:9], max_tokens=5, priority="robot").tokens) == 5
        assert [want[0]] + [c.token for c in slow] == want
        with pytest.raises(vivace.InvalidArgumentError, match="generate: priority: wanted robot or interactive or batch, got 'first'"):
            model.generate_ids(IDS[:9], priority="first")
        with pytest.raises(vivace.InvalidArgumentError, match="generate: deadline: wanted a positive number, got -1"):
            model.generate_ids(IDS[:9], deadline=-1)
        with pytest.raises(vivace.LimitExceededError, match="the deadline passed after|its deadline is in"):
            model.generate_ids(IDS[:9], max_tokens=110, deadline=1e-5)
        assert model.generate_ids(IDS[:20], max_tokens=90, deadline=60).tokens == want


def test_waiting_tokens_are_bounded():
    with load(PATH, context=128, max_waiting_tokens=50) as model:
        first = model._stream(IDS[:40], None, max_tokens=80)
        with pytest.raises(vivace.LimitExceededError, match=r"prompts of 40 tokens answer or wait already, with these 20 it would be more than max_waiting_tokens \(50\)"):
            while True:  # until it is over, a second does not fit
                model._stream(IDS[:20], None, max_tokens=1).close()
        first.close()
