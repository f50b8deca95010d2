"""gpu_layers: weights that wait in host memory and take turns. The same bits as with all of them in place."""
from pathlib import Path

import numpy as np
import pytest

import vivace
from tests.test_model import answers
from tests.test_model_steps import DEVICE, IDS, load
from vivace import _core

TINY = Path(__file__).parent / "fixtures" / "tiny"


def logits(name, plan, resident, eager=False):
    core = _core.load_text_model(str(TINY / name), device=DEVICE, precision=plan, kv_dtype="auto", threads=2, context=0, max_batch=32, prefill_chunk=128, eager=eager, gpu_layers=resident)
    core.start(0)
    core.step([(t, i, 0, True) for i, t in enumerate(IDS[:32])])
    raw, rows, vocab = core.logits()
    return np.frombuffer(raw, np.float32).reshape(rows, vocab)


@pytest.mark.parametrize("name, plan", [("llama_untied", "bf16"), ("llama_untied", "f32"), ("llama_untied", "fp8"), ("qwen3", "w8a16"), ("qwen3", "w4a16"), ("gemma3", "bf16"), ("gpt2", "bf16"),
                                        ("mixtral", "bf16"), ("qwen2", "bf16")])
def test_the_same_bits(name, plan):
    load(TINY / name, plan).close()
    want = logits(name, plan, -1)
    for resident in (0, 1, 100):
        np.testing.assert_array_equal(logits(name, plan, resident), want)
    np.testing.assert_array_equal(logits(name, plan, 1, eager=True), want)


def test_answers_and_memory():
    with load(TINY / "llama_untied", "bf16", max_batch=2) as model:
        want, whole = answers(model, [dict(prompt=IDS[:n], max_tokens=20) for n in (5, 40, 9)]), dict(model.memory())
    with load(TINY / "llama_untied", "bf16", max_batch=2, gpu_layers=1) as model:
        assert answers(model, [dict(prompt=IDS[:n], max_tokens=20) for n in (5, 40, 9)]) == want
        parts = dict(model.memory())
        assert model.report()["streamed_layers"] == 1
        assert parts["streamed layer"] == parts["weights of streamed layers (host)"] > 0
        assert parts["weights"] + parts["streamed layer"] == whole["weights"]


def test_random_weights_and_bad_input():
    with load(Path(__file__).parent.parent / "bench/configs/smollm2-135m", "bf16", random_weights=True, gpu_layers=2, context=64) as model:
        assert model.report()["streamed_layers"] == 28
        assert len(model.generate_ids(IDS[:4], max_tokens=3).tokens) == 3
    with pytest.raises(vivace.InvalidArgumentError, match="gpu_layers: wanted at least -1, got -2"):
        load(TINY / "qwen3", gpu_layers=-2)
