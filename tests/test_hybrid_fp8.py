"""Hybrids and experts in `fp8` and `fp8_static`: held to the reference with the same roundings, cut anywhere, with guesses. On the host or
(`pytest --device cuda`) on a GPU."""
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.reference.decoder_numpy import Decoder
from tests.random_models.text_checks import Eights
from tests.reference.policy_numpy import Rounded
from tests.test_hybrid import LONG, NAMES, TINY, drawn, every, feed, last, load, same
from tests.test_model_steps import DEVICE
from tests.test_mtp import OPTIONS, with_drafts

# Times what float64 makes of roundings with a scale a row, as in random_models; seen to 1.10. A scale a place fits no single row and errs
# by half more at most, as in test_calibrate.py; seen to 1.37.
NARROW = {"fp8": 1.3, "fp8_static": 1.5}
PLANS = ("fp8", "fp8_static")


def eights(name, plan, ids, **options):
    options |= {"kv_dtype": "auto"}
    scales = load(TINY / name, precision="bf16", **options).calibrate([ids], 100.0) if plan == "fp8_static" else []
    return load(TINY / name, precision=plan, act_scales=scales, **options)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", (*NAMES, "qwen3_moe", "mixtral"))
def test_err_as_the_reference_with_the_same_roundings(name, plan):
    """All rows together; where a rounding chooses another expert it does so in both about as often."""
    ids = drawn(120)
    config, weights = json.loads((TINY / name / "config.json").read_text()), load_file(TINY / name / "model.safetensors")
    want, rounded = (Decoder(config, weights, a).logits(ids) for a in (None, Rounded(eight=True)))
    core = eights(name, plan, ids, max_batch=120, context=128)
    core.start(0)
    core.step([(t, i, 0, True) for i, t in enumerate(ids)])
    got = last(core)
    ratio = np.linalg.norm(got - want) / np.linalg.norm(rounded - want)
    print(f"{name} {plan}: {ratio:.3f}")
    assert 0.5 < ratio < NARROW[plan]


@pytest.mark.parametrize("plan", (*PLANS, "w8a16"))
def test_a_shared_expert_as_wide_is_e4m3_too(tmp_path, plan):
    """It is the last of the experts, with a scale a row as they have; of 16 bits beside them it is wrong by what its codes err."""
    config, weights = json.loads((TINY / "qwen35_moe" / "config.json").read_text()), load_file(TINY / "qwen35_moe" / "model.safetensors")
    width, ids = config["moe_intermediate_size"], drawn(120)
    for key in [k for k in weights if ".shared_expert." in k]:
        weights[key] = np.ascontiguousarray(np.take(weights[key], range(width), 1 if "down_proj" in key else 0))
    config["shared_expert_intermediate_size"] = width
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(weights, tmp_path / "model.safetensors")
    arithmetic = Eights(eight=True) if plan == "w8a16" else Rounded(eight=True)
    want, rounded = (Decoder(config, weights, a).logits(ids) for a in (None, arithmetic))
    core = eights(tmp_path, plan, ids, max_batch=120, context=128)
    core.start(0)
    core.step([(t, i, 0, True) for i, t in enumerate(ids)])
    got = last(core)
    ratio = np.linalg.norm(got - want) / np.linalg.norm(rounded - want)
    print(f"{plan}: {ratio:.3f}")
    assert 0.5 < ratio < NARROW.get(plan, NARROW["fp8"])
    core.start(0)
    routed = {shape[-1] for op, port, _, shape, _ in core.observe([(t, i, 0, i == 4) for i, t in enumerate(ids[:5])]) if (op, port) == ("moe_route", "weights")}
    assert routed == {config["num_experts_per_tok"] + 1}
    forms = json.loads(dict(core.report())["forms"])["layers"]
    assert forms["gate_up"] == forms["down"] == "e4m3" and "shared_expert" not in forms


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_cut_anywhere(name, plan):
    ids = drawn(LONG)
    core = eights(name, plan, ids)
    want = feed(core, ids, every(64))
    exact = feed(load(TINY / name, precision="f32"), ids, every(64))[-1]
    # Two classes add in another order, so a value that lies between two codes may take either: far fewer than all that are rounded.
    some = 0.1 * np.linalg.norm(want[-1] - exact) / np.linalg.norm(exact)
    for n in (1, 63, 64, 65):
        same(feed(core, ids, every(n), slot=2)[-1], want[-1], n > 1, some)
    same(feed(eights(name, plan, ids, eager=True), ids, every(64)), want, True)


@pytest.mark.parametrize("name", NAMES)
def test_scales_are_magnitudes_over_the_largest_code(name):
    """Places in the order of the step, checked against what observe() shows: heads behind their gate, no rows inside experts."""
    core, ids = load(TINY / name, precision="bf16", kv_dtype="auto"), drawn(20)
    core.start(0)
    seen = [(op, np.frombuffer(raw, np.float32).reshape(shape)) for op, port, raw, shape, _ in core.observe([(t, i, 0, i == 19) for i, t in enumerate(ids)])
            if port == "out" and op in ("norm", "gate_heads", "gated_gemm")]
    layers = int(dict(core.report())["layers"])
    assert [op for op, _ in seen] == ["norm", "gate_heads", "norm", "gate_heads" if "moe" in name else "gated_gemm"] * layers + ["norm"]
    want = [np.abs(v[:20] if i < 4 * layers else v[:1]).max() / np.float32(448) for i, (_, v) in enumerate(seen)]
    if "moe" in name:
        want[3::4] = [np.float32(1)] * layers
    np.testing.assert_array_equal(np.float32(core.calibrate([ids], 100.0)), np.float32(want))


@pytest.mark.parametrize("name", NAMES)
def test_report_says_what_stays_16_bit(tmp_path, name):
    with vivace.load_model(with_drafts(tmp_path / name, name), device=DEVICE, precision="fp8", mtp=1, max_batch=4) as model:
        report = model.report()
    eight, half = {"qkv", "o", "gate_up", "down"}, {"decay", "convolution"}
    if "moe" in name:  # whose shared expert is wider than the others
        half |= {"router", "shared_expert"}
    assert report["forms"] == {"embedding": "bf16", "layers": {k: "e4m3" if k in eight else "bf16" for k in report["forms"]["layers"]}, "draft_layer": "bf16", "head": "e4m3"}
    assert set(report["forms"]["layers"]) == eight | half and report["activations_to_e4m3"] == "by token"


@pytest.mark.parametrize("config", [{}, {"mtp_hidden_state": "before_norm"}], ids=str)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", NAMES)
def test_guesses_change_no_token(tmp_path, name, plan, config):
    folder = with_drafts(tmp_path / name, name, **config)
    options = OPTIONS | {"precision": plan, "kv_dtype": "auto"} | ({"calibration": [drawn(64)]} if plan == "fp8_static" else {})
    prompts = [(drawn(n, n), dict(max_tokens=40, temperature=t, seed=n)) for n, t in ((1, 0.0), (30, 0.8), (65, 0.0))]
    with vivace.load_model(folder, **options) as plain, vivace.load_model(folder, mtp=3, **options) as model:
        for ids, how in prompts:
            want, got = plain.generate_ids(ids, **how), model.generate_ids(ids, **how)
            assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs)
        guesses = model.report()["guesses"]
    assert 0 < guesses["right"] < guesses["checked"], guesses
