"""The decoder through its Python face, against stored values of independent references (see tests/reference)."""
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from vivace import _core

FIXTURES = Path(__file__).parent / "fixtures"
HUB = sorted(p.parent.name for p in (FIXTURES / "tiny").glob("*/config.json"))
GGUF = sorted(p.stem for p in (FIXTURES / "tiny_gguf").glob("*.gguf"))
# f32 sums over at most 64 terms, two layers deep, on logits up to 32: 2e-6 relative. The stored values
# themselves carry 4e-5 (float32 tables of the reference). Values of the residual stream are up to 84.
TOLERANCE = 1e-4


def load_model(path, **options):
    """On the host, also where there is a GPU: test_model_steps.py is for both."""
    return vivace.load_model(path, **{"device": "cpu", **options})


def open_core(path, precision="f32", kv_dtype="f32", threads=2, context=0, max_batch=1, prefill_chunk=128, eager=False):
    return _core.load_text_model(str(path), device="cpu", precision=precision, kv_dtype=kv_dtype, threads=threads,
                                 context=context, max_batch=max_batch, prefill_chunk=prefill_chunk, eager=eager)


def feed(core, ids, *, prefill_chunk=1 << 30, slot=0):
    """Logits [len(ids), V] of a sequence fed in pieces of `chunk`."""
    core.start(slot)
    parts = []
    for at in range(0, len(ids), prefill_chunk):
        part = ids[at:at + prefill_chunk]
        core.step([(int(t), at + i, slot, True) for i, t in enumerate(part)])
        raw, rows, vocab = core.logits()
        parts.append(np.frombuffer(raw, np.float32).reshape(rows, vocab).copy())
    return np.concatenate(parts)


@pytest.mark.parametrize("name", HUB)
def test_hub_checkpoint_matches_transformers(name):
    want = load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    ids = want["prompt_ids"].tolist()
    got = feed(open_core(FIXTURES / "tiny" / name, max_batch=len(ids)), ids)
    np.testing.assert_allclose(got, want["prompt_logits"], rtol=0, atol=TOLERANCE)
    with load_model(FIXTURES / "tiny" / name, precision="f32", kv_dtype="f32") as model:
        assert model.generate_ids(ids, max_tokens=len(want["greedy_ids"])).tokens == want["greedy_ids"].tolist()


ROWS = [0, 7, 15, 23]  # of the prompt: those whose values are stored


def observed(core, ids):
    """Values [4, width] that the ops of one step over `ids` leave, in order."""
    core.start(0)
    seen = core.observe([(t, i, 0, True) for i, t in enumerate(ids)])
    # A model with recurrent layers takes several rows of a sequence in the prefill class, whose buckets are larger.
    return [np.frombuffer(raw, np.float32).reshape(shape[0], -1)[ROWS] for _, _, raw, shape, _ in seen if shape[0] in (len(ids), 128) and raw]


@pytest.mark.parametrize("name", HUB)
def test_every_value_between_ops_matches_transformers(name, most={}):  # noqa: B006 - read only
    """Whatever entered or left a part of a layer there must come up here, in the same order; `most`: errors that a value may have, where larger than the host's."""
    want = load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    ids = want["prompt_ids"].tolist()
    values = observed(open_core(FIXTURES / "tiny" / name, max_batch=len(ids)), ids)
    names, at = sorted(k for k in want if k.startswith("values.")), 0
    assert len(names) >= 3 * json.loads((FIXTURES / "tiny" / name / "config.json").read_text()).get("num_hidden_layers", 2)
    for key in names:
        best = np.inf
        for i in range(at, len(values)):
            if values[i].shape == want[key].shape:
                error = np.abs(values[i] - want[key]).max()
                best = min(best, error)
                if error < max(TOLERANCE * max(1, np.abs(want[key]).max() / 32), most.get(key, 0)):
                    break
        else:
            pytest.fail(f"{key}: the closest of {len(values) - at} values after the last match is {best} away")
        at = i


