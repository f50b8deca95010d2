"""GR00T N1.7 against what lerobot and transformers computed from the same random weights (tests/fixtures/vla/groot_n17_tiny); with `--device cuda` on a GPU.
Tolerances are the fixture's: f32 within 2e-4 of every value, which are up to 10 large; bf16 by direction."""
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.packed import packed_tensors
from tests.policy_bits import captured_is_eager, tenant_is_alone
from tests.reference.groot_numpy import Groot
from tests.reference.policy_numpy import Exact, Rounded

FIXTURE = Path(__file__).parent / "fixtures" / "vla" / "groot_n17_tiny"
DEVICE = os.environ.get("VIVACE_TEST_DEVICE", "cpu")
DEVICE = DEVICE if DEVICE.startswith("cuda") else "cpu"
INPUTS, EXPECTED = (packed_tensors(FIXTURE / f"{name}.safetensors") for name in ("inputs", "expected"))
IMAGE, F32, BF16 = 500, 2e-4, 0.9995


def load(path=FIXTURE, **options):
    return vivace.load_model(path, **{"statistics": "none", "precision": "f32", "num_views": 3, "device": DEVICE, "threads": 2 * (DEVICE == "cpu"), **options})


def observation(case, slots=3):
    """What predict() takes; cameras that a case has not are off."""
    views = [INPUTS[f"image_pool_{i}"][:h, :w] for i, h, w in INPUTS[f"{case}.views_pool_h_w"]]
    o = dict(images=views + [None] * (slots - len(views)), prompt=INPUTS[f"{case}.input_ids"], state=INPUTS[f"{case}.state"], noise=INPUTS[f"{case}.noise"], embodiment=int(INPUTS[f"{case}.embodiment_id"][0]))
    if f"{case}.prev_actions" in INPUTS:
        overlap, frozen = map(int, INPUTS[f"{case}.rtc_overlap_frozen"])
        o |= dict(prev_actions=INPUTS[f"{case}.prev_actions"], overlap=overlap, frozen=frozen)
    return o


