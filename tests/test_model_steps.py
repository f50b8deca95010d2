"""Steps of the decoder where it runs: `pytest --device cuda` holds a GPU to the same claims as the host.

Bits of a row depend on its class (decode: every row of the step samples; prefill: any other step) and on nothing
else; in f32 the greedy text is that of the float64 references; bf16 errs no more than the host's bf16 does.
"""
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from bench.bench_llm_device import hollow_checkpoint
from tests import test_model
from tests.reference.decoder_numpy import Decoder, Summed
from tests.test_model import answers
from vivace import _core, cli

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "tests/fixtures"
HUB = sorted(p.parent.name for p in (FIXTURES / "tiny").glob("*/expected.safetensors"))
GGUF = sorted(p.stem for p in (FIXTURES / "tiny_gguf").glob("*.gguf"))
DEVICE = os.environ.get("VIVACE_TEST_DEVICE", "cpu")
DEVICE = DEVICE if DEVICE.startswith("cuda") else "cpu"
PATH = FIXTURES / "tiny" / "llama_untied"
IDS = [(i * 37 + 5) % 190 for i in range(100)]
TOLERANCE = 1e-4  # see test_model.py


def load(path, precision="f32", **options):
    """A model on the tested device; skips where an op of it has no kernel there yet."""
    options = {"device": DEVICE, "precision": precision, "kv_dtype": "auto" if precision != "f32" else "f32", **options}
    try:
        return vivace.load_model(path, **options)
    except vivace.UnsupportedError as e:
        if "no CUDA kernel" in str(e):
            pytest.skip(str(e))
        raise


def open_core(path, precision="f32", *, eager=False, max_batch=1, prefill_chunk=128, device=DEVICE, kv_dtype=None, **options):
    load(path, precision, max_batch=1, **options).close()  # for the skip, and for NVRTC's path
    kv_dtype = kv_dtype or ("f32" if precision == "f32" else "auto")
    return _core.load_text_model(str(path), device=device, precision=precision, kv_dtype=kv_dtype, threads=2, context=0, max_batch=max_batch, prefill_chunk=prefill_chunk, eager=eager, **options)


def last_logits(core):
    raw, rows, vocab = core.logits()
    return np.frombuffer(raw, np.float32).reshape(rows, vocab).copy()


def decode(core, ids, piece, slot=0):
    """Logits [len(ids), V] in the decode class, `piece` rows a step."""
    core.start(slot)
    out = []
    for at in range(0, len(ids), piece):
        core.step([(t, at + i, slot, True) for i, t in enumerate(ids[at:at + piece])])
        out.append(last_logits(core))
    return np.concatenate(out)


def prefill(core, ids, pieces, slot=0, beside=()):
    """Logits [V] of the last token, in the prefill class, in pieces of the given sizes; `beside`: (slot, ids)
    of a sequence whose rows come first in every step."""
    core.start(slot)
    at = 0
    for n in pieces:
        rows = [(t, at + i, slot, at + i == len(ids) - 1) for i, t in enumerate(ids[at:at + n])]
        if beside:
            other, theirs = beside
            rows = [(t, at + i, other, False) for i, t in enumerate(theirs[at:at + n])] + rows
        at += n
        if all(r[3] for r in rows):
            rows = [(rows[0][0], rows[0][1], slot, False)] + rows  # a lone sampled row would be a decode step: said twice
        core.step(rows)
    return last_logits(core)[0]


def f32_tolerance(name, ids):
    """Of hybrids, whose states and experts carry the last bits of sums on: three times the deviation of what float32 errs by when products are summed in
    eight orders, 1.0e-4 of qwen35_moe (the host 0.7e-4, an H200 2.2e-4, each of whose ops errs by at most 2.2e-7 of its values: lab/f32_by_op.py)."""
    if not name.startswith("qwen35"):
        return TOLERANCE
    config, weights = json.loads((FIXTURES / "tiny" / name / "config.json").read_text()), load_file(FIXTURES / "tiny" / name / "model.safetensors")
    right = Decoder(config, weights).logits(ids)
    far = [np.abs(Decoder(config, weights, Summed(np.random.default_rng(i))).logits(ids) - right).max() for i in range(8)]
    return max(TOLERANCE, 3 * float(np.sqrt(np.mean(np.square(far)))))