def test_observing_refuses_what_a_step_refuses():
    core = open_core(FIXTURES / "tiny" / "llama", max_batch=2)
    with pytest.raises(vivace.LimitExceededError, match="rows"):
        core.observe([])
    with pytest.raises(vivace.InvalidArgumentError, match="token"):
        core.observe([(10**6, 0, 0, True)])
    before = core.step([(5, 0, 0, True)])
    assert core.observe([(5, 0, 1, True)]) and core.step([(5, 0, 0, True)]) == before


@pytest.mark.parametrize("act", ["f32", "q8"])
@pytest.mark.parametrize("name", GGUF)
def test_gguf_matches_the_numpy_reference(name, act):
    want = load_file(FIXTURES / "tiny_gguf" / f"{name}.expected.safetensors")
    path, ids = FIXTURES / "tiny_gguf" / f"{name}.gguf", want["prompt_ids"].tolist()
    got = feed(open_core(path, precision=act, max_batch=len(ids)), ids)
    if act == "f32":
        np.testing.assert_allclose(got, want["f32.prompt_logits"], rtol=0, atol=TOLERANCE)
    else:
        # A value within f32 rounding of a half integer may take the other int8 code here than in the float64
        # reference, which moves that token's whole row of logits by about a code's share (1/127) of their
        # size, 0.1 of 15. Rows where no code flipped agree as in f32.
        error = np.abs(got - want["q8.prompt_logits"]).max(axis=1)
        assert np.mean(error < 10 * TOLERANCE) >= 0.8, error
        assert error.max() < 0.25, error
    with load_model(path, precision=act, kv_dtype="f32") as model:
        greedy = want[f"{act}.greedy_ids"].tolist()
        assert model.generate_ids(ids, max_tokens=len(greedy)).tokens == greedy


PATH = FIXTURES / "tiny_gguf" / "llama_q4_1.gguf"
IDS = list(range(3, 40))


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16"])
def test_bits_do_not_depend_on_how_rows_are_grouped(kv_dtype):
    whole = feed(open_core(PATH, "q8", kv_dtype, max_batch=40), IDS)
    options = [dict(threads=1), dict(eager=True), dict(prefill_chunk=64)]
    for o in options:
        np.testing.assert_array_equal(feed(open_core(PATH, "q8", kv_dtype, max_batch=40, **o), IDS), whole)
    for piece in (1, 5):
        np.testing.assert_array_equal(feed(open_core(PATH, "q8", kv_dtype, max_batch=40), IDS, prefill_chunk=piece), whole)
    # Beside another sequence, in another slot, interleaved row by row.
    core = open_core(PATH, "q8", kv_dtype, max_batch=8)
    core.start(5)
    core.start(2)
    for pos, token in enumerate(IDS):
        core.step([(90 - pos, pos, 2, False), (token, pos, 5, True)])
        raw, _, vocab = core.logits()
        np.testing.assert_array_equal(np.frombuffer(raw, np.float32), whole[pos, :vocab])


@pytest.mark.parametrize("name", ["gemma3", "gemma3_params", "gpt2", "mixtral", "qwen3_moe"])
def test_bits_of_every_kind_of_layer_do_not_depend_on_grouping(name):
    """Windows, experts, learned positions: a row alone, in pieces and beside another sequence."""
    path = FIXTURES / "tiny" / name
    whole = feed(open_core(path, kv_dtype="f16", max_batch=40), IDS)
    for o, piece in ((dict(threads=1), 1 << 30), (dict(eager=True), 7), (dict(), 1)):
        np.testing.assert_array_equal(feed(open_core(path, kv_dtype="f16", max_batch=40, **o), IDS, prefill_chunk=piece), whole)
    core = open_core(path, kv_dtype="f16", max_batch=4)
    core.start(0)
    core.start(3)
    for pos, token in enumerate(IDS):
        core.step([(90 - pos, pos, 0, False), (token, pos, 3, True)])
        raw, _, vocab = core.logits()
        np.testing.assert_array_equal(np.frombuffer(raw, np.float32), whole[pos, :vocab])


