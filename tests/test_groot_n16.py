"""GR00T N1.6 against what transformers' towers and the assembled head make of the same random weights (tests/fixtures/vla/groot_n16_tiny, by tests/reference/make_tiny_groot_n16.py);
with `--device cuda` on a GPU. What it shares with N1.7 (flow, real-time chunking, statistics, bad observations): test_groot.py, test_groot_robot.py."""
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
from tests.reference.groot_numpy import Groot16
from tests.reference.policy_numpy import Exact, Rounded
from tests.test_groot_robot import ACTION, ROBOT, STATE, folder, joined
from tests.test_policy_host import Robot
from vivace import _core, cli

FIXTURE = Path(__file__).parent / "fixtures" / "vla" / "groot_n16_tiny"
DEVICE = os.environ.get("VIVACE_TEST_DEVICE", "cpu")
DEVICE = DEVICE if DEVICE.startswith("cuda") else "cpu"
EXPECTED = packed_tensors(FIXTURE / "expected.safetensors")
IMAGE, F32, BF16, HORIZON, ACTIONS = 500, 1e-4, 0.9995, 9, 12
STAGES = ("vision_out", "image_embeds", "llm_layer0_out", "llm_layer1_out", "backbone_features", "vlln")
IDS = {"<IMG_CONTEXT>": IMAGE, "<img>": 501, "</img>": 502, "<|im_start|>": 504, "<|im_end|>": 505}


def load(path=FIXTURE, **options):
    return vivace.load_model(path, **{"statistics": "none", "precision": "f32", "num_views": 2, "device": DEVICE, "threads": 2 * (DEVICE == "cpu"), **options})


def observation(case):
    of = lambda name: EXPECTED[f"{case}.{name}"]  # noqa: E731
    return dict(images=[EXPECTED.get(f"{case}.image.{k}") for k in range(2)], prompt=of("ids"), state=of("state"), noise=of("noise"), embodiment=int(of("embodiment")[0]))


def close(got, want, bound=F32):
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def cosine(a, b):
    return float(np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def model():
    with load() as m:
        yield m


def actions_of(arithmetic, case):
    given = observation(case)
    reference = Groot16(load_file(FIXTURE / "model.safetensors"), json.loads((FIXTURE / "config.json").read_text()), arithmetic)
    return reference.actions([i.astype(np.float64) for i in given["images"] if i is not None], given["prompt"].tolist(), given["state"], given["noise"], given["embodiment"], 4)


@pytest.mark.parametrize("case", "abc")
def test_every_stage_matches_the_reference(model, case):
    given = observation(case)
    seen = {name: v for name, step, v in model.observe(**given) if step == -1}
    for name in STAGES:
        want = EXPECTED[f"{case}.{name}"]
        np.testing.assert_allclose(seen[name][:len(want)], want, rtol=0, atol=F32, err_msg=name)
    close(model.predict(**given), EXPECTED[f"{case}.actions"])


@pytest.mark.parametrize("case", "abc")
def test_the_float64_reference_itself(case):
    """What random models are held to (tests/random_models)."""
    close(actions_of(Exact(), case), EXPECTED[f"{case}.actions"], 1e-5)


@pytest.mark.parametrize("case", "abc")
def test_bf16(case):
    given = observation(case)
    with load(precision="bf16") as model:
        seen = {name: v for name, step, v in model.observe(**given) if step == -1}
        assert cosine(model.predict(**given), EXPECTED[f"{case}.actions"]) >= BF16
    for name in ("image_embeds", "backbone_features", "vlln"):
        want = EXPECTED[f"{case}.{name}"]
        assert cosine(seen[name][:len(want)], want) >= BF16, name


def scaled(precision, **options):
    """load(), with scales that the cases bring where the plan wants some."""
    if precision != "fp8_static":
        return load(precision=precision, **options)
    return load(precision=precision, calibration=[observation(c) for c in "abc"], percentile=100.0, **options)


@pytest.mark.parametrize("precision", ["fp8", "fp8_static"])
def test_eight_bits(precision, tmp_path, monkeypatch):
    """As good as what float64 makes of the same roundings; the DiT stays in 16 bits."""
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))
    with scaled(precision) as model:
        for case in "abc":
            right = EXPECTED[f"{case}.actions"]
            assert np.linalg.norm(model.predict(**observation(case)) - right) <= 2 * np.linalg.norm(actions_of(Rounded(eight=True), case) - right), case
        facts = model.report()
    forms = facts["forms"]
    assert set(forms["text"].values()) == {"e4m3"} and forms["patches"] == "bf16" and "adapter" not in forms
    assert forms["vision"] == {"qkv": "e4m3", "o": "bf16", "up": "e4m3", "down": "e4m3"}
    assert forms["dit"] == {"qkv": "bf16", "cross_k": "e4m3", "cross_v": "e4m3", "o": "bf16", "up": "bf16", "down": "bf16"}