class Seen(Decoder):
    """What entered and left each product."""

    def product(self, x, *args, **more):
        y = super().product(x, *args, **more)
        self.seen += [np.asarray(v)[test_model.ROWS] for v in (x, y)]
        return y

    def values(self, ids):
        self.seen = []
        self.logits(ids)
        return self.seen


def f32_tolerances(name):
    """f32_tolerance's rule for the values of a hybrid without experts (with them rows of products are some tokens alone): those that enter or leave a product."""
    if name != "qwen35":
        return {}
    config, weights, want = json.loads((FIXTURES / "tiny" / name / "config.json").read_text()), load_file(FIXTURES / "tiny" / name / "model.safetensors"), load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    ids, out = want["prompt_ids"].tolist(), {}
    right = Seen(config, weights).values(ids)
    others = [Seen(config, weights, Summed(np.random.default_rng(i))).values(ids) for i in range(8)]
    for key in (k for k in want if k.startswith("values.")):
        errors = [np.abs(v - want[key]).max() if v.shape == want[key].shape else np.inf for v in right]
        at = int(np.argmin(errors))
        if errors[at] < TOLERANCE:
            out[key] = 3 * float(np.sqrt(np.mean([np.abs(o[at] - right[at]).max() ** 2 for o in others])))
    return out


@pytest.mark.parametrize("name", HUB)
def test_f32_text_is_the_references(name):
    want = load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    ids = want["prompt_ids"].tolist()
    got = decode(open_core(FIXTURES / "tiny" / name, max_batch=32), ids, len(ids))
    np.testing.assert_allclose(got, want["prompt_logits"], rtol=0, atol=f32_tolerance(name, ids))
    with load(FIXTURES / "tiny" / name) as model:
        assert model.generate_ids(ids, max_tokens=len(want["greedy_ids"])).tokens == want["greedy_ids"].tolist()


@pytest.mark.parametrize("name", GGUF)
def test_gguf_f32_text_is_the_references(name):
    want = load_file(FIXTURES / "tiny_gguf" / f"{name}.expected.safetensors")
    ids, greedy = want["prompt_ids"].tolist(), want["f32.greedy_ids"].tolist()
    got = decode(open_core(FIXTURES / "tiny_gguf" / f"{name}.gguf", max_batch=32), ids, len(ids))
    np.testing.assert_allclose(got, want["f32.prompt_logits"], rtol=0, atol=TOLERANCE)
    with load(FIXTURES / "tiny_gguf" / f"{name}.gguf") as model:
        assert model.generate_ids(ids, max_tokens=len(greedy)).tokens == greedy


# Relative error of the same rows in float64's eyes when transformers 5.17 on torch 2.11 computes them in bf16 (CPU).
TORCH_BF16 = {"gemma3": 0.0283, "gemma3_params": 0.0202, "gpt2": 0.0086, "llama": 0.0235, "llama_linear": 0.0206, "llama_untied": 0.0223,
              "mixtral": 0.0517, "qwen2": 0.0191, "qwen3": 0.0150, "qwen3_moe": 0.0130, "qwen3_yarn": 0.0270, "qwen35": 0.0381, "qwen35_moe": 0.0384}

# The same of each value between ops that the fixtures have, in 1e-4, in their order.
TORCH_BF16_VALUES = {
    "gemma3": [31, 62, 58, 77, 87, 99, 201, 141, 210, 120, 152, 466, 256, 324, 289, 297, 414, 306, 452, 336],
    "gemma3_params": [34, 96, 94, 139, 101, 102, 177, 118, 201, 133, 142, 241, 170, 167, 153],
    "gpt2": [36, 38, 40, 49, 58, 59, 51, 69, 77, 78],
    "llama": [40, 99, 99, 154, 124, 131, 229, 186, 270, 267],
    "llama_linear": [39, 96, 113, 152, 148, 148, 178, 161, 291, 224],
    "llama_untied": [40, 94, 101, 158, 130, 134, 227, 174, 247, 236],
    "mixtral": [26, 71, 86, 127, 127, 165, 164, 169],
    "qwen2": [29, 92, 98, 133, 126, 131, 185, 155, 216, 195],
    "qwen3": [35, 58, 65, 99, 105, 96, 120, 120, 145, 142],
    "qwen3_moe": [28, 51, 56, 97, 117, 268, 161, 169],
    "qwen35": [27, 80, 65, 86, 98, 102, 127, 282, 236, 151, 173, 164, 196, 330, 365, 214, 286, 211, 220, 535, 226, 393, 261],
    "qwen35_moe": [28, 79, 77, 75, 131, 133, 335, 169, 211],
    "qwen3_yarn": [25, 88, 96, 119, 122, 126, 137, 146, 169, 154],
}