def test_batch_answers_equal_single_answers():
    prompts = [IDS[:n] for n in (1, 9, 30, 4, 17)]
    options = dict(max_tokens=20, temperature=0.9, top_p=0.95, seed=11, repetition_penalty=1.1)
    with load_model(PATH, max_batch=3, prefill_chunk=16) as model:
        batcher = _core.Batcher(model._core)
        got = {}
        ids = [batcher.submit(prompt=p, stop=[], temperature=0.9, top_k=0, top_p=0.95, min_p=0.0, repetition=1.1, presence=0.0,
                              frequency=0.0, seed=11, max_tokens=20) for p in prompts]
        while not batcher.idle():
            for request, token, _, _ in batcher.step():
                got.setdefault(request, []).append(token)
    with load_model(PATH) as model:
        for request, prompt in zip(ids, prompts):
            alone = model.generate_ids(prompt, **options)
            assert alone.tokens == got[request] and alone.finish == "length"


def answers(model, requests, **options):
    """{request: (tokens, logprobs, finish)} of requests that one batcher serves."""
    batcher, got = _core.Batcher(model._core), {}
    defaults = dict(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, presence=0.0, frequency=0.0, seed=0, stop=[])
    for r in requests:
        batcher.submit(**{**defaults, **options, **r})
    while not batcher.idle():
        for request, token, logprob, finish in batcher.step():
            assert 0 <= request < len(requests) and got.get(request, (0, 0, None))[2] is None, "of nobody, or of one that has ended"
            tokens, logprobs, _ = got.get(request, ([], [], None))
            got[request] = (tokens + [token] * (token is not None), logprobs + [logprob] * (token is not None), finish)
    return got


@pytest.mark.parametrize("options", [dict(), dict(temperature=1.1, top_p=0.9, repetition=1.2, seed=5)])
def test_running_ahead_changes_no_answer(options):
    """Steps queued before the draws are known: the same tokens and log-probabilities, also where requests end
    at a stop token, join late or are of different lengths, and where a prompt takes many steps."""
    with load_model(PATH, max_batch=3, prefill_chunk=16) as model:
        prompts = [(3 * IDS)[:n] for n in (100, 9, 30, 4, 17, 1)]
        plain = answers(model, [dict(prompt=p, max_tokens=24 + 3 * i) for i, p in enumerate(prompts)], **options)
        stop = plain[1][0][7]  # in the midst of an answer
        requests = [dict(prompt=p, max_tokens=24 + 3 * i, stop=[stop] if i == 1 else []) for i, p in enumerate(prompts)]
        want = answers(model, requests, **options)
        assert want[1][2] == "stop" and want[0] == plain[0]
    for ahead in (2, 5):
        with load_model(PATH, max_batch=3, prefill_chunk=16, max_in_flight_steps=ahead) as model:
            assert answers(model, requests, **options) == want
            assert answers(model, requests, **options) == want  # nothing was left behind


def test_a_stream_that_is_left_while_steps_are_queued():
    with load_model(PATH, max_in_flight_steps=4) as model:
        whole = model.generate_ids(IDS, max_tokens=12)
        stream = model._stream(IDS, None, max_tokens=12)
        for _ in range(3):
            next(stream)
        stream.close()
        assert model.generate_ids(IDS, max_tokens=12).tokens == whole.tokens