def close(got, want, bound=F32):
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def cosine(a, b):
    return float(np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def model():
    with load() as m:
        yield m


@pytest.mark.parametrize("case", "abcd")
def test_every_stage_matches_the_references(model, case):
    given = observation(case)
    seen = {(name, step): v for name, step, v in model.observe(**given)}
    checked = 0
    for key, want in EXPECTED.items():
        of, name = key.split(".", 1)
        if of != case or name in ("grid_thw", "image_mask", "pixel_values_first_rows"):
            continue
        if name == "actions":
            got = model.predict(**given)
        elif name == "position_ids":
            got = np.stack([seen["positions", s] for s in (-1, 0, 1)])[:, :want.shape[1]]
        elif name == "patch_embed_first_rows":
            got = seen["patch_embed", -1][:len(want)]
        elif name.startswith("dit_block"):
            got = seen[name.removesuffix("_step0"), 0]
        elif name in ("action_features", "dit_output", "pred"):
            got = np.stack([seen[name, s] for s in range(len(want))])
        else:
            got = seen[name, -1][:len(want)]
        close(got, want)
        checked += 1
    assert checked == {"a": 25, "b": 13, "c": 13, "d": 13}[case]


@pytest.mark.parametrize("case", "abcd")
def test_the_float64_reference_itself(case):
    """What random models are held to (tests/random_models)."""
    weights, given = {k: v for shard in FIXTURE.glob("model-*.safetensors") for k, v in load_file(shard).items()}, observation(case)
    ids = given["prompt"].tolist()
    reference = Groot(weights, json.loads((FIXTURE / "config.json").read_text()))
    got = reference.actions([i.astype(np.float64) for i in given["images"] if i is not None], [t for i, t in enumerate(ids) if t != IMAGE or ids[i - 1] != IMAGE], given["state"], given["noise"], given["embodiment"], 4,
                            given.get("prev_actions"), given.get("overlap", 0), given.get("frozen", 0))
    close(got, EXPECTED[f"{case}.actions"], 1e-5)


@pytest.mark.parametrize("case", "abcd")
def test_bf16(case):
    given = observation(case)
    with load(precision="bf16") as model:
        seen = {(name, step): v for name, step, v in model.observe(**given)}
        assert cosine(model.predict(**given), EXPECTED[f"{case}.actions"]) >= BF16
    for name in ("image_embeds", "backbone_features", "vl_features", "state_features"):
        want = EXPECTED[f"{case}.{name}"]
        assert cosine(seen[name, -1][:len(want)], want) >= BF16, name
    assert cosine(np.stack([seen["pred", s] for s in range(4)]), EXPECTED[f"{case}.pred"]) >= BF16


def scaled(precision, **options):
    """load(), with scales that the four cases bring where the plan wants some."""
    if precision != "fp8_static":
        return load(precision=precision, **options)
    return load(precision=precision, calibration=[observation(c) for c in "abcd"], percentile=100.0, **options)


@pytest.fixture(scope="module")
def references():
    """Actions of the float64 reference, exact and rounded as the plans round, less the noise they start from."""
    weights, config = {k: v for shard in FIXTURE.glob("model-*.safetensors") for k, v in load_file(shard).items()}, json.loads((FIXTURE / "config.json").read_text())
    out = {}
    for name, a in (("f32", Exact()), ("bf16", Rounded()), ("fp8", Rounded(eight=True))):
        for case in "abc":
            given = observation(case)
            ids = given["prompt"].tolist()
            one = [t for i, t in enumerate(ids) if t != IMAGE or ids[i - 1] != IMAGE]
            out[case, name] = Groot(weights, config, a).actions([i.astype(np.float64) for i in given["images"] if i is not None], one, given["state"], given["noise"], given["embodiment"], 4) - given["noise"]
    return out


@pytest.mark.parametrize("precision", ["fp8", "fp8_static"])
def test_eight_bits(references, precision, tmp_path, monkeypatch):
    """As good as what float64 makes of the same roundings; the DiT stays in 16 bits."""
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))
    with scaled(precision) as model:
        for case in "abc":
            given = observation(case)
            got, right = model.predict(**given) - given["noise"], references[case, "f32"]
            assert np.linalg.norm(got - right) <= 2 * np.linalg.norm(references[case, "fp8"] - right), case
        facts = model.report()
    assert facts["activations_to_e4m3"] == ("by token" if precision == "fp8" else "calibrated") and facts["activations"] == "bf16"
    forms = facts["forms"]
    assert set(forms["text"].values()) == set(forms["adapter"].values()) == {"e4m3"}
    assert forms["vision"] == {"qkv": "e4m3", "o": "bf16", "up": "e4m3", "down": "e4m3"} and forms["patches"] == "bf16"
    assert forms["dit"] == {"qkv": "bf16", "cross_k": "e4m3", "cross_v": "e4m3", "o": "bf16", "up": "bf16", "down": "bf16"}