@pytest.mark.parametrize("name", HUB)
def test_bf16_errs_no_more_than_pytorch(name):
    want = load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    ids = want["prompt_ids"].tolist()
    got = decode(open_core(FIXTURES / "tiny" / name, "bf16", max_batch=32), ids, 32)
    assert np.linalg.norm(got - want["prompt_logits"]) / np.linalg.norm(want["prompt_logits"]) <= 1.05 * TORCH_BF16[name]


@pytest.mark.parametrize("precision", ["bf16", "w8a16", "w4a16", "fp8"])
@pytest.mark.parametrize("name", HUB)
def test_narrow_plans_err_as_on_the_host(name, precision):
    """The same roundings in another order of summation: the error against float64, as a norm over all rows, is
    within a quarter of the host's. Decode and prefill class."""
    want = load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    ids, size = want["prompt_ids"].tolist(), np.linalg.norm(want["prompt_logits"])
    error = lambda logits: np.linalg.norm(logits - want["prompt_logits"]) / size  # noqa: E731
    host = error(decode(open_core(FIXTURES / "tiny" / name, precision, max_batch=32, device="cpu"), ids, 32))
    here = open_core(FIXTURES / "tiny" / name, precision, max_batch=32)
    assert error(decode(here, ids, 32)) <= 1.25 * host
    last = prefill(here, ids, [len(ids)]) - want["prompt_logits"][-1]
    assert np.linalg.norm(last) / np.linalg.norm(want["prompt_logits"][-1]) <= 3 * host  # one row of many


@pytest.mark.parametrize("name, precision", [(n, p) for n in ("llama_untied", "qwen3", "gemma3", "gpt2") for p in ("f32", "bf16")] +
                         [("llama_untied", "w8a16"), ("llama_untied", "w4a16"), ("llama_untied", "fp8"), ("gpt2", "fp8"), ("../tiny_gguf/llama_q4_1.gguf", "native"), ("../tiny_gguf/qwen3_q8_0.gguf", "q8")])
def test_bits_depend_on_the_class_alone(name, precision):
    path = FIXTURES / "tiny" / name
    ids = IDS[:60]
    core = open_core(path, precision, max_batch=48)
    whole = decode(core, ids, 48)
    for piece in (1, 2, 7, 32):
        np.testing.assert_array_equal(decode(core, ids, piece), whole)
    np.testing.assert_array_equal(decode(core, ids, 9, slot=31), whole)
    np.testing.assert_array_equal(decode(open_core(path, precision, max_batch=48, eager=True), ids, 5), whole)
    prompt = prefill(core, ids, [60])
    np.testing.assert_allclose(prompt, whole[-1], rtol=0, atol=1e-4 if precision == "f32" else 0.3 * np.abs(whole[-1]).max())  # another class: near, not equal
    for pieces in ([20, 40], [1] * 60, [59, 1]):
        np.testing.assert_array_equal(prefill(core, ids, pieces), prompt)
    np.testing.assert_array_equal(prefill(core, ids, [30, 30], slot=7, beside=(3, IDS[::-1])), prompt)
    longer = open_core(path, precision, max_batch=4, prefill_chunk=700)  # row bounds 128, 256, 384, 512 and 700
    np.testing.assert_array_equal(prefill(longer, ids, [60]), prompt)
    filler = [(1, 0, 1, False)] * 300
    longer.start(0)
    longer.step(filler + [(t, i, 0, False) for i, t in enumerate(ids[:-1])] + [(ids[-1], 59, 0, True)])
    np.testing.assert_array_equal(last_logits(longer)[0], prompt)