def test_each_place_has_a_scale_of_its_own(tmp_path, monkeypatch):
    """One that is far too small is seen in the actions."""
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))
    places, given = 4 * 2 + 2 + 4 * 3 + 2, observation("a")
    with load(precision="bf16") as model:
        scales = model.calibrate([given])
    assert len(scales) == places and min(scales) > 0
    with load(precision="fp8_static", calibration=[given], percentile=100.0) as model:
        base = model.predict(**given)
        for place in range(places):
            wide = place < 8 and place % 4 == 1  # vision's attention leaves 16 bits
            model._live.set_act_scales([s / (64 if i == place else 1) for i, s in enumerate(scales)])
            assert np.array_equal(model.predict(**given), base) == wide, place


@pytest.mark.parametrize("precision", ["f32", "bf16", "fp8_static"])
def test_batches_have_the_bits_of_each_alone(precision, tmp_path, monkeypatch):
    """Of other embodiments, images and prompts side by side, in any order, also in fewer than the policy has room for."""
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))
    cases = [observation(c) for c in "abc"]
    with scaled(precision, batch=3) as many:
        alone = [many.predict(**o) for o in cases]
        for order in ([0, 1, 2], [2, 1], [1, 0, 2]):
            got = many.predict_batch([cases[i] for i in order])
            assert all(np.array_equal(g, alone[i]) for g, i in zip(got, order))


def test_captured_is_eager():
    captured_is_eager(FIXTURE, map(observation, "ac"), DEVICE, num_views=2)


@pytest.mark.skipif(DEVICE != "cpu", reason="the scheduler of the CPU")
def test_as_a_tenant_of_a_scheduler(model):
    tenant_is_alone(FIXTURE, model, observation("a"), num_views=2)


def test_images_and_cameras(model):
    """A token for an image or for each of its own, each turned by its place; which camera an image comes from does not matter, their order does."""
    given = observation("a")
    want = model.predict(**given)
    tokens = iter((2 * 3, 3 * 2))
    long = [t for i in given["prompt"].tolist() for t in ([i] * next(tokens) if i == IMAGE else [i])]
    assert np.array_equal(model.predict(**given | {"prompt": long}), want)
    seen = {(name, step): v for name, step, v in model.observe(**given | {"prompt": long})}
    assert seen["positions", -1][:len(long)].tolist() == list(range(len(long)))
    with load(num_views=3) as three:
        front, wrist = given["images"]
        assert np.array_equal(three.predict(**given | {"images": [front, None, wrist]}), want)
    assert not np.array_equal(model.predict(**given | {"images": given["images"][::-1]}), want)
    assert np.array_equal(model.predict(**given), want)  # nothing of the calls between is left