# Roundings of two to four layers on logits of some units: by 2^-9 of bf16 (weights, activations, cache), by 2^-4 of
# e4m3 (weights; activations too), by 2^-2 of FP4, as norms over all rows. What they are on these fixtures, with half as much again.
DEEPER = 2.5  # four layers, and a state that keeps what was rounded: so much more PyTorch's bf16 errs (TORCH_BF16 of test_model_steps.py)
PLANS = {"bf16": 0.04, "native": 0.04, "w8a16": 0.25, "fp8": 0.4, "w4a16": 0.75}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", HUB)
def test_narrower_plans_are_near_f32(name, plan):
    want = load_file(FIXTURES / "tiny" / name / "expected.safetensors")
    ids = want["prompt_ids"].tolist()
    got = feed(open_core(FIXTURES / "tiny" / name, plan, "auto", max_batch=len(ids)), ids)
    error = np.linalg.norm(got - want["prompt_logits"]) / np.linalg.norm(want["prompt_logits"])
    print(f"{name} {plan}: {error:.4f}")
    assert 1e-5 < error < (DEEPER if name.startswith("qwen35") else 1) * PLANS[plan], error


@pytest.mark.parametrize("ahead", [1, 3])
def test_logit_bias_and_mask(ahead):
    vocab = 192
    with load_model(PATH, max_batch=2, max_in_flight_steps=ahead, logit_bias=True) as model:
        plain = model.generate_ids(IDS, max_tokens=10)
        with load_model(PATH) as other:
            assert other.generate_ids(IDS, max_tokens=10).tokens == plain.tokens  # no bias: the same answer
        pushed = model.generate_ids(IDS, max_tokens=10, logit_bias={17: 1000.0})
        assert pushed.tokens == [17] * 10
        banned = model.generate_ids(IDS, max_tokens=10, logit_bias={plain.tokens[0]: float("-inf")})
        assert plain.tokens[0] not in banned.tokens and banned.tokens != plain.tokens
        assert model.generate_ids(IDS, max_tokens=10).tokens == plain.tokens  # the next sequence of the slot has none
        seen = []

        def odd_then_even(tokens):
            seen.append(list(tokens))
            return [t % 2 == (1 if len(tokens) % 2 == 0 else 0) for t in range(vocab)]

        masked = model.generate_ids(IDS, max_tokens=10, mask=odd_then_even, temperature=1.0, seed=3)
        assert [t % 2 for t in masked.tokens] == [1, 0] * 5
        assert seen == [masked.tokens[:n] for n in range(10)]
        assert model.generate_ids(IDS, max_tokens=6, mask=lambda tokens: None).tokens == plain.tokens[:6]


class Unreadable:
    """A value of the caller's that breaks when it is looked at."""

    def __repr__(self):
        raise RuntimeError("no")

    __len__ = __bool__ = __repr__


def test_bad_bias_and_mask():
    with load_model(PATH, logit_bias=True) as model:
        for options, match in [(dict(logit_bias={500: 1.0}), "token 500 is outside"), (dict(logit_bias={5: float("nan")}), "finite value or -inf"),
                               (dict(mask=lambda tokens: [True]), "wanted 192 booleans, one a token, got 1"), (dict(mask=lambda tokens: 5), "192 booleans, one a token, got 5"),
                               (dict(mask=lambda tokens: "x" * 192), "booleans, one a token, got 'xx"), (dict(mask=lambda tokens: dict.fromkeys(range(192))), "booleans"),
                               (dict(mask=lambda tokens: iter([True] * 192)), "got list_iterator"), (dict(mask=lambda tokens: np.ones((192, 2))), r"got ndarray \(192, 2\)"),
                               (dict(mask=lambda tokens: [Unreadable()] * 192), "booleans"), (dict(draft=Unreadable()), "draft: wanted 'lookup', 'off' or a smaller model, got Unreadable")]:
            with pytest.raises(vivace.InvalidArgumentError, match=match):
                model.generate_ids(IDS, max_tokens=2, **options)
        core = _core.Batcher(model._core)
        one = dict(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, presence=0.0, frequency=0.0, seed=0, stop=[], max_tokens=4)
        with pytest.raises(vivace.InvalidShapeError, match="192 tokens, got 3"):
            core.submit(prompt=IDS, **one, bias=bytes(12))
        request = core.submit(prompt=IDS, **one)
        with pytest.raises(vivace.NotFoundError, match="not running"):
            core.set_bias(request, bytes(4 * 192))
        core.step()
        with pytest.raises(vivace.FailedPreconditionError, match="not stepwise"):
            core.set_bias(request, bytes(4 * 192))
    with load_model(PATH) as model, pytest.raises(vivace.FailedPreconditionError, match="logit_bias"):
        model.generate_ids(IDS, max_tokens=2, logit_bias={3: 1.0})