@pytest.mark.parametrize("name, precision", [("llama_untied", "f32"), ("llama_untied", "bf16"), ("qwen3", "w8a16"), ("llama_untied", "int4"), ("gemma3", "bf16"), ("llama_untied", "fp8")])
@pytest.mark.parametrize("max_batch", [1, 48])
def test_strict_invariance_has_one_class(name, precision, max_batch):
    """Tokens of a prompt, in pieces of any size, beside others or not, have the bits of tokens of an answer."""
    core = open_core(FIXTURES / "tiny" / name, precision, max_batch=max_batch, invariance="strict")
    ids, most = IDS[:60], core.limits()["prefill_chunk"]
    whole = decode(core, ids, 1)[-1]
    np.testing.assert_array_equal(decode(core, ids, max_batch)[-1], whole)
    for piece in (most, 7, 1):
        np.testing.assert_array_equal(prefill(core, ids, [min(piece, 60 - at) for at in range(0, 60, piece)]), whole)
    if max_batch > 1:
        np.testing.assert_array_equal(prefill(core, ids, [30, 30], slot=7, beside=(3, IDS[::-1])), whole)


@pytest.mark.parametrize("options, error, match", [(dict(invariance="some"), vivace.InvalidArgumentError, "wanted class or strict, got 'some'"),
                                                   (dict(invariance="strict", max_batch=65), vivace.UnsupportedError, "at most 64 sequences share a class, got max_batch 65")])
def test_bad_invariance(options, error, match):
    with pytest.raises(error, match=match):
        load(PATH, **options)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("options", [dict(), dict(temperature=1.1, top_k=30, top_p=0.9, repetition=1.2, seed=5)])
def test_rows_that_join_and_leave(precision, options):
    """Seven requests on three slots, of different lengths, one ended by a stop token: each answers as if alone,
    tokens and log-probabilities bit for bit, however far the device runs ahead."""
    prompts = [IDS[:n] for n in (2, 9, 30, 4, 17, 90, 3)]
    with load(PATH, precision) as model:
        alone = [answers(model, [dict(prompt=p, max_tokens=24 + i)], **options)[0] for i, p in enumerate(prompts)]
    stop = alone[1][0][7]
    cut = alone[1][0].index(stop)
    requests = [dict(prompt=p, max_tokens=24 + i, stop=[stop] if i == 1 else []) for i, p in enumerate(prompts)]
    for ahead in (2, 6):
        with load(PATH, precision, max_batch=3, max_in_flight_steps=ahead) as model:
            got = answers(model, requests, **options)
            assert got[1] == (alone[1][0][:cut], alone[1][1][:cut], "stop")
            assert [got[i] for i in range(7) if i != 1] == [alone[i] for i in range(7) if i != 1]


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_prompt_of_one_row_joins_others(precision):
    """What is left of a prompt is one row, which samples, as a step of answers has them: alone or beside other prompts the same class, and so
    the same bits."""
    with load(PATH, precision, max_batch=4, prefill_chunk=16) as model:
        requests = [dict(prompt=IDS[i:i + n], max_tokens=8) for i, n in enumerate((1, 17, 33, 1, 5, 40, 17))]
        alone = [answers(model, [r])[0] for r in requests]
        together = answers(model, requests)
    assert [together[i] for i in range(len(requests))] == alone


REQUESTS = [(test_model.test_logit_bias_and_mask, 1), (test_model.test_logit_bias_and_mask, 3), (test_model.test_bad_bias_and_mask,), (test_model.test_batch_answers_equal_single_answers,),
            (test_model.test_running_ahead_changes_no_answer, {}), (test_model.test_running_ahead_changes_no_answer, dict(temperature=1.1, top_p=0.9, repetition=1.2, seed=5)),
            (test_model.test_a_stream_that_is_left_while_steps_are_queued,), (test_model.test_seed_decides_the_draw,), (test_model.test_stop_token_ends_the_answer_and_is_not_part_of_it,),
            (test_model.test_context_is_used_to_its_last_position,), (test_model.test_cancel_leaves_the_others_alone,), (test_model.test_bad_prompts,), (test_model.test_use_after_close,)]


@pytest.mark.skipif(DEVICE == "cpu", reason="test_model.py has them")
@pytest.mark.parametrize("at", range(len(REQUESTS)), ids=[f"{f.__name__[5:]}{i}" for i, (f, *_) in enumerate(REQUESTS)])
def test_requests_as_on_the_host(at, monkeypatch):
    """Bias and mask, stop tokens, seeds, the last position of the context, cancelling: the host's tests, in f32."""
    monkeypatch.setattr(test_model, "load_model", lambda path, **options: load(path, **options))
    test, *args = REQUESTS[at]
    test(*args)