def test_real_time_chunking_and_steps(model):
    given = observation("a")
    before = model.predict(**given)
    after = model.predict(**given, prev_actions=model.normalized(), overlap=4, frozen=2)
    assert np.array_equal(after[:2], before[-4:-2]) and not np.array_equal(after[2:4], before[-2:])
    with load(num_steps=7, action_horizon=5, embodiment=2) as other:
        assert other.predict(**{k: v for k, v in given.items() if k not in ("noise", "embodiment")}).shape == (5, ACTIONS)
    facts = model.report()
    assert (facts["family"], facts["image_token"], facts["embodiments"], facts["adapter"]["layers"], facts["image"]) == ("groot_n16", IMAGE, 3, 0, [112, 140])
    assert facts["vision"] == {"width": 32, "layers": 2, "mlp": 44, "heads": 2, "kv_heads": 2, "head_dim": 16}


def with_config(tmp_path, change=None, **config):
    """The fixture with other weights, or other entries of config.json; None takes one away."""
    weights = load_file(FIXTURE / "model.safetensors")
    if change is not None:
        change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    facts = json.loads((FIXTURE / "config.json").read_text()) | config
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in facts.items() if v is not None}))
    return tmp_path


def test_names_it_may_have(tmp_path, model):
    """lerobot's, whose type does not tell N1.6 from N1.7; the head's matrix where words' is dropped; and by config=."""
    want = model.predict(**observation("a"))

    def renamed(weights):
        for name in list(weights):
            weights["_groot_model." + name] = weights.pop(name)

    def tied(weights):
        weights["backbone.model.language_model.lm_head.weight"] = weights.pop("backbone.model.language_model.model.embed_tokens.weight")
    for i, (change, config) in enumerate(((renamed, dict(type="groot", model_type=None)), (tied, {}))):
        (tmp_path / str(i)).mkdir()
        with load(with_config(tmp_path / str(i), change, **config), config="groot_n16" if i else "auto") as other:
            assert other.report()["family"] == "groot_n16" and np.array_equal(other.predict(**observation("a")), want)


def test_sizes_of_images(tmp_path):
    """A processor's target becomes the nearest multiple of 28; images of any shape have the room of 16 : 9; a released model's are 252 x 252."""
    backbone = json.loads((FIXTURE / "config.json").read_text())["backbone"]
    for config, image in ((dict(image_target_size=[100, 128]), [112, 140]), (dict(image_target_size=None, shortest_image_edge=100), [112, 168]), (dict(image_target_size=None), [252, 252]), (dict(image_target_size=[14, 41]), [28, 28])):
        (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in (json.loads((FIXTURE / "config.json").read_text()) | config | {"backbone": backbone}).items() if v is not None}))
        with load(tmp_path, random_weights=True, embodiment=0, num_views=1) as other:
            assert other.report()["image"] == image


@pytest.mark.parametrize("change,error,message", [
    ({"images": [np.zeros((56, 64, 3), np.uint8), None]}, vivace.InvalidShapeError, "multiples of 28"),
    ({"images": [np.zeros((140, 140, 3), np.uint8), None]}, vivace.InvalidShapeError, "no more pixels than 112 x 140"),
    ({"images": [np.zeros((56, 56, 3), np.uint8)]}, vivace.InvalidArgumentError, "each of 2 cameras, got 1"),
    ({"images": [np.full((56, 56, 3), np.nan, np.float32), None]}, vivace.InvalidDTypeError, "u8"),
    ({"embodiment": 3}, vivace.InvalidArgumentError, "one of 0 to 2, got 3"),
    ({"state": np.zeros(11, np.float32)}, vivace.InvalidShapeError, "11 values, wanted 10"),
    ({"prompt": [IMAGE, 1]}, vivace.InvalidArgumentError, "1 times: it stands once for each of the 2 images"),
    ({"action_prefix": np.zeros((50, ACTIONS), np.float32)}, vivace.InvalidShapeError, "action_prefix: wanted fewer than"),
])
def test_bad_observations(model, change, error, message):
    given = observation("a")
    want = model.predict(**given)
    with pytest.raises(error, match=message):
        model.predict(**given | change)
    assert np.array_equal(model.predict(**given), want)


