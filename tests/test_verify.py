"""`vivace verify`: errors of a precision plan against another, held to values worked out here."""
from pathlib import Path

import numpy as np
import pytest

import vivace
from tests.test_model_steps import DEVICE, IDS, decode, open_core
from vivace import cli
from vivace.verify import verify

TINY = Path(__file__).parent / "fixtures" / "tiny"
PROMPTS = [IDS[:50], IDS[20:60]]


def test_figures_are_those_of_the_logits():
    got = verify(TINY / "llama_untied", precision="fp8", against="bf16", prompts=PROMPTS, device=DEVICE)
    a, b = (np.concatenate([decode(open_core(TINY / "llama_untied", plan, max_batch=32), ids, 32) for ids in PROMPTS]).astype(np.float64) for plan in ("bf16", "fp8"))
    assert got["logits_error"] == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a), rel=1e-6)
    assert got["row_error"] == pytest.approx(np.median(np.linalg.norm(b - a, axis=1) / np.linalg.norm(a, axis=1)), rel=1e-6)
    assert got["max_error"] == pytest.approx(np.abs(b - a).max(), rel=1e-6)
    log = [x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (a, b)]
    rows = [i for i in range(90) if i not in (49, 89)]
    nexts = [*PROMPTS[0][1:], *PROMPTS[1][1:]]
    perplexity = [np.exp(-np.mean(x[rows, nexts])) for x in log]
    assert got["perplexity_change"] == pytest.approx(perplexity[1] / perplexity[0] - 1, rel=1e-6)
    assert got["same_choice"] == np.mean(a.argmax(1) == b.argmax(1)) and got["tokens"] == 90
    assert got["divergence"] == pytest.approx(np.mean(np.sum(np.exp(log[0]) * (log[0] - log[1]), axis=1)), rel=1e-5)


@pytest.mark.parametrize("name, places", [("llama_untied", 1 + 2 * 2), ("gemma3", None), ("gpt2", None), ("qwen3_moe", None)])
def test_errors_along_the_layers_grow_from_nothing(name, places):
    got = verify(TINY / name, precision="w8a16", against="bf16", prompts=PROMPTS, device=DEVICE)
    errors = [row["error"] for row in got["layers"]]
    assert places is None or len(errors) == places
    assert errors[0] == 0 and 0 < next(e for e in errors if e) < 0.2 and got["logits_error"] > 0


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2", "qwen3_moe", "gpt2"])
def test_a_plan_that_keeps_queries_apart_has_the_same_places(name):
    """f32 has products of queries alone, as wide as the residual stream here; bf16 has one of queries, keys and values."""
    errors = [row["error"] for row in verify(TINY / name, precision="f32", against="bf16", prompts=PROMPTS, device=DEVICE)["layers"]]
    assert len(errors) >= 1 + 2 * 2
    assert 0 < min(errors) and max(errors) < 0.1


def test_a_plan_against_itself_is_the_same():
    got = verify(TINY / "qwen3", precision="bf16", against="bf16", prompts=PROMPTS, device=DEVICE)
    assert got["logits_error"] == got["divergence"] == got["perplexity_change"] == 0 and got["same_choice"] == 1
    assert all(row["error"] == 0 for row in got["layers"])


def test_options_are_looked_at_before_any_work(monkeypatch):
    from vivace import verify as module

    monkeypatch.setattr(module, "load_model", lambda *a, **k: pytest.fail("something was loaded"))
    for options in (dict(precision="fp9"), dict(precision="bf16", against="fp9"), dict(precision="bf16", lm_head_dtype="q9"), dict(precision="fp8", lm_head_dtype="q8_0")):
        with pytest.raises(vivace.Error, match="precision|head"):
            module.verify(TINY / "qwen3", prompts=PROMPTS, device=DEVICE, **options)


def test_what_is_kept_does_not_grow_with_the_model_or_the_text(monkeypatch):
    """No value of a step but the stream's rows is asked for, and those of one step alone are held."""
    from vivace import verify as module

    seen, run = [], module._steps

    def steps(core, ids, hidden):
        for stream, logits in run(core, ids, hidden):
            seen.append(sum(v.nbytes for _, v in stream) + logits.nbytes)
            yield stream, logits

    monkeypatch.setattr(module, "_steps", steps)
    got = module.verify(TINY / "llama_untied", precision="fp8", prompts=[IDS[:60]] * 40, device=DEVICE)
    assert got["tokens"] == 2400 and len(seen) == 160 and max(seen) <= 32 * 4 * (5 * 64 + 256) * 2


def test_a_text_beyond_the_context_is_cut_and_counted(capsys, tmp_path):
    got = verify(TINY / "qwen3", precision="fp8", prompts=[IDS[:60], IDS[:10]], context=16, device=DEVICE)
    assert got["tokens"] == 26 and got["cut"] == 44 and got["context"] == 16
    with pytest.raises(vivace.LimitExceededError, match="trained for"):
        verify(TINY / "qwen3", precision="fp8", prompts=PROMPTS, context=1 << 20, device=DEVICE)


def test_the_command_line_and_bad_input(capsys, tmp_path):
    with pytest.raises(vivace.InvalidArgumentError, match="no prompt"):
        verify(TINY / "qwen3", precision="fp8", prompts=[], device=DEVICE)
    with pytest.raises(vivace.InvalidArgumentError, match="fewer than two tokens"):
        verify(TINY / "qwen3", precision="fp8", prompts=[[3]], device=DEVICE)
    with pytest.raises(vivace.InvalidArgumentError, match="precision: wanted"):
        verify(TINY / "qwen3", precision="fp9", prompts=PROMPTS, device=DEVICE)
    assert cli.main(["verify", "--model", str(TINY / "qwen3"), "--precision", "fp8", "--text", str(tmp_path / "gone")]) == 1
    assert "gone: No such file" in capsys.readouterr().err