@pytest.mark.skipif(DEVICE == "cpu", reason="test_model.py has them")
def test_bad_checkpoints_as_on_the_host(tmp_path, monkeypatch):
    """Rope scaling and quantization schemes nobody knows, sizes that contradict each other, tensors that are missing or NaN."""
    monkeypatch.setattr(test_model, "load_model", lambda path, **options: load(path, **options))
    cases = [(test, case) for test in (test_model.test_bad_configs, test_model.test_bad_configs_of_other_families) for case in test.pytestmark[0].args[1]]
    cases += [(test, ()) for test in (test_model.test_missing_tensor_and_truncated_file, test_model.test_nan_weights_fail_the_request_not_the_process)]
    for at, (test, case) in enumerate(cases):
        test(tmp_path / str(at), *case)


@pytest.mark.parametrize("name", HUB)
def test_every_value_between_ops(name, monkeypatch):
    """In f32, as the host's test; in bf16 no value errs more than twice as much as PyTorch's."""
    monkeypatch.setattr(test_model, "open_core", open_core)
    test_model.test_every_value_between_ops_matches_transformers(name, f32_tolerances(name))
    want = load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    keys, theirs = sorted(k for k in want if k.startswith("values.")), TORCH_BF16_VALUES[name]
    assert len(keys) == len(theirs)
    ids = want["prompt_ids"].tolist()
    values = test_model.observed(open_core(FIXTURES / "tiny" / name, "bf16", max_batch=len(ids)), ids)
    # Where a norm is taken behind its product nobody sees its rows: they are the scaled rows, left two values before, times their factors.
    values += [values[i - 2] * v for i, v in enumerate(values) if i > 1 and v.shape == (len(test_model.ROWS), 1)]
    for key, most in zip(keys, theirs):
        size = np.linalg.norm(want[key])
        errors = [np.linalg.norm(v - want[key]) / size for v in values if v.shape == want[key].shape]
        assert min(errors) <= 2e-4 * most, (key, min(errors), most)


def test_each_row_has_its_own_sampling():
    """Requests of one step that draw in different ways, each as if alone."""
    ways = [dict(), dict(temperature=0.7, seed=3), dict(temperature=1.3, top_k=5, seed=8), dict(temperature=1.0, top_p=0.6, repetition=1.5, seed=2),
            dict(repetition=1.6, presence=1.0), dict(temperature=1.2, min_p=0.2, frequency=0.5, seed=99)]
    requests = [dict(prompt=IDS[i:i + 12], max_tokens=20, **way) for i, way in enumerate(ways)]
    with load(PATH, "bf16") as model:
        alone = [answers(model, [r])[0] for r in requests]
    with load(PATH, "bf16", max_batch=len(ways)) as model:
        together = answers(model, requests)
    assert [together[i] for i in range(len(ways))] == alone


def test_many_steps():
    """Thousands of steps with rows that join and leave: the last answers are the first ones, and this process's
    pool holds what it held. (The chip's free bytes would change with every other process on it.)"""
    count = 3000 if DEVICE == "cpu" else 100_000
    with load(PATH, "bf16", max_batch=8) as model:
        prompts = [dict(prompt=IDS[:3 + 7 * i], max_tokens=20 + 6 * i, temperature=0.8, seed=i) for i in range(9)]
        first, steps, memory = answers(model, prompts), 0, None
        while steps < count:
            assert answers(model, prompts) == first
            steps += prompts[0]["max_tokens"] + prompts[8]["max_tokens"]  # the last one has the first one's slot when that is done
            if DEVICE != "cpu":
                pool = vivace.array.pool_stats(int(DEVICE.partition(":")[2] or 0))
                held = {k: pool[k] for k in ("mapped", "used", "requested")}
                assert held["used"] > 0, "the model's buffers are not of the pool"
                assert memory is None or held == memory
                memory = held