@pytest.mark.parametrize("part,config,error,message", [
    ("vision", dict(use_rope=True), vivace.UnsupportedError, "use_rope: only false"), ("vision", dict(use_windows_attn=True), vivace.UnsupportedError, "use_windows_attn: only false"),
    ("vision", dict(num_patches=15), vivace.CorruptDataError, "num_patches: wanted a square"), ("vision", dict(num_attention_heads=3), vivace.CorruptDataError, "does not divide hidden_size"),
    ("vision", dict(layer_norm_eps=1e-5), vivace.UnsupportedError, "layer_norm_eps"), ("vision", dict(hidden_act="gelu"), vivace.UnsupportedError, "hidden_act"),
    ("vision", dict(patch_size=0), vivace.CorruptDataError, "patch_size"), ("text", dict(head_dim=15), vivace.CorruptDataError, "head_dim"), ("text", dict(qk_norm=False), vivace.UnsupportedError, "qk_norm"),
    (None, dict(use_alternate_vl_dit=False), vivace.UnsupportedError, "use_alternate_vl_dit"), (None, dict(select_layer=4), vivace.NotFoundError, "layers.3"), (None, dict(image_target_size=[0, 28]), vivace.CorruptDataError, "multiple of 28"),
    (None, dict(image_target_size=None, shortest_image_edge=0), vivace.CorruptDataError, "shortest_image_edge"), (None, dict(max_num_embodiments=4), vivace.InvalidShapeError, r"\[4, "),
])
def test_bad_configurations(tmp_path, part, config, error, message):
    if part is not None:
        backbone = json.loads((FIXTURE / "config.json").read_text())["backbone"]
        config = dict(backbone=backbone | {part: backbone[part] | config})
    with pytest.raises(error, match=message):
        load(with_config(tmp_path, **config))


def test_missing_and_misshapen_tensors(tmp_path):
    for name in ("backbone.model.mlp1.0.bias", "backbone.model.mlp1.1.weight", "backbone.model.vision_model.vision_model.embeddings.patch_embedding.weight", "backbone.model.language_model.model.norm.weight"):
        with pytest.raises(vivace.NotFoundError, match=name):
            load(with_config(tmp_path, lambda w: w.pop(name)))
        with pytest.raises(vivace.InvalidShapeError, match=name):
            load(with_config(tmp_path, lambda w: w.update({name: w[name][..., :-1].copy()})))


def test_the_other_family(tmp_path):
    n17 = FIXTURE.parent / "groot_n17_tiny"
    for path, config, own in ((FIXTURE, "groot_n17", "groot_n16"), (n17, "groot_n16", "groot_n17")):
        with pytest.raises(vivace.InvalidArgumentError, match=f"config {config}: this checkpoint is of {own}"):
            load(path, config=config)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer.json of single bytes, with Eagle's control tokens where the tiny model has them."""
    letters = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    letters += [chr(256 + i) for i in range(256 - len(letters))]
    vocab = {c: i for i, c in enumerate(letters)}
    rules = {"version": "1.0", "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for t, i in sorted(IDS.items(), key=lambda x: x[1])],
             "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}, "post_processor": None, "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                       "vocab": vocab | {f"x{i}": i for i in [*range(256, 500), 503]}, "merges": []}}
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    path.write_text(json.dumps(rules))
    return path, lambda text: [vocab[{" ": "\u0120", "\n": "\u010a"}.get(c, c)] for c in text]