def test_stop_text_ends_the_answer_before_it():
    from vivace.answers import StreamEvent, StopText

    def told(texts, *stops):
        out, until = [], StopText(stops)
        for i, t in enumerate(texts):
            if not until.met:
                out += until.take(StreamEvent(t, i, 0.0, "length" if i == len(texts) - 1 else None))
        return "".join(c.text for c in out), [c.token for c in out if c.token is not None], out[-1].finish

    assert told(["ab", "cd", "ef"], "xy") == ("abcdef", [0, 1, 2], "length")
    assert told(["ab", "cd", "ef"], "de") == ("abc", [0, 1], "stop")
    assert told(["a", "", "b", "ab", "c"], "abc", "bab") == ("a", [0], "stop")
    assert told(["ab", "ab", "ac"], "abac") == ("ab", [0], "stop")
    assert told(["ab"], "ab") == ("", [], "stop")
    assert told(["end of it"], "of") == ("end ", [0], "stop")
    until = StopText(["stop"])
    assert [c.text for c in until.take(StreamEvent("begin ", 0, 0.0)) + until.take(StreamEvent("sto", 1, 0.0))] == ["begin "]  # what cannot begin a stop string is not held back
    with load_model(PATH) as model, pytest.raises(vivace.InvalidArgumentError, match="stop_text"):
        model.generate_ids(IDS, max_tokens=2, stop_text="x")


def test_random_weights_need_only_a_config(tmp_path):
    shutil.copy(FIXTURES / "tiny" / "qwen3" / "config.json", tmp_path)
    for precision in ("bf16", "f32"):
        with load_model(tmp_path, precision=precision, random_weights=True, max_batch=2) as model:
            tokens = model.generate_ids([5, 6, 7], max_tokens=8).tokens
            assert len(tokens) == 8 and all(0 <= t < model.report()["vocab"] for t in tokens)
    with pytest.raises(vivace.NotFoundError):
        load_model(tmp_path)


def test_seed_decides_the_draw():
    with load_model(PATH) as model:
        draw = lambda seed: model.generate_ids(IDS, max_tokens=24, temperature=1.5, seed=seed).tokens
        assert draw(1) == draw(1)
        assert draw(1) != draw(2)


def test_stop_token_ends_the_answer_and_is_not_part_of_it():
    with load_model(PATH) as model:
        full = model.generate_ids(IDS, max_tokens=12).tokens
        stop = full[5]
        answer = model.generate_ids(IDS, max_tokens=12, stop=[stop])
        assert answer.tokens == full[:full.index(stop)] and answer.finish == "stop"


def test_context_is_used_to_its_last_position():
    with load_model(PATH, context=40) as model:
        answer = model.generate_ids(IDS, max_tokens=4)  # 37 + 4 - 1 positions
        assert len(answer.tokens) == 4
        with pytest.raises(vivace.LimitExceededError, match="41 positions, the context holds 40"):
            model.generate_ids(IDS, max_tokens=5)
        assert model.generate_ids(IDS, max_tokens=4).tokens == answer.tokens  # the refusal harmed nothing