def test_calibrated_scales(tmp_path, monkeypatch):
    """Kept under what they depend on, used as they are, taken anew while loaded; what is refused changes nothing."""
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))
    given, places = observation("a"), 4 * 3 + 2 * 3 + 4 * 3 + 4 * 2 + 2
    other = given | dict(images=[None if i is None else np.uint8(i // 8) for i in given["images"]], prompt=given["prompt"][::-1])
    options = dict(precision="fp8_static", percentile=100.0)
    with load(precision="bf16") as model:
        scales = model.calibrate([given])
        both = model.calibrate([given, other])
        assert len(scales) == places and min(scales) > 0 and (np.array(both) >= np.array(scales)).all() and both != scales
        with pytest.raises(vivace.FailedPreconditionError, match="none that are fixed"):
            model._live.set_act_scales(scales)
        for wrong, words in (([], "wanted observations"), ([given | dict(images=[])], "each of 3 cameras")):
            with pytest.raises(vivace.InvalidArgumentError, match=words):
                model.calibrate(wrong)
    with load(**options, calibration=[other]) as model:
        want = model.predict(**given)
    with load(**options, calibration=[given]) as model:
        first = model.predict(**given)
        assert (first != want).any() and len(list((tmp_path / "models" / "calibration").glob("policy-*.json"))) == 2
        for wrong in ([1.0], [float("inf")] * places, [0.0] * places):
            with pytest.raises(vivace.InvalidArgumentError, match="act_scales"):
                model._live.set_act_scales(wrong)
        with pytest.raises(vivace.FailedPreconditionError, match="already"):
            model.calibrate([given])
        assert (model.predict(**given) == first).all()
        model.recalibrate([other])
        assert (model.predict(**given) == want).all()
        model._live.set_act_scales([v / 64 for v in scales])  # large values saturate
        assert np.abs(model.predict(**given) - first).max() > 0.05
    with pytest.raises(vivace.InvalidArgumentError, match="takes its scales from observations"):
        load(**options)


@pytest.mark.parametrize("place", range(4 * 3 + 2 * 3 + 4 * 3 + 4 * 2 + 2))
def test_each_place_has_its_scale(place, eights):
    """One scale that is far too small moves the actions, whichever it is; a place that nothing reads would not."""
    model, scales, base = eights
    model._live.set_act_scales([v / 256 if i == place else v for i, v in enumerate(scales)])
    wide = place < 12 and place % 4 == 1  # vision's attention leaves 16 bits
    assert np.array_equal(model.predict(**observation("a")), base) == wide


@pytest.fixture(scope="module")
def eights(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIVACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        with load(precision="bf16") as model:
            scales = model.calibrate([observation("a")])
        with load(precision="fp8_static", calibration=[observation("a")], percentile=100.0) as model:
            yield model, scales, model.predict(**observation("a"))


@pytest.mark.parametrize("precision", ["f32", "bf16", "fp8_static"])
def test_batches_have_the_bits_of_each_alone(precision):
    """Of other embodiments, images and prompts side by side, in any order, also in fewer than the policy has room for."""
    cases = [observation(c) for c in "abcd"]
    with scaled(precision, batch=4) as many:
        alone = [many.predict(**o) for o in cases]
        for order in ([0, 1, 2, 3], [3, 1], [2, 0, 3]):
            got = many.predict_batch([cases[i] for i in order])
            assert all(np.array_equal(g, alone[i]) for g, i in zip(got, order))
        assert np.array_equal(many.normalized(1), alone[0])
    with scaled(precision) as one:
        for o, want in zip(cases, alone):
            close(one.predict(**o), want, 1e-4 if precision == "f32" else 0.1)


def test_captured_is_eager():
    captured_is_eager(FIXTURE, map(observation, "ac"), DEVICE, num_views=3)


@pytest.mark.skipif(DEVICE != "cpu", reason="the scheduler of the CPU")
def test_as_a_tenant_of_a_scheduler(model):
    """Its calls are timed at load, by a prompt that has images in it."""
    tenant_is_alone(FIXTURE, model, observation("a"), num_views=3)


def test_one_token_may_stand_for_an_image(model):
    """... and cameras that are off may lie before and between those that are on."""
    given = observation("c")
    want = model.predict(**given)
    ids = given["prompt"].tolist()
    short = [t for i, t in enumerate(ids) if t != IMAGE or ids[i - 1] != IMAGE]
    assert short.count(IMAGE) == 3
    assert np.array_equal(model.predict(**given | {"prompt": short}), want)
    two = observation("a")
    views = two["images"]
    assert np.array_equal(model.predict(**two | {"images": [None, views[0], views[1]]}), model.predict(**two))
    assert not np.array_equal(model.predict(**two | {"images": [views[1], None, views[0]]}), model.predict(**two))


def test_what_the_answer_depends_on(model):
    """How far it moves is the fixture's: config.json's agreement."""
    given = observation("a")
    base, moved = model.predict(**given), json.loads((FIXTURE / "config.json").read_text())["agreement"]["a"]["sensitivity"]
    state = given["state"].copy()
    state[1] += 0.1
    assert abs(np.abs(model.predict(**given | {"state": state}) - base).max() - moved["state_dim1+0.1"]) < F32
    swapped = given["images"][1::-1] + [None]
    assert abs(np.abs(model.predict(**given | {"images": swapped}) - base).max() - moved["swap_views"]) < F32
    seeds = [model.predict(**given | {"noise": None, "seed": s}) for s in (3, 3, 4)]
    assert np.array_equal(seeds[0], seeds[1]) and not np.array_equal(seeds[0], seeds[2])
    assert np.array_equal(model.predict(**given), base)  # nothing of the calls between is left


def test_frozen_actions_stay(model):
    given = observation("d")
    got = model.predict(**given)
    assert np.array_equal(got[:2], given["prev_actions"][-4:-2])
    whole = model.predict(**given | {"overlap": 8, "frozen": 8})
    assert np.array_equal(whole, given["prev_actions"])
    assert np.array_equal(model.predict(**given | {"prev_actions": given["prev_actions"][-4:]}), got)
    assert np.array_equal(model.predict(**{k: v for k, v in given.items() if k not in ("prev_actions", "overlap", "frozen")}), model.predict(**given | {"prev_actions": None, "overlap": 0, "frozen": 0}))


def test_one_embodiment_loaded(model):
    given = observation("a")
    with load(embodiment=2) as one:
        assert np.array_equal(one.predict(**given), model.predict(**given))
        assert np.array_equal(one.predict(**given | {"embodiment": None}), model.predict(**given))
        assert one.report()["embodiment"] == 2 and one.report()["weight_bytes"] < model.report()["weight_bytes"]
        with pytest.raises(vivace.InvalidArgumentError, match="loaded for 2 alone, got 0"):
            one.predict(**given | {"embodiment": 0})


def test_embodiments_by_name(tmp_path):
    shutil.copytree(FIXTURE, tmp_path / "m")
    (tmp_path / "m" / "embodiment_id.json").write_text('{"arm": 2, "other": 0}')
    given = observation("a")
    with load(tmp_path / "m") as model, load(tmp_path / "m", embodiment="arm") as arm:
        want = model.predict(**given)
        assert np.array_equal(model.predict(**given | {"embodiment": "arm"}), want)
        assert np.array_equal(arm.predict(**given | {"embodiment": None}), want)
        with pytest.raises(vivace.InvalidArgumentError, match="'leg' is none of arm, other"):
            model.predict(**given | {"embodiment": "leg"})
    with pytest.raises(vivace.InvalidArgumentError, match="none of the names in embodiment_id.json"):
        load(embodiment="arm")


def test_steps_horizon_and_report(model):
    given = {k: v for k, v in observation("a").items() if k != "noise"}
    with load(num_steps=7, action_horizon=5) as other:
        assert other.predict(**given).shape == (5, 20)
        assert other.report()["num_steps"] == 7
    facts = model.report()
    assert (facts["family"], facts["precision"], facts["embodiments"], facts["embodiment"], facts["image_token"]) == ("groot_n17", "f32", 3, None, IMAGE)
    assert (facts["num_views"], facts["action_horizon"], facts["num_steps"], facts["action_dim"], facts["prompt_tokens"]) == (3, 8, 4, 20, 128)
    assert facts["text"]["layers"] == 3 and facts["dit"] == {"width": 48, "layers": 8, "mlp": 192, "heads": 3, "kv_heads": 3, "head_dim": 16}
    memory = facts["memory"]
    assert memory["weights"] == facts["weight_bytes"] and 0 <= facts["arena_bytes"] - (sum(memory.values()) - memory["weights"]) < 256 * len(memory)  # regions are aligned
    assert memory["cross_k.0"] == (3 * 64 + 128) * 48 * 4 and memory["cross_k.1"] == 3 * 64 * 48 * 4  # text, images
    assert set(facts["forms"]["dit"].values()) == {"f32"}


def test_config_alone_with_random_weights(tmp_path):
    shutil.copy(FIXTURE / "config.json", tmp_path)
    with load(tmp_path, random_weights=True, embodiment=1) as model:
        assert model.predict(**observation("c")).shape == (8, 20)


BAD = [
    ({"embodiment": 3}, vivace.InvalidArgumentError, "one of 0 to 2, got 3"),
    ({"embodiment": None}, vivace.InvalidArgumentError, "embodiment: wanted one of 0 to 2"),
    ({"embodiment": -1}, vivace.InvalidArgumentError, "embodiment"),
    ({"embodiment": 1.5}, vivace.InvalidArgumentError, "embodiment"),
    ({"images": [None] * 3}, vivace.InvalidArgumentError, "no camera is on"),
    ({"images": [np.zeros((128, 128, 3), np.uint8)] * 2}, vivace.InvalidArgumentError, "each of 3 cameras, got 2"),
    ({"images": [np.zeros((128, 100, 3), np.uint8), np.zeros((128, 128, 3), np.uint8), None]}, vivace.InvalidShapeError, "multiples of 32"),
    ({"images": [np.zeros((512, 256, 3), np.uint8), np.zeros((128, 128, 3), np.uint8), None]}, vivace.InvalidShapeError, "no more pixels than 256 x 256"),
    ({"images": [np.zeros((128, 128, 3), np.float32), np.zeros((128, 128, 3), np.uint8), None]}, vivace.InvalidDTypeError, "u8"),
    ({"images": [np.zeros((64, 128, 3), np.uint8), np.zeros((128, 128, 3), np.uint8), None]}, vivace.InvalidArgumentError, "32 times: it stands once for each of the 2 images, or for each of their 24"),
    ({"images": [np.zeros((64, 128, 3), np.uint8), np.zeros((192, 128, 3), np.uint8), None]}, vivace.InvalidArgumentError, "do not lie together"),
    ({"prompt": [1, 2, 3]}, vivace.InvalidArgumentError, "0 times"),
    ({"prompt": [IMAGE, IMAGE, 512]}, vivace.InvalidArgumentError, r"outside the vocabulary \[0, 512\)"),
    ({"prompt": [IMAGE, IMAGE, -1]}, vivace.InvalidArgumentError, "outside the vocabulary"),
    ({"prompt": [IMAGE, IMAGE] + [1] * 129}, vivace.LimitExceededError, "129 tokens beside images, at most 128"),
    ({"prompt": None}, vivace.InvalidArgumentError, "prompt"),
    ({"state": None}, vivace.InvalidArgumentError, "reads the state"),
    ({"state": np.zeros(21, np.float32)}, vivace.InvalidShapeError, "21 values, wanted 20"),
    ({"state": np.full(20, np.nan, np.float32)}, vivace.InvalidArgumentError, "state is not finite"),
    ({"noise": np.zeros((7, 20), np.float32)}, vivace.InvalidShapeError, r"wanted \[8, 20\]"),
    ({"noise": np.full((8, 20), np.inf, np.float32)}, vivace.InvalidArgumentError, "noise is not finite"),
    ({"action_prefix": np.zeros((8, 20), np.float32)}, vivace.InvalidShapeError, "action_prefix: wanted fewer than 8 actions"), ({"action_prefix": np.full((1, 20), np.inf, np.float32)}, vivace.InvalidArgumentError, "action_prefix is not finite"),
    ({"action_prefix": np.zeros((1, 20), np.float32), "prev_actions": np.zeros((2, 20), np.float32), "overlap": 1}, vivace.InvalidArgumentError, "give one of the two"),
    ({"overlap": 1}, vivace.InvalidArgumentError, "neither without prev_actions"),
    ({"prev_actions": np.zeros((4, 20), np.float32)}, vivace.InvalidArgumentError, "wanted 1 to 4 actions"),
    ({"prev_actions": np.zeros((4, 20), np.float32), "overlap": 5}, vivace.InvalidArgumentError, "wanted 1 to 4 actions"),
    ({"prev_actions": np.zeros((9, 20), np.float32), "overlap": 9}, vivace.InvalidArgumentError, "wanted 1 to 8 actions"),
    ({"prev_actions": np.zeros((4, 20), np.float32), "overlap": 2, "frozen": 3}, vivace.InvalidArgumentError, "got 2 and 3"),
    ({"prev_actions": np.zeros((4, 19), np.float32), "overlap": 2}, vivace.InvalidShapeError, "rows of 20"),
    ({"prev_actions": np.full((4, 20), np.nan, np.float32), "overlap": 2}, vivace.InvalidArgumentError, "prev_actions is not finite"),
]


@pytest.mark.parametrize("change,error,message", BAD)
def test_bad_observations(model, change, error, message):
    given = observation("a")
    want = model.predict(**given)
    with pytest.raises(error, match=message):
        model.predict(**given | change)
    assert np.array_equal(model.predict(**given), want)


@pytest.mark.parametrize("n", [1, 3, 7])
def test_a_prefix_stays_and_the_rest_follows(model, n):
    """As a chunk of which all is frozen, bit for bit, and as float64 has it; the rest is another than without."""
    given = observation("a")
    prefix = np.random.default_rng(n).uniform(-1, 1, (n, 20)).astype(np.float32)
    got = model.predict(**given, action_prefix=prefix)
    assert np.array_equal(got[:n], prefix) and not np.allclose(got[n:], model.predict(**given)[n:], atol=1e-4)
    assert np.array_equal(model.predict(**given, prev_actions=np.concatenate([prefix + 1, prefix]), overlap=n, frozen=n), got)
    weights, ids = {k: v for shard in FIXTURE.glob("model-*.safetensors") for k, v in load_file(shard).items()}, given["prompt"].tolist()
    reference = Groot(weights, json.loads((FIXTURE / "config.json").read_text()))
    close(got, reference.actions([i.astype(np.float64) for i in given["images"] if i is not None], [t for i, t in enumerate(ids) if t != IMAGE or ids[i - 1] != IMAGE], given["state"], given["noise"], given["embodiment"], 4, prefix, n, n))


def test_calls_that_it_has_no_answer_to(model):
    with pytest.raises(vivace.FailedPreconditionError, match="no scales that are fixed"):
        model.recalibrate([observation("a")])
    with pytest.raises(vivace.UnsupportedError, match="no tokens"):
        model.tokens(**{k: v for k, v in observation("a").items() if k in ("images", "prompt", "state")})


@pytest.mark.parametrize("options,message", [
    (dict(embodiment=3), "embodiment: wanted 0 to 2"), (dict(precision="int4"), "precision: wanted auto, f32, bf16, fp8, fp8_static, got 'int4'"), (dict(num_views=17), "num_views"), (dict(action_horizon=65), "action_horizon: wanted 1 to 64"),
    (dict(batch=0), "batch"), (dict(delta=[True]), "delta"), (dict(robot="droid"), "embodiment_id.json"), (dict(resize="openpi"), "resize"), (dict(config="pi05"), "config pi05"), (dict(codec="x"), "codec"), (dict(expert="e4m3"), "expert: not an option of"),
    (dict(statistics="some"), "statistics"), (dict(prompt_tokens=5000), "prompt_tokens"), (dict(num_steps=-1), "num_steps"),
])
def test_bad_options(options, message):
    with pytest.raises(vivace.InvalidArgumentError, match=message):
        load(**options)


def test_other_families_have_no_embodiments(tmp_path):
    pi05 = FIXTURE.parent / "pi05_tiny"
    with pytest.raises(vivace.InvalidArgumentError, match="embodiment"):
        vivace.load_model(pi05, config="pi05", statistics="none", device=DEVICE, embodiment=0)
    with pytest.raises(vivace.InvalidArgumentError, match="this checkpoint is of pi05"):
        vivace.load_model(pi05, config="groot_n17", device=DEVICE)


def changed(tmp_path, change=None, **config):
    """The fixture with other weights, or other entries of config.json; None takes one away."""
    weights = {k: v for shard in FIXTURE.glob("model-*.safetensors") for k, v in load_file(shard).items()}
    if change is not None:
        change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    facts = json.loads((FIXTURE / "config.json").read_text()) | config
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in facts.items() if v is not None}))
    return tmp_path


def test_missing_and_misshapen_tensors(tmp_path):
    name = "action_head.model.transformer_blocks.3.attn1.to_k.weight"
    with pytest.raises(vivace.NotFoundError, match=name):
        load(changed(tmp_path, lambda w: w.pop(name)))
    with pytest.raises(vivace.InvalidShapeError, match=name):
        load(changed(tmp_path, lambda w: w.update({name: w[name][:, :-1].copy()})))


def test_lerobots_names_and_type(tmp_path, model):
    def renamed(weights):
        for name in list(weights):
            weights["_groot_model." + name] = weights.pop(name)
    given = observation("a")
    with load(changed(tmp_path, renamed, type="groot", model_type=None)) as other:
        assert other.report()["family"] == "groot_n17"
        assert np.array_equal(other.predict(**given), model.predict(**given))


def test_weights_that_are_not_finite(tmp_path):
    def poisoned(weights):
        weights["action_head.model.proj_out_2.bias"] = weights["action_head.model.proj_out_2.bias"] + np.float32(np.nan)
    with load(changed(tmp_path, poisoned)) as broken, pytest.raises(vivace.CorruptDataError, match="not finite"):
        broken.predict(**observation("a"))


@pytest.mark.parametrize("config,error,message", [
    (dict(use_alternate_vl_dit=False), vivace.UnsupportedError, "use_alternate_vl_dit"),
    (dict(state_history_length=2), vivace.UnsupportedError, "one state"), (dict(backbone_embedding_dim=65), vivace.CorruptDataError, "backbone_embedding_dim"),
    (dict(select_layer=0), vivace.CorruptDataError, "select_layer"), (dict(select_layer=4), vivace.NotFoundError, "layers.3"), (dict(action_horizon=65), vivace.CorruptDataError, "max_seq_len"),
    (dict(image_target_size=[100, 256]), vivace.CorruptDataError, "multiple of 32"), (dict(input_embedding_dim=64), vivace.CorruptDataError, "input_embedding_dim"),
    (dict(max_num_embodiments=4), vivace.InvalidShapeError, r"\[4, "), (dict(max_state_dim="x"), vivace.CorruptDataError, "max_state_dim"), (dict(diffusion_model_cfg=[]), vivace.CorruptDataError, "diffusion_model_cfg"),
])
def test_bad_configurations(tmp_path, config, error, message):
    with pytest.raises(error, match=message):
        load(changed(tmp_path, **config))
