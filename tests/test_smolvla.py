"""SmolVLA against what transformers' parts compute from the same random weights (tests/fixtures/vla/smolvla_tiny, by
tests/reference/make_tiny_smolvla.py); with `--device cuda` on a GPU."""
import json
import os
import shutil
from pathlib import Path

import ml_dtypes  # noqa: F401  bf16 by name, for safetensors
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.packed import packed_tensors
from tests.policy_bits import captured_is_eager, tenant_is_alone

FIXTURE = Path(__file__).parent / "fixtures" / "vla" / "smolvla_tiny"
DEVICE = os.environ.get("VIVACE_TEST_DEVICE", "cpu")
DEVICE = DEVICE if DEVICE.startswith("cuda") else "cpu"
EXPECTED = packed_tensors(FIXTURE / "expected.safetensors")
F32, BF16 = 2e-4, 0.9995
HORIZON, ACTION, LAYERS = 9, 7, 4


def load(path=FIXTURE, **options):
    return vivace.load_model(path, **{"statistics": "none", "precision": "f32", "device": DEVICE, "threads": 2 * (DEVICE == "cpu"), **options})


def observation(case):
    of = lambda name: EXPECTED[f"{case}.{name}"]  # noqa: E731
    return dict(images=[EXPECTED.get(f"{case}.image.{k}") for k in range(2)], prompt=of("ids"), state=of("state"), noise=of("noise"))