def test_cancel_leaves_the_others_alone():
    with load_model(PATH, max_batch=2) as model:
        alone = model.generate_ids(IDS, max_tokens=16).tokens
        batcher = _core.Batcher(model._core)
        submit = lambda p: batcher.submit(prompt=p, stop=[], temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0,
                                          presence=0.0, frequency=0.0, seed=0, max_tokens=16)
        keep, drop, waiting = submit(IDS), submit(IDS[:5]), submit(IDS[:7])
        batcher.step()
        batcher.cancel(drop)
        batcher.cancel(waiting)
        tokens, ends = [], {}
        while not batcher.idle():
            for request, token, _, finish in batcher.step():
                if request == keep and token is not None:
                    tokens.append(token)
                if finish:
                    ends[request] = finish
        assert ends == {keep: "length", drop: "cancelled", waiting: "cancelled"}
        assert tokens == alone[1:]
        with pytest.raises(vivace.NotFoundError, match="not running"):
            batcher.cancel(keep)


@pytest.mark.parametrize("name,precision,inner,embedding,head,activations,scale", [
    ("llama_untied", "f32", "f32", "f32", "f32", "f32", None), ("qwen3", "bf16", "bf16", "bf16", "bf16", "bf16", None), ("gemma3", "w8a16", "e4m3", "bf16", "e4m3", "bf16", None),
    ("gpt2", "fp8", "e4m3", "bf16", "e4m3", "bf16", "by token"), ("llama_untied", "int4", "q4_0", "bf16", "q8_0", "bf16", None), ("mixtral", "w4a16", "e2m1", "bf16", "e4m3", "bf16", None),
    ("../tiny_gguf/llama_q4_1.gguf", "native", "q4_1", "q8_0", "q8_0", "bf16", None)])
def test_report_names_each_parts_form(name, precision, inner, embedding, head, activations, scale):
    """What docs/models/gpu.md promises of the plans, read from what was loaded."""
    with load_model(FIXTURES / "tiny" / name, precision=precision) as model:
        report = model.report()
    experts = name == "mixtral"
    layers = {"qkv": inner, "o": inner, "router": report["forms"]["layers"].get("router"), "gate_up": "bf16" if experts else inner, "down": "bf16" if experts else inner}
    if not experts:
        del layers["router"]
    assert report["forms"] == {"embedding": embedding, "layers": layers, "head": head}
    assert (report["activations"], report["activations_to_e4m3"]) == (activations, scale)


def test_report_and_memory_are_exact():
    with load_model(PATH, device="cpu", context=64, max_batch=3, kv_dtype="f32") as model:
        report, memory = model.report(), dict(model.memory())
        assert (report["family"], report["precision"], report["kv_dtype"], report["context"]) == ("llama", "q8", "f32", 64)
        assert memory["k_cache.0"] == 3 * 64 * report["kv_heads"] * report["head_dim"] * 4
        assert memory["logits"] == 3 * report["vocab"] * 4
        assert memory["weights (mapped)"] == PATH.stat().st_size


# ---- bad input -----------------------------------------------------------------------------------

@pytest.mark.parametrize("options,error,match", [
    (dict(precision="int3"), vivace.InvalidArgumentError, "precision: wanted auto, q8, f32, bf16, native, w8a16, w4a16, int4, fp8, fp8_static, got 'int3'"),
    (dict(kv_dtype="f64"), vivace.InvalidArgumentError, "kv_dtype"),
    (dict(device="tpu"), vivace.InvalidArgumentError, "device: wanted auto, cpu, cuda or cuda:N, got 'tpu'"),
    (dict(device="cuda:x"), vivace.InvalidArgumentError, "device: wanted"),
    (dict(device="cudax"), vivace.InvalidArgumentError, "device: wanted"),
    (dict(max_in_flight_steps=-1), vivace.InvalidArgumentError, "max_in_flight_steps"),
    (dict(context=1 << 20), vivace.LimitExceededError, "trained for"),
    (dict(max_batch=0), vivace.InvalidArgumentError, "max_batch"),
    (dict(prefill_chunk=-1), vivace.InvalidArgumentError, "prefill_chunk"),
    (dict(threads=-3), vivace.InvalidArgumentError, "threads"),
    (dict(partition=0.5), vivace.UnsupportedError, "partition"),
])
def test_bad_load_options(options, error, match):
    with pytest.raises(error, match=match):
        load_model(PATH, **options)