def test_one_request_of_nan_fails_alone(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(PATH, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = np.nan  # untied: no other row's logits see it
    save_file(weights, folder / "model.safetensors")
    ids = [t for t in IDS if t != 7]
    good = dict(prompt=ids[:20], max_tokens=12)
    with load(folder, max_batch=2) as model:
        alone = answers(model, [good])[0]
        got = answers(model, [good, dict(prompt=[5, 7, 9], max_tokens=12), good])
        assert got[0] == got[2] == alone and got[1] == ([], [], "nan_logits")


def test_a_model_that_does_not_fit_says_by_how_much(tmp_path, capsys):
    """Before anything is loaded, and `vivace plan` too."""
    if DEVICE == "cpu":
        pytest.skip("the host overcommits")
    hollow_checkpoint(tmp_path, json.loads((ROOT / "bench/configs/qwen3-8b/config.json").read_text()))
    said = r"the model needs \d+ bytes \(weights \d+, arena \d+\), cuda:0 has \d+ free: \d+ too many"
    with pytest.raises(vivace.OutOfMemoryError, match=said):
        vivace.load_model(tmp_path, device=DEVICE, context=40960, max_batch=128)
    assert cli.main(["plan", "--model", str(tmp_path), "--device", DEVICE, "--context", "40960", "--max-batch", "128"]) == 1
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("precision", ["bf16", "w8a16"])
def test_a_load_takes_little_more_than_it_keeps(tmp_path, precision):
    """Peak of device memory while 220 MB of weights come over: weights, arena, and what is on its way. A matrix that is quantized
    passes a scratch buffer whole, once as it is and once as it becomes; one that is cast or interleaved in blocks, two at a time."""
    if DEVICE == "cpu":
        pytest.skip("tests/test_memory_bound.py holds the host to its bound")
    config = json.loads((ROOT / "bench/configs/qwen3-0.6b/config.json").read_text()) | {"num_hidden_layers": 2, "vocab_size": 65536}
    hollow_checkpoint(tmp_path, config)
    code = ("import json, sys, vivace\n"
            "with vivace.load_model(sys.argv[1], device=sys.argv[2], precision=sys.argv[3], context=1024) as m:\n"
            "    r = m.report()\n"
            "    print(json.dumps([vivace.array.pool_stats(int(sys.argv[2].partition(':')[2] or 0))['peak_used'], r['weight_bytes'], r['arena_bytes']]))")
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path), DEVICE, precision], capture_output=True, text=True, check=True).stdout
    peak, weights, arena = json.loads(said.splitlines()[-1])
    largest = 2 * (65536 if precision != "bf16" else 2 * 3072) * 1024  # in bf16; of bf16's plan only gate and up pass the buffer
    assert weights + arena <= peak <= weights + arena + 2 * largest + (16 << 20)


def test_profile_and_its_trace(tmp_path, capsys):
    """`vivace bench --profile --trace`: every launch of the step with its bytes, time and share of the memory's rate."""
    file = tmp_path / "trace.json"
    assert cli.main(["bench", "--model", str(PATH), "--device", DEVICE, "--position", "40", "--prompt-tokens", "16", "--steps", "20", "--profile", "--trace", str(file), "--json"]) == 0
    profile, told = json.loads(capsys.readouterr().out)["profile"], json.loads(file.read_text())
    events, count = told["traceEvents"], sum(g["launches"] for g in profile["groups"])
    assert len(events) == count >= 2 * 5 and {e["name"] for e in events} == {g["op"] for g in profile["groups"]} and events[-1]["name"] == "advance"
    assert all(e["ph"] == "X" and e["dur"] > 0 and e["args"]["bytes"] > 0 for e in events)
    assert all(a["ts"] + a["dur"] == pytest.approx(b["ts"]) for a, b in zip(events, events[1:]))
    assert all((g["share"] is None) == (DEVICE == "cpu") and (DEVICE == "cpu" or 0 < g["share"] < 1) for g in profile["groups"])
    assert told["otherData"]["step_us"] == profile["step_us"] > 0