def cosine(a, b):
    return float(np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def model():
    with load() as m:
        yield m


@pytest.mark.parametrize("case", "abc")
def test_every_stage_matches_the_reference(model, case):
    given = observation(case)
    seen = {(name, step): v for name, step, v in model.observe(**given)}
    tokens = EXPECTED[f"{case}.image_tokens"]
    np.testing.assert_allclose(seen["image_tokens", -1][:len(tokens)], tokens, rtol=0, atol=F32)
    for name, of in (("k_cache", "k"), ("v_cache", "v")):
        for i in range(LAYERS):
            want = EXPECTED[f"{case}.{of}.{i}"]
            np.testing.assert_allclose(seen[name, i].reshape(-1, *want.shape[1:])[:len(want)], want, rtol=0, atol=F32, err_msg=f"{name} {i}")
    for step, want in enumerate(EXPECTED[f"{case}.x"]):
        np.testing.assert_allclose(seen["x", step + 1], want, rtol=0, atol=F32, err_msg=f"step {step}")
    np.testing.assert_allclose(model.predict(**given), EXPECTED[f"{case}.x"][-1], rtol=0, atol=F32)


@pytest.mark.parametrize("case", "abc")
def test_bf16(case):
    with load(precision="bf16") as model:
        given = observation(case)
        assert cosine(model.predict(**given) - given["noise"], EXPECTED[f"{case}.x"][-1] - given["noise"]) >= BF16
        assert model.report()["activations"] == "bf16"


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_batches_have_the_bits_of_each_alone(precision):
    cases = [observation(c) for c in "abc"]
    with load(precision=precision, batch=3) as many:
        alone = [many.predict(**o) for o in cases]
        for order in ([0, 1, 2], [2, 0], [1, 2, 0], [1]):
            got = many.predict_batch([cases[i] for i in order])
            assert all(np.array_equal(g, alone[i]) for g, i in zip(got, order))
    with load(precision=precision) as one:
        for o, want in zip(cases, alone):
            np.testing.assert_allclose(one.predict(**o), want, rtol=0, atol=1e-4 if precision == "f32" else 0.1)


def test_captured_is_eager():
    captured_is_eager(FIXTURE, map(observation, "ab"), DEVICE, num_views=2)


@pytest.mark.skipif(DEVICE != "cpu", reason="the scheduler of the CPU")
def test_as_a_tenant_of_a_scheduler(model):
    """Its calls are timed at load, with a state of the network's width, which is not the actions'."""
    tenant_is_alone(FIXTURE, model, observation("a"))


def words(folder):
    """A tokenizer of three words, as a file beside which nothing else is."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"pick": 7, "it": 9, "\n": 3, "?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("\n", "isolated")])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_what_the_answer_depends_on(model):
    """All of it, and of nothing of the call before."""
    given = observation("a")
    base = model.predict(**given)
    changed = {"state": given["state"] + np.float32([0, 0.5, 0, 0, 0, 0]), "prompt": given["prompt"][::-1], "images": given["images"][::-1], "noise": -given["noise"]}
    for name, value in changed.items():
        assert np.abs(model.predict(**given | {name: value}) - base).max() > 1e-2, name
    assert np.array_equal(model.predict(**given), base)
    drawn = [model.predict(**{k: v for k, v in given.items() if k != "noise"}, seed=s) for s in (3, 3, 4)]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    off = model.predict(**given | {"images": [given["images"][0], None]})
    assert np.array_equal(model.predict(**given | {"images": [None, given["images"][0]]}), off) and not np.array_equal(off, base)


def test_states_shorter_than_the_network_takes(model):
    given = observation("a")
    short = given | {"state": given["state"][:4]}
    padded = given | {"state": np.concatenate([given["state"][:4], np.zeros(2, np.float32)])}
    assert np.array_equal(model.predict(**short), model.predict(**padded))


def test_frames_of_any_size(model):
    """A frame that is wide is scaled and stands below its padding."""
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (32, 32, 3), np.uint8)
    given = observation("a") | {"images": [image, None]}
    want = model.predict(**given)
    wide = rng.integers(0, 256, (16, 32, 3), np.uint8)
    below = np.concatenate([np.zeros_like(wide), wide])
    assert want.shape == (HORIZON, ACTION)
    assert np.array_equal(model.predict(**given | {"images": [wide, None]}), model.predict(**given | {"images": [below, None]}))


def test_report(model):
    facts = model.report()
    assert (facts["family"], facts["num_views"], facts["action_horizon"], facts["num_steps"], facts["action_dim"], facts["prompt_tokens"]) == ("smolvla", 2, 9, 5, 7, 48)
    assert facts["resize"] == "lerobot" and facts["cameras"] == ["top", "wrist"] and facts["expert"]["width"] == 24
    memory = facts["memory"]
    assert memory["cross_k.1"] == (2 * 4 + 48 + 1 + 9) * 16 * 4 and "cross_k.0" not in memory


def folder(tmp_path, change=None, **config):
    weights = load_file(FIXTURE / "model.safetensors")
    if change is not None:
        change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    facts = json.loads((FIXTURE / "config.json").read_text()) | config
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in facts.items() if v is not None}))
    return tmp_path


def test_found_by_its_tensors_and_other_spellings(tmp_path, model):
    """Names without the leading model., the embedding by the name of the head, no type in config.json."""
    def rename(weights):
        for name in list(weights):
            weights[name.removeprefix("model.").replace("vlm.model.text_model.embed_tokens.weight", "vlm.lm_head.weight")] = weights.pop(name)

    with load(folder(tmp_path, rename, type=None)) as other:
        assert other.report()["family"] == "smolvla"
        assert np.array_equal(other.predict(**observation("b")), model.predict(**observation("b")))


def test_numbers_that_a_config_leaves_out(tmp_path):
    with load(folder(tmp_path, chunk_size=None, num_steps=None), action_horizon=3) as model:
        facts = model.report()
        assert (facts["resize"], facts["num_steps"], facts["action_horizon"]) == ("lerobot", 10, 3)


@pytest.mark.parametrize("every", [1, 3, -1])
def test_other_interleavings_load(tmp_path, every):
    """Which layers cross decides which shapes their matrices have."""
    def change(weights):
        for i in range(LAYERS):
            for n in "kv":
                width = 16 if every < 0 or i % every else 24
                weights[f"model.vlm_with_expert.lm_expert.layers.{i}.self_attn.{n}_proj.weight"] = np.zeros((16, width), np.float32)

    with load(folder(tmp_path, change, self_attn_every_n_layers=every)) as model:
        assert np.isfinite(model.predict(**observation("a"))).all()
        assert sum(name.startswith("cross_k.") for name in model.report()["memory"]) == {1: 0, 3: 2, -1: 4}[every]


def test_statistics_and_named_cameras(tmp_path, model):
    """lerobot's processor files, mean and deviation; cameras by the names of input_features."""
    path = folder(tmp_path)
    rng = np.random.default_rng(5)
    stats = {f"{of}.{part}": rng.uniform(0.5, 2, n).astype(np.float32) for of, n in (("observation.state", 6), ("action", 5)) for part in ("mean", "std")}
    save_file(stats, path / "stats.safetensors")
    for name, step in (("policy_preprocessor", "normalizer_processor"), ("policy_postprocessor", "unnormalizer_processor")):
        (path / f"{name}.json").write_text(json.dumps({"steps": [{"registry_name": step, "state_file": "stats.safetensors", "config": {"norm_map": {"STATE": "MEAN_STD", "ACTION": "MEAN_STD"}}}]}))
    given = observation("a")
    normal = (given["state"] - stats["observation.state.mean"]) / (stats["observation.state.std"] + np.float32(1e-8))
    want = model.predict(**given | {"state": normal})[:, :5] * stats["action.std"] + stats["action.mean"]
    with load(path, statistics="auto") as robot:
        np.testing.assert_allclose(robot.predict(**given), want, rtol=0, atol=1e-4)
        robot.set_prompt(given["prompt"])
        top, wrist = given["images"]
        seen = robot.infer({"observation.images.top": top, "observation.images.wrist": wrist, "observation.state": given["state"]}, noise=given["noise"])
        np.testing.assert_allclose(seen["actions"], want, rtol=0, atol=1e-4)


def test_prompts_as_text(tmp_path, model):
    """The task and a newline, without a beginning token; Python and C++ write the same."""
    given = observation("a")
    want = model.predict(**given | {"prompt": [7, 9, 3]})
    with load(tokenizer=words(tmp_path)) as text:
        for prompt in ("pick it", "pick it\n"):
            assert np.array_equal(text.predict(**given | {"prompt": prompt}), want)


def test_config_alone_with_random_weights(tmp_path):
    shutil.copy(FIXTURE / "config.json", tmp_path)
    with load(tmp_path, random_weights=True, precision="bf16") as model:
        assert model.predict(**observation("c")).shape == (HORIZON, ACTION)


BAD = [
    ({"images": [None, None]}, vivace.InvalidArgumentError, "no camera is on"),
    ({"images": [np.zeros((8, 8, 3), np.uint8)]}, vivace.InvalidArgumentError, "each of 2 cameras, got 1"),
    ({"images": [np.zeros((8, 8, 4), np.uint8), None]}, vivace.InvalidShapeError, "3"),
    ({"prompt": [64]}, vivace.InvalidArgumentError, r"outside the vocabulary \[0, 64\)"),
    ({"prompt": [1] * 49}, vivace.LimitExceededError, "49 tokens, at most 48"),
    ({"prompt": None}, vivace.InvalidArgumentError, "prompt"),
    ({"state": None}, vivace.InvalidArgumentError, "reads the state"),
    ({"state": np.zeros(7, np.float32)}, vivace.InvalidShapeError, "7 values"),
    ({"state": np.full(6, np.nan, np.float32)}, vivace.InvalidArgumentError, "state is not finite"),
    ({"noise": np.zeros((8, 7), np.float32)}, vivace.InvalidShapeError, r"wanted \[9, 7\]"),
    ({"noise": np.full((9, 7), np.inf, np.float32)}, vivace.InvalidArgumentError, "noise is not finite"),
    ({"action_prefix": np.zeros((1, 7), np.float32)}, vivace.UnsupportedError, "one time for all actions"),
    ({"prev_actions": np.zeros((4, 7), np.float32), "overlap": 2}, vivace.UnsupportedError, "prev_actions"),
    ({"embodiment": 1}, vivace.InvalidArgumentError, "one kind of robot"),
]


@pytest.mark.parametrize("change,error,message", BAD)
def test_bad_observations(model, change, error, message):
    given = observation("a")
    want = model.predict(**given)
    with pytest.raises(error, match=message):
        model.predict(**given | change)
    assert np.array_equal(model.predict(**given), want)


@pytest.mark.parametrize("options,message", [
    (dict(precision="fp8"), "precision: smolvla has auto, f32, bf16, got 'fp8'"), (dict(precision="fp8_static", calibration=[]), "calibration"), (dict(resize="openpi"), "resize: smolvla has auto and lerobot"),
    (dict(config="pi0"), "the checkpoint's tensors are those of smolvla"), (dict(num_views=17), "num_views"), (dict(batch=0), "batch"), (dict(embodiment=0), "embodiment"),
])
def test_bad_options(options, message):
    with pytest.raises(vivace.InvalidArgumentError, match=message):
        load(**options)
    pi0 = FIXTURE.parent / "pi0_tiny"
    with pytest.raises(vivace.InvalidArgumentError, match="are those of pi0"):
        load(pi0, config="smolvla")


@pytest.mark.parametrize("config,error,message", [
    (dict(attention_mode="self_attn"), vivace.UnsupportedError, "attention_mode"), (dict(add_image_special_tokens=True), vivace.UnsupportedError, "add_image_special_tokens"),
    (dict(adapt_to_pi_aloha=True), vivace.UnsupportedError, "adapt_to_pi_aloha"), (dict(num_expert_layers=2), vivace.UnsupportedError, "num_expert_layers"),
    (dict(resize_imgs_with_padding=[32, 64]), vivace.UnsupportedError, "squares"), (dict(resize_imgs_with_padding=[24, 24]), vivace.CorruptDataError, "multiple of patch_size times scale_factor"),
    (dict(num_vlm_layers=5), vivace.InvalidArgumentError, "agree in layers"), (dict(num_vlm_layers=5, text=None, expert=None, expert_width_multiplier=0.5), vivace.InvalidShapeError, "wanted"), (dict(num_vlm_layers=0), vivace.CorruptDataError, "num_vlm_layers"), (dict(expert_width_multiplier=0), vivace.CorruptDataError, "expert_width_multiplier"),
    (dict(max_state_dim=5), vivace.InvalidShapeError, "state_proj"), (dict(self_attn_every_n_layers=3), vivace.InvalidShapeError, "k_proj"), (dict(min_period=5.0), vivace.CorruptDataError, "min_period"),
])
def test_bad_configurations(tmp_path, config, error, message):
    with pytest.raises(error, match=message):
        load(folder(tmp_path, **config))


def test_missing_tensors(tmp_path):
    for i, name in enumerate(("model.state_proj.weight", "model.vlm_with_expert.vlm.model.connector.modality_projection.proj.weight", "model.vlm_with_expert.lm_expert.layers.1.self_attn.v_proj.weight")):
        (tmp_path / str(i)).mkdir()
        with pytest.raises(vivace.NotFoundError, match=name.split("model.", 1)[1].replace(".", r"\.")):
            load(folder(tmp_path / str(i), lambda w: w.pop(name)))


def test_it_has_no_plan_in_eight_bits(model):
    with pytest.raises(vivace.UnsupportedError, match="no plan in 8 bits"):
        model.calibrate([observation("a")])