@pytest.mark.parametrize("options,match", [
    (dict(temperature=-1), "temperature"), (dict(temperature=float("nan")), "temperature"), (dict(top_p=0), "top_p"),
    (dict(top_p=1.5), "top_p"), (dict(min_p=-0.1), "min_p"), (dict(top_k=-1), "top_k"), (dict(repetition_penalty=0), "repetition"),
    (dict(max_tokens=0), "max_tokens"), (dict(seed=-1), "seed: wanted a whole number from 0 to 9223372036854775807, got -1"),
    # What came is told from what is wanted.
    (dict(top_p=1.0000001), r"top_p: wanted a value in \(0, 1\], got 1.0000001"), (dict(presence_penalty=1e30), r"presence_penalty: wanted a value in \[-1e6, 1e6\], got 1e\+30"),
    (dict(frequency_penalty=-1e30), r"frequency_penalty: wanted a value in \[-1e6, 1e6\], got -1e\+30"),
])
def test_bad_sampling_options(options, match):
    with load_model(PATH) as model:
        with pytest.raises(vivace.InvalidArgumentError, match=match):
            model.generate_ids(IDS, **{"max_tokens": 2, **options})
        assert len(model.generate_ids(IDS, max_tokens=2).tokens) == 2


def test_bad_prompts():
    with load_model(PATH) as model:
        for ids, match in [([], "empty"), ([5, 100000], "token 100000 is outside"), ([-1], "token -1")]:
            with pytest.raises(vivace.InvalidArgumentError, match=match):
                model.generate_ids(ids, max_tokens=2)


def test_use_after_close():
    model = load_model(PATH)
    stream = model._stream(IDS, None, max_tokens=8)
    next(stream)
    model.close()
    model.close()
    with pytest.raises(vivace.ClosedError, match="closed"):
        model.generate_ids(IDS, max_tokens=2)
    with pytest.raises(vivace.ClosedError, match="closed"):
        next(stream)


def test_no_such_model():
    with pytest.raises(vivace.NotFoundError, match="no-such-model"):
        load_model("no-such-model")


