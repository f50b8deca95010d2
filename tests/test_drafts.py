"""Guesses of several tokens that one step checks, on the host or (`pytest --device cuda`) on a GPU."""
import os
from pathlib import Path

import pytest

import vivace

DEVICE = os.environ.get("VIVACE_TEST_DEVICE", "cpu")
DEVICE = DEVICE if DEVICE.startswith("cuda") else "cpu"
TINY = Path(__file__).parent / "fixtures" / "tiny"
IDS = [3 + i for i in range(37)]


def load(name, **options):
    return vivace.load_model(TINY / name, device=DEVICE, precision="bf16", context=100, **options)


@pytest.mark.parametrize("drafts", [1, 4, 7])
def test_drafts_change_no_token(drafts):
    """Whatever is guessed, right or wrong: tokens, log-probabilities and the end are those of plain decoding."""
    repeating = (IDS[:6] * 7)[:37]
    # "llama" has 192 tokens as well and other weights: nearly every guess of it is wrong.
    with load("llama_untied", max_batch=8) as model, load("llama_untied") as twin, load("llama") as other:
        for prompt in (IDS, repeating, [5]):
            plain = model.generate_ids(prompt, max_tokens=40)
            stop = [plain.tokens[20]]
            for draft in ("lookup", twin, other):
                got = model.generate_ids(prompt, max_tokens=40, draft=draft, num_speculative_tokens=drafts)
                assert (got.tokens, got.logprobs, got.finish) == (plain.tokens, plain.logprobs, "length")
                cut = model.generate_ids(prompt, max_tokens=40, draft=draft, num_speculative_tokens=drafts, stop=stop)
                assert cut.finish == "stop" and cut.tokens == plain.tokens[:plain.tokens.index(stop[0])]
        whole = model.generate_ids(IDS, max_tokens=64)  # to the last position of the context
        assert model.generate_ids(IDS, max_tokens=64, draft="lookup", num_speculative_tokens=drafts).tokens == whole.tokens
        with pytest.raises(vivace.LimitExceededError, match="max_batch - 1 = 7 drafts"):
            model.generate_ids(IDS, max_tokens=4, draft="lookup", num_speculative_tokens=8)
        for how in (dict(temperature=0.7, seed=3), dict(temperature=1.5, seed=4, top_k=9, min_p=0.01)):  # whoever guesses, seed and position say what is drawn
            drawn = model.generate_ids(repeating, max_tokens=40, **how)
            for draft in ("lookup", twin, other):
                got = model.generate_ids(repeating, max_tokens=40, draft=draft, num_speculative_tokens=drafts, **how)
                assert (got.tokens, got.logprobs) == (drawn.tokens, drawn.logprobs)
        with pytest.raises(vivace.InvalidArgumentError, match="leave out presence, or draft"):
            model.generate_ids(IDS, max_tokens=4, draft="lookup", presence_penalty=0.5)
        with pytest.raises(vivace.InvalidArgumentError, match="wanted 'lookup', 'off' or a smaller model"):
            model.generate_ids(IDS, max_tokens=4, draft="magic")


@pytest.mark.parametrize("drafts", [1, 4, 7])
def test_a_twin_is_always_right(drafts):
    """Where prompts and answers are one class: the twin takes as its prompt what the model answered."""
    with load("llama_untied", max_batch=8, invariance="strict") as model, load("llama_untied", invariance="strict") as twin:
        run = model._stream(IDS, None, draft=twin, num_speculative_tokens=drafts, max_tokens=40)
        assert len(list(run)) == 40
        steps, drafted, accepted = run.drafts()
        assert accepted == drafted and steps == -(-39 // (drafts + 1))