def in_bf16(folder, name):
    """A tiny fixture whose tensors are bf16, as those of published hybrids; its weights as f32."""
    shutil.copytree(FIXTURES / "tiny" / name, folder)
    weights = {k: v.astype(ml_dtypes.bfloat16) for k, v in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    return {k: v.astype(np.float32) for k, v in weights.items()}


def side_by_side(core, ids, slots):
    """Logits [slots, len(ids), V] of the same answer in each of these slots, a row of each a step."""
    for slot in slots:
        core.start(slot)
    out = []
    for i, t in enumerate(ids):
        core.step([(t, i, slot, True) for slot in slots])
        out.append(last_logits(core))
    return np.stack(out, 1)


@pytest.mark.parametrize("name", ["qwen35", "qwen35_moe"])
def test_hybrids_of_bf16(tmp_path, name):
    """Rows of answers have the same bits in steps of any size, in any slot, issued or replayed; their error against float64 is within a
    quarter of the host's, in the middle of prompts, of which some lie where a rounding tells. On Hopper the dense one takes its norms,
    whose weights are stored less 1, behind its products."""
    weights, folder = in_bf16(tmp_path / name, name), tmp_path / name
    core, host = (open_core(folder, "bf16", max_batch=33, device=device) for device in (DEVICE, "cpu"))
    whole = decode(core, IDS[:30], 1)
    for slots in ([32], [0, 5], range(7), range(33)):
        np.testing.assert_array_equal(side_by_side(core, IDS[:30], slots), np.broadcast_to(whole, (len(slots), *whole.shape)))
    np.testing.assert_array_equal(side_by_side(open_core(folder, "bf16", max_batch=33, eager=True), IDS[:30], [3, 1])[1], whole)
    reference, errors = Decoder(json.loads((folder / "config.json").read_text()), weights), {"here": [], "host": []}
    for seed in range(5):
        ids = np.random.default_rng(seed).integers(3, 190, 40).tolist()
        want = reference.logits(ids)
        for where, model in (("here", core), ("host", host)):
            errors[where].append(np.linalg.norm(decode(model, ids, 1) - want) / np.linalg.norm(want))
    assert np.median(errors["here"]) <= 1.25 * np.median(errors["host"]), errors


@pytest.mark.skipif(DEVICE == "cpu", reason="of few tokens' products on Hopper")
@pytest.mark.parametrize("name, precision, behind", [("qwen35", "bf16", False), ("in_bf16 qwen35", "bf16", True), ("in_bf16 qwen35", "w8a16", False), ("in_bf16 qwen35_moe", "bf16", False), ("llama_untied", "bf16", True), ("qwen3", "native", True), ("qwen3", "f32", False), ("qwen3", "w8a16", False), ("gemma3", "bf16", False), ("mixtral", "bf16", False),
                                                     ("gpt2", "bf16", False), ("../tiny_gguf/llama_q4_1.gguf", "native", False)])
def test_who_takes_norms_behind_products(name, precision, behind, tmp_path):
    """Dense models of plain 16-bit weights and RMS norms, at any number of rows up to 64: the head's norm alone is left. Where weights
    are stored less 1, these must be 16-bit, too."""
    if vivace.device.info()["arch"] != "sm_90a":
        pytest.skip("a chip that keeps its norms")
    folder = FIXTURES / "tiny" / name
    if name.startswith("in_bf16 "):
        folder = tmp_path / "m"
        in_bf16(folder, name.partition(" ")[2])
    with load(folder, precision, max_batch=70) as model:
        layers = model.report()["layers"]
        for rows, decode in [(1, True), (8, True), (64, True), (70, True), (60, False)]:
            count = Counter()
            for g in model.profile(rows=rows, position=70, decode=decode)["groups"]:
                count[g["op"]] += g["launches"]
            few = behind and rows <= 64 and decode  # a prompt's step has 128 rows or more
            assert (count["rms_gemm"], count["gemm_rms_rows"], count["rms_rows"]) == ((2 * layers, 2 * layers - 1, 1) if few else (0, 0, 0)), (rows, count)


def test_no_such_device():
    with pytest.raises(vivace.Error, match="cuda:99"):
        vivace.load_model(PATH, device="cuda:99")


@pytest.mark.parametrize("options, on_gpu", [({"max_batch": 1}, 1024), ({"max_batch": 2}, 256), ({"max_batch": 1, "context": 700}, 700), ({"max_batch": 1, "context": 40}, 128), ({"max_batch": 1, "prefill_chunk": 16}, 16)])
def test_how_much_of_a_prompt_a_step_takes(options, on_gpu, tmp_path):
    """Left open, prefill_chunk is 128 on the CPU; on a GPU more, as far as there is room, and less where other sequences wait."""
    (tmp_path / "config.json").write_text(json.dumps(json.loads((PATH / "config.json").read_text()) | {"max_position_embeddings": 2048}))
    with vivace.load_model(tmp_path, device=DEVICE, precision="f32", random_weights=True, **{"context": 2048} | options) as model:
        assert model.report()["prefill_chunk"] == (on_gpu if DEVICE != "cpu" else min(128, on_gpu))