def hub_copy(tmp_path, name="llama", **changes):
    shutil.copytree(FIXTURES / "tiny" / name, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config.update(changes)
    (tmp_path / "m" / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    return tmp_path / "m"


@pytest.mark.parametrize("changes,error,match", [
    (dict(architectures=["MambaForCausalLM"]), vivace.UnsupportedError, "MambaForCausalLM.*serves llama"),
    (dict(architectures="LlamaForCausalLM"), vivace.CorruptDataError, "architectures"),
    (dict(hidden_size=...), vivace.NotFoundError, "hidden_size"),
    (dict(hidden_size="64"), vivace.CorruptDataError, "hidden_size"),
    (dict(hidden_size=128), vivace.InvalidShapeError, r"embed_tokens.weight: wanted \[192, 128\], got \[192, 64\]"),
    (dict(num_hidden_layers=3), vivace.NotFoundError, "model.layers.2"),
    (dict(num_hidden_layers=10**9), vivace.InvalidArgumentError, "layers"),
    (dict(num_key_value_heads=3), vivace.InvalidArgumentError, "4 heads are no multiple of 3"),
    (dict(rope_scaling={"rope_type": "warp", "factor": 2}), vivace.UnsupportedError, "rope_type.*warp"),
    (dict(hidden_act="tanh"), vivace.UnsupportedError, "hidden_act"),
    (dict(attention_bias=True), vivace.UnsupportedError, "attention_bias"),
    (dict(quantization_config={"bits": 4}), vivace.UnsupportedError, "quantization_config"),
    (dict(quantization_config={"quant_method": "fp8", "weight_block_size": [64, 128]}), vivace.UnsupportedError, r"weight_block_size \[128, 128\]"),
    (dict(sliding_window=64), vivace.UnsupportedError, "sliding_window"),
])
def test_bad_configs(tmp_path, changes, error, match):
    with pytest.raises(error, match=match):
        load_model(hub_copy(tmp_path, **changes))


@pytest.mark.parametrize("name,changes,error,match", [
    ("gemma3", dict(hidden_activation="silu"), vivace.UnsupportedError, "hidden_activation: wanted gelu_pytorch_tanh"),
    ("gemma3", dict(final_logit_softcapping=30.0), vivace.UnsupportedError, "final_logit_softcapping"),
    ("gemma3", dict(use_bidirectional_attention=True), vivace.UnsupportedError, "use_bidirectional_attention"),
    ("gemma3", dict(sliding_window=0), vivace.InvalidArgumentError, "sliding window"),
    ("gemma3", dict(sliding_window_pattern=0), vivace.InvalidArgumentError, "sliding_window_pattern"),
    ("gemma3", dict(query_pre_attn_scalar=1e-300), vivace.InvalidArgumentError, "attention scale"),
    ("gemma3_params", dict(layer_types=["full_attention"]), vivace.InvalidShapeError, "layer_types.*3 layers"),
    ("gemma3_params", dict(layer_types=["linear_attention"] * 3), vivace.UnsupportedError, "layer_types"),
    ("gemma3_params", dict(num_hidden_layers=10**15), vivace.InvalidArgumentError, "layers"),
    ("qwen3_moe", dict(num_experts=7), vivace.InvalidShapeError, r"mlp.gate.weight: wanted \[7, 32\]"),
    ("qwen3_moe", dict(num_experts_per_tok=7), vivace.InvalidArgumentError, "experts of a token"),
    ("qwen3_moe", dict(decoder_sparse_step=2), vivace.UnsupportedError, "decoder_sparse_step"),
    ("qwen3_moe", dict(mlp_only_layers=[0]), vivace.UnsupportedError, "mlp_only_layers"),
    ("mixtral", dict(num_local_experts=0), vivace.InvalidArgumentError, "experts"),
    ("mixtral", dict(num_local_experts=10**18), vivace.InvalidArgumentError, "experts"),
    ("mixtral", dict(sliding_window=16), vivace.UnsupportedError, "sliding_window"),
    ("gpt2", dict(n_embd=10**18), vivace.InvalidArgumentError, "hidden size"),
    ("gpt2", dict(n_head=5), vivace.InvalidArgumentError, "fused qkv"),
    ("gpt2", dict(scale_attn_weights=False), vivace.UnsupportedError, "scale_attn_weights"),
    ("gpt2", dict(activation_function="relu"), vivace.UnsupportedError, "activation_function"),
])
def test_bad_configs_of_other_families(tmp_path, name, changes, error, match):
    with pytest.raises(error, match=match):
        load_model(hub_copy(tmp_path, name, **changes))


def test_missing_tensor_and_truncated_file(tmp_path):
    folder = hub_copy(tmp_path)
    weights = load_file(folder / "model.safetensors")
    lost = weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(vivace.NotFoundError, match="model.layers.1.mlp.up_proj.weight is missing"):
        load_model(folder)
    weights["model.layers.1.mlp.up_proj.weight"] = lost
    save_file(weights, folder / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(vivace.CorruptDataError, match="model.safetensors"):
        load_model(folder)


def test_nan_weights_fail_the_request_not_the_process(tmp_path):
    folder = hub_copy(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = np.full_like(weights["model.norm.weight"], np.nan)
    save_file(weights, folder / "model.safetensors")
    with load_model(folder) as model:
        for _ in range(2):
            with pytest.raises(vivace.Error, match="NaN"):
                model.generate_ids(IDS, max_tokens=4)