def test_tasks_as_text(words):
    """A system's message, then the task, then numbered images."""
    path, of = words
    image = [501, IMAGE, 502]
    ids = [504, *of("system\nYou are a helpful assistant."), 505, *of("\n"), 504, *of("user\npick up_the red block 2<image 1>"), *image, *of("<image 2>"), *image, 505, *of("\n")]
    assert _core.GrootPrompter.open(str(path), "groot_n16").tokens("Pick up_the RED block #2!", 2) == ids
    given = observation("a")
    with load(tokenizer=path) as model:
        assert np.array_equal(model.predict(**given | {"prompt": "Pick up_the RED block #2!"}), model.predict(**given | {"prompt": ids}))
        with pytest.raises(vivace.UnsupportedError, match="ASCII"):
            model.predict(**given | {"prompt": "gr\u00fcn"})
    with pytest.raises(vivace.CorruptDataError, match="vision_start.*Qwen3-VL's"):
        _core.GrootPrompter.open(str(path), "groot_n17")
    rules = json.loads(path.read_text())
    rules["added_tokens"] = [t for t in rules["added_tokens"] if t["content"] != "<IMG_CONTEXT>"]
    (path.parent / "other").mkdir()
    (path.parent / "other" / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(vivace.CorruptDataError, match="<IMG_CONTEXT> is not in the vocabulary; prompts need Eagle's"):
        _core.GrootPrompter.open(str(path.parent / "other"), "groot_n16")


@pytest.mark.skipif(DEVICE != "cpu", reason="the host is the same")
def test_units_and_over_the_wire(tmp_path, words):
    """Statistics, cameras by name, and the policy host, as N1.7 has them."""
    path = folder(tmp_path, fixture=FIXTURE)
    given, state = observation("a"), np.float32([0.1, -0.5, 0.2, -1.0, 0.3])
    front, wrist = given["images"]
    fields = {"images": {"front": front, "wrist": wrist}, "state": state, "prompt": "go on"}
    with load(path, statistics="auto", num_views=0, tokenizer=words[0]) as robot, load(embodiment=1, tokenizer=words[0]) as network:
        want = robot.infer(fields, noise=given["noise"])["actions"]
        low, high = (v[0] for v in joined(ROBOT["state"], "min", "max", STATE))
        normal = np.where(high != low, 2 * (state - low) / np.where(high != low, high - low, 1) - 1, 0).clip(-1, 1).astype(np.float32)
        raw = network.predict([front, wrist], prompt="go on", state=normal, noise=given["noise"])[:8, :6]
        low, high = joined(ROBOT["action"], "min", "max", ACTION)
        close(want, (raw.clip(-1, 1) + 1) * np.float32(0.5) * (high - low) + low, 2e-5)
        wired = {"noise": given["noise"][:8], "seed": 3}  # eight actions mean something to this robot
        want = robot.infer(fields, **wired)["actions"]
        with vivace.PolicyHost(robot, port=0, deadline=30.0) as host:
            with Robot(host) as client:
                assert client.metadata["vivace"]["policy"] == "groot_n16" and client.metadata["vivace"]["cameras"] == ["images/front", "images/wrist"]
                assert np.array_equal(client.ask(fields | {"vivace": wired})["actions"], want)
            with Robot(host) as client:
                line, _ = client.refused(fields | {"images": {"front": front[:50], "wrist": wrist}})
                assert "multiples of 28" in line


def test_plan_and_bench(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache"))
    path = str(folder(tmp_path, fixture=FIXTURE))
    for command, more in (("plan", []), ("bench", ["--steps", "2", "--batch", "2"])):
        assert cli.main([command, "--model", path, "--device", "cpu", "--threads", "2", "--json", *more]) == 0
    planned, timed = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert planned["report"]["family"] == "groot_n16" and planned["total_bytes"] == sum(r["bytes"] for r in planned["regions"])
    assert timed["rows"][0]["case"].startswith("groot_n16 f32 cpu, 2 views, 8 actions, 4 steps, batch 2") and timed["rows"][0]["p50_us"] > 0


def test_config_alone_with_random_weights(tmp_path):
    shutil.copy(FIXTURE / "config.json", tmp_path)
    with load(tmp_path, random_weights=True, embodiment=1) as model:
        assert model.predict(**observation("c")).shape == (HORIZON, ACTIONS)
