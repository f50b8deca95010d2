"""kv_pages: caches as pages that sequences share. The same answers, fewer places, errors that say what is short."""
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
    with load(TINY / name, kv_pages=4) as model:
        for _ in range(3):  # the pages change hands
            assert model.generate_ids(ids, max_tokens=len(greedy)).tokens == greedy


@pytest.mark.parametrize("precision, kv", [("f32", "f32"), ("bf16", "auto"), ("bf16", "e4m3")])
def test_rows_answer_as_if_alone(precision, kv):
    """Requests of many lengths on three slots and fewer pages than these want together: those who find none wait."""
    requests = [dict(prompt=[IDS[i % 90] for i in range(n)], max_tokens=20 + n % 7) for n in (3, 60, 100, 9, 64, 65, 30)]
    with load(PATH, precision, kv_dtype=kv, kv_pages=3) as model:
        alone = [answers(model, [r])[0] for r in requests]
    for ahead in (1, 4):
        with load(PATH, precision, kv_dtype=kv, kv_pages=4, max_batch=3, ahead=ahead) as model:
            assert list(dict(sorted(answers(model, requests).items())).values()) == alone
            assert list(dict(sorted(answers(model, requests[::-1]).items())).values()) == alone[::-1]
            assert model.report()["kv_pages"] == 4


def test_memory_is_that_of_the_pages():
    size = lambda **options: sum(b for name, b in load(PATH, "bf16", max_batch=8, context=128, **options).memory() if "cache" in name)  # noqa: E731
    assert size(kv_pages=4) * 4 == size()


def test_logits_are_near_those_of_whole_caches():
    rows = [(t, i, 0, True) for i, t in enumerate(IDS[:32])]
    got = []
    for pages in (0, 3):
        core = _core.load_text_model(str(PATH), device=DEVICE, precision="f32", kv_dtype="f32", threads=2, context=0, max_batch=32, chunk=128, kv_pages=pages)
        if pages:
            with pytest.raises(vivace.Error, match=r"kv_pages: 128 positions need 2 pages of 64, 1 of 3 are free"):
                core.start(0), core.start(1)
            core = _core.load_text_model(str(PATH), device=DEVICE, precision="f32", kv_dtype="f32", threads=2, context=0, max_batch=32, chunk=128, kv_pages=pages)
            with pytest.raises(vivace.Error, match=r"step: position 0 of slot 0 has no page"):
                core.step(rows)
        core.start(0)
        core.step(rows)
        raw, n, vocab = core.logits()
        got.append(np.frombuffer(raw, np.float32).reshape(n, vocab))
    np.testing.assert_allclose(got[1], got[0], rtol=0, atol=1e-4)


def test_bad_input():
    with load(PATH, kv_pages=1) as model, pytest.raises(vivace.LimitExceededError, match=r"60 prompt tokens \+ 20 new ones need 79 positions, all 1 pages of 64 together hold 64"):
        model.generate_ids(IDS[:60], max_tokens=20)
    with pytest.raises(vivace.InvalidArgumentError, match="kv_pages: wanted at least 0, got -1"):
        load(PATH, kv_pages=-1)


def test_pages_that_nobody_gives_back():
    """Taken past the batcher: an error, where the request would wait for ever."""
    with load(PATH, kv_pages=2) as model:
        model._live.start(0)
        with pytest.raises(vivace.FailedPreconditionError, match="a request waits for pages, 0 of 2 are free"):
            model.generate_ids(IDS[:20], max_tokens=4)
        model.profile()  # forgets every sequence
        assert len(model.generate_ids(IDS[:20], max_tokens=4).tokens) == 4


def test_speculation_and_profile_find_their_pages():
    with load(PATH, max_batch=8, kv_pages=4) as model:
        plain = model.generate_ids(IDS[:20], max_tokens=30).tokens
        assert model.generate_ids(IDS[:20], max_tokens=30, draft="lookup").tokens == plain
        assert model.profile(rows=2, position=127)["step_us"] > 0  # the last position of the last page
        assert model.generate_ids(IDS[:20], max_tokens=30).tokens == plain  # its pages are free again: it has all of them
        with pytest.raises(vivace.LimitExceededError, match="128 positions need 2 pages of 64, 0 of 4 are free"):
            model.profile(rows=3, position=127)
        assert model.generate_ids(IDS[:20], max_tokens=30).tokens == plain


def test_profile_stays_where_it_is():
    """Hundreds of replays of one step write that step's position and no other: what stands behind it decodes as before."""
    model = _core.load_text_model(str(PATH), device=DEVICE, precision="f32", kv_dtype="f32", threads=2, context=0, max_batch=1, chunk=128)
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
