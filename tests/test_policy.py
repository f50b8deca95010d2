"""Policies against what openpi and lerobot computed from the same random weights (tests/fixtures/vla); with
`--device cuda` on a GPU. Tolerances are those that the two references need between themselves."""
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from vivace import _core
from tests.test_frames import picture, resized
from tests.packed import packed_file, packed_tensors
from tests.reference.policy_numpy import Exact, Policy, Rounded
from vivace.cache import Cache

FIXTURES = Path(__file__).parent / "fixtures" / "vla"
DEVICE = os.environ.get("VIVACE_TEST_DEVICE", "cpu")
DEVICE = DEVICE if DEVICE.startswith("cuda") else "cpu"
PRE = FIXTURES / "preprocess"
FLOWS = [("pi05", "pi05_tiny"), ("pi0", "pi0_tiny")]
CASES = [(config, name, case) for config, name in FLOWS for case in "abc"]
TOKENS, KV, VELOCITY, ACTIONS = 2e-4, 2e-4, 6e-4, 2e-4
# openpi rounds the time in f32: its v differs by up to 3.5e-4 from lerobot's, whose time is f64 like ours.
VELOCITY_LEROBOT, SINCOS = 1e-4, 3e-4
INPUTS = {name: packed_tensors(FIXTURES / name / "inputs.safetensors") for _, name in FLOWS}


def expected(name, case):
    return {k.split(".", 1)[1]: v for k, v in packed_tensors(FIXTURES / name / f"expected_{case}.safetensors").items()}


def observation(name, case):
    """What predict() takes: masked views are None, padding is gone."""
    i = INPUTS[name]
    views = [i["images_u8"][v] if on else None for v, on in zip(i[f"{case}.views"], i[f"{case}.view_mask"])]
    return dict(images=views, prompt=i[f"{case}.tokens"][i[f"{case}.token_mask"] > 0], noise=i[f"{case}.noise"], state=i.get(f"{case}.state"))


def load(config, name, case, path=None, **options):
    n = INPUTS[name][f"{case}.noise"]
    steps = json.loads((FIXTURES / name / "config.json").read_text())
    steps = steps["cases"].get(case, steps["rtc_case"])["num_steps"]
    options = {"num_views": len(INPUTS[name][f"{case}.views"]), "action_horizon": n.shape[0], "num_steps": steps, "statistics": "none",
               "precision": "f32", "device": DEVICE, "threads": 0 if DEVICE != "cpu" else 2, **options}
    return vivace.load_model(path or FIXTURES / name, config=config, **options)


def velocities(seen, noise, steps):
    x = [noise, *(v for name, _, v in seen if name == "x")]
    assert len(x) == steps + 1
    return [(b - a) * np.float32(-steps) for a, b in zip(x, x[1:])]


def close(got, want, bound):
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)


@pytest.mark.parametrize("device,asked", [("cpu", 0), ("auto", 1)])
def test_what_may_be_a_gpu_finds_the_compiler(device, asked, monkeypatch):
    """As for language models: an environment's NVRTC is looked for before a load that may compile kernels."""
    found = []
    monkeypatch.setattr("vivace.jit.find_nvrtc", lambda: found.append(1))
    with pytest.raises(vivace.NotFoundError):
        vivace.load_model(FIXTURES / "none", config="pi05", device=device)
    assert len(found) == asked


@pytest.mark.parametrize("config,name,case", CASES)
def test_every_stage_matches_the_references(config, name, case):
    want, given = expected(name, case), observation(name, case)
    mask, token_mask = (INPUTS[name][f"{case}.{k}"] for k in ("view_mask", "token_mask"))
    with load(config, name, case) as model:
        seen = model.observe(**given)
        actions = model.predict(**given)
    by = {(n, s): v for n, s, v in seen}
    on = by["image_tokens", -1].reshape(len(mask), 256, -1)
    for k, slot in enumerate(np.flatnonzero(mask)):
        close(on[k][want["image_rows"]], want["image_tokens"][slot], TOKENS)
    first_word = 256 * int(mask.sum())
    words = want["text_embeddings"]
    close(by["prefix_embeddings", -1][first_word:first_word + len(words)], words, 1e-5)
    # Rows of the references' prefix, less masked views and padding, are ours.
    place = np.cumsum(np.concatenate([np.repeat(mask, 256), token_mask])) - 1
    assert (place[want["prefix_rows"]] == want["prefix_positions"]).all()
    last = max(s for n, s in by if n == "k_cache")
    for what, layer in (("first", 0), ("last", last)):
        for kv in "kv":
            close(by[f"{kv}_cache", layer][0][want["prefix_positions"]], want[f"{kv}_{what}"], KV)
    steps = len(want["t"])
    close(by["time_sincos", -1][:steps], want["time_sincos"], SINCOS)
    if "adarms_cond" in want:
        close(by["adarms_cond", -1][:steps], want["adarms_cond"], SINCOS)
    close(by["suffix_embeddings", 0], want["suffix_embeddings_step0"], TOKENS)
    close(by["expert_out", 0], want["expert_out_step0"], 1e-3)  # of size 10; the velocity below is what counts
    for s, v in enumerate(velocities(seen, given["noise"], steps)):
        close(v, want["v"][s], VELOCITY)
        if "v_lerobot" in want:
            close(v, want["v_lerobot"][s], VELOCITY_LEROBOT)
        if "x" in want:
            close(by["x", s + 1], want["x"][s + 1], ACTIONS)
    close(actions, want["actions"], ACTIONS)
    close(actions, want["actions_lerobot"], ACTIONS)


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """pi05_tiny with gates near 1: what attention and MLP say matters more."""
    path = tmp_path_factory.mktemp("gated")
    weights = {}
    for shard in (FIXTURES / "pi05_tiny").glob("model-*.safetensors"):
        weights |= load_file(shard)
    weights |= load_file(FIXTURES / "pi05_tiny" / "override_gates.safetensors")
    save_file(weights, path / "model.safetensors")
    shutil.copy(FIXTURES / "pi05_tiny" / "config.json", path)
    return path


def exact(path, case, arithmetic):
    """Velocities and actions of the float64 reference."""
    given = observation("pi05_tiny", case)
    on = np.stack([v for v in given["images"] if v is not None])
    return Policy(load_file(path / "model.safetensors"), arithmetic=arithmetic).actions(on, given["prompt"], given["noise"], 10)


@pytest.fixture(scope="module")
def references(gated):
    return {(case, name): exact(gated, case, a) for case in "ab" for name, a in (("f32", Exact()), ("bf16", Rounded()), ("fp8", Rounded(eight=True)))}


@pytest.mark.parametrize("case", "ab")
@pytest.mark.parametrize("precision", ["f32", "bf16", "fp8"])
def test_where_the_prefix_matters(gated, references, case, precision):
    """f32 as lerobot; the other plans err no more than twice what float64 does when it is rounded as they say."""
    want = {k[2:]: v for k, v in load_file(FIXTURES / "pi05_tiny" / "expected_gates.safetensors").items() if k.startswith(case + ".")}
    given = observation("pi05_tiny", case)
    right, actions = references[case, "f32"]
    close(actions, want["actions"], 1e-5)  # the reference itself
    close(right, want["v"], VELOCITY)
    with load("pi05", "pi05_tiny", case, gated, precision=precision) as model:
        got, seen = model.predict(**given), velocities(model.observe(**given), given["noise"], 10)
    if precision == "f32":
        close(got, want["actions"], ACTIONS)
        close(seen, right, VELOCITY_LEROBOT)
        return
    rounded, rounded_actions = references[case, precision]
    assert np.linalg.norm(seen - np.stack(right)) <= 2 * np.linalg.norm(np.stack(rounded) - right)
    assert np.linalg.norm(got - actions) <= 2 * np.linalg.norm(rounded_actions - actions)
    if precision == "bf16":
        for v, w in zip(seen, want["v"]):
            assert np.vdot(v, w) / np.linalg.norm(v) / np.linalg.norm(w) >= 0.9995


@pytest.mark.parametrize("case", "abc")
@pytest.mark.parametrize("precision,least", [("bf16", 0.9995), ("fp8", 0.998)])
def test_pi0_in_lower_precision(case, precision, least):
    want = expected("pi0_tiny", case)["actions"]
    with load("pi0", "pi0_tiny", case, precision=precision) as model:
        got = model.predict(**observation("pi0_tiny", case))
    assert np.vdot(got, want) / np.linalg.norm(got) / np.linalg.norm(want) >= least


@pytest.mark.parametrize("horizon,views", [(15, 1), (50, 3)])
def test_horizons_and_views(gated, horizon, views):
    rng = np.random.default_rng(horizon)
    given = dict(images=[rng.integers(0, 256, (224, 224, 3), np.uint8) for _ in range(views)], prompt=rng.integers(2, 2000, 21), noise=rng.standard_normal((horizon, 32)).astype(np.float32))
    _, want = Policy(load_file(gated / "model.safetensors"), arithmetic=Exact()).actions(np.stack(given["images"]), given["prompt"], given["noise"], 4)
    with load("pi05", "pi05_tiny", "a", gated, num_views=views, action_horizon=horizon, num_steps=4) as model:
        got = model.predict(**given)
        assert got.shape == (horizon, 32)
        close(got, want, ACTIONS)


@pytest.mark.parametrize("precision", ["f32", "bf16", "fp8", "fp8_static"])
def test_graphs_have_the_bits_of_ops_one_by_one(gated, precision):
    given = observation("pi05_tiny", "a")
    options = dict(config="pi05", device=DEVICE, precision=precision, statistics="none", threads=2 * (DEVICE == "cpu"), num_views=len(given["images"]), action_horizon=10, num_steps=3)
    if precision == "fp8_static":
        with load("pi05", "pi05_tiny", "a", gated, precision="bf16") as model:
            options["act_scales"] = model.calibrate([given])
    raw = dict(frames=given["images"], tokens=given["prompt"].tolist(), state=None, noise=given["noise"], seed=0, end_token=1, action_prefix=None)
    captured, eager = (_core.load_policy(str(gated), eager=e, **options) for e in (False, True))
    want = captured.predict([raw])
    assert eager.predict([raw]) == want and captured.predict([raw]) == want


def test_calibrated_scales(gated, references, tmp_path, monkeypatch):
    """One scale a place instead of one a token: e4m3 is a float format, so the error stays that of rounding; found once, kept
    under what they depend on."""
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))
    given = observation("pi05_tiny", "a")
    options = dict(path=gated, precision="fp8_static", calibration=[given], percentile=100.0)
    with load("pi05", "pi05_tiny", "a", **options) as model:
        seen, first = velocities(model.observe(**given), given["noise"], 10), model.predict(**given)
        assert model.report()["precision"] == "fp8_static"
    right, rounded = np.stack(references["a", "f32"][0]), np.stack(references["a", "fp8"][0])
    assert np.linalg.norm(seen - right) <= 2 * np.linalg.norm(rounded - right)
    kept = list((tmp_path / "models" / "calibration").glob("policy-*.json"))
    entry = kept[0].read_bytes()
    scales = json.loads(entry.partition(b"\n")[2])["act_scales"]
    assert len(kept) == 1 and len(scales) == 3 + 4 * (2 + 4) and min(scales) > 0
    # What is kept is used: halved, large values saturate and actions change.
    Cache(kept[0].parent).write(kept[0].name, json.dumps({"act_scales": [v / 8 for v in scales]}).encode())
    with load("pi05", "pi05_tiny", "a", **options) as model:
        assert np.abs(model.predict(**given) - first).max() > 0.05
    # An entry of another name, one that was changed by hand, and one of another number of scales, are made again.
    Cache(kept[0].parent).write(kept[0].name, json.dumps({"act_scales": scales[:3]}).encode())
    of_another_plan = kept[0].read_bytes()
    Cache(kept[0].parent).write("policy-other", json.dumps({"act_scales": [v / 8 for v in scales]}).encode())
    for planted in ((kept[0].parent / "policy-other").read_bytes(), json.dumps({"act_scales": scales}).encode(), of_another_plan):
        kept[0].write_bytes(planted)
        with load("pi05", "pi05_tiny", "a", **options) as model:
            assert (model.predict(**given) == first).all()
        assert kept[0].read_bytes() == entry
    # Other observations and another checkpoint are other scales.
    with load("pi05", "pi05_tiny", "a", **options | dict(calibration=[given | dict(images=given["images"][::-1])])) as model:
        assert len(list((tmp_path / "models" / "calibration").glob("policy-*.json"))) == 2
    with load("pi05", "pi05_tiny", "a", **options | dict(path=FIXTURES / "pi05_tiny")) as model:
        assert len(list((tmp_path / "models" / "calibration").glob("policy-*.json"))) == 3
    for change, words in ((dict(calibration=None), "takes its scales from observations"), (dict(percentile=0.0), "percentile")):
        with pytest.raises(vivace.InvalidArgumentError, match=words):
            load("pi05", "pi05_tiny", "a", **options | change)
    plain = dict(config="pi05", device=DEVICE, statistics="none", num_views=2, action_horizon=10)
    for wrong in (scales[:-1], [*scales[:-1], float("nan")], []):
        with pytest.raises(vivace.InvalidArgumentError, match="act_scales"):
            _core.load_policy(str(gated), precision="fp8_static", act_scales=wrong, **plain)
    with pytest.raises(vivace.InvalidArgumentError, match="takes 0 of them"):
        _core.load_policy(str(gated), precision="bf16", act_scales=scales, **plain)
    with load("pi05", "pi05_tiny", "a", precision="fp8") as model:
        with pytest.raises(vivace.FailedPreconditionError, match="already"):
            model.calibrate([given])
        with pytest.raises(vivace.FailedPreconditionError, match="no scales that are fixed"):
            model.recalibrate([given])
        with pytest.raises(vivace.FailedPreconditionError, match="none that are fixed"):
            model._live.set_act_scales(scales)


def test_recalibrated_scales(gated, tmp_path, monkeypatch):
    """What recalibrate() leaves is what a load with these observations has; what it refuses changes nothing."""
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))
    given = observation("pi05_tiny", "a")
    other = given | dict(images=[None if i is None else np.uint8(i // 8) for i in given["images"]])
    options = dict(path=gated, precision="fp8_static", percentile=100.0)
    with load("pi05", "pi05_tiny", "a", **options, calibration=[other]) as model:
        want = model.predict(**given)
    with load("pi05", "pi05_tiny", "a", **options, calibration=[given]) as model:
        first = model.predict(**given)
        assert (first != want).any()
        for wrong, words in (([], "takes its scales from observations"), ([given | dict(images=[])], "wanted a frame")):
            with pytest.raises(vivace.InvalidArgumentError, match=words):
                model.recalibrate(wrong)
        for wrong in ([1.0], [float("inf")] * (3 + 4 * (2 + 4))):
            with pytest.raises(vivace.InvalidArgumentError, match="act_scales"):
                model._live.set_act_scales(wrong)
        assert (model.predict(**given) == first).all()
        model.recalibrate([other])
        assert (model.predict(**given) == want).all()
    with load("pi05", "pi05_tiny", "a", path=gated, precision="bf16") as model:
        assert len(model.calibrate([given])) == 3 + 4 * (2 + 4)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_hard_prefix_beside_others(precision):
    """What an observation brings has the same bits whether its neighbours' first actions are given or not; in bf16 that of another form of
    the actions, whose norms come before products and round elsewhere, within what another plan of 16 bits may differ."""
    a, d = observation("pi05_tiny", "a"), observation("pi05_tiny", "d")
    d |= dict(images=[*d["images"], None, None][:len(a["images"])], action_prefix=INPUTS["pi05_tiny"]["d.prev_actions"][:2])
    with load("pi05", "pi05_tiny", "a", batch=2, precision=precision) as model:
        alone, led = model.predict(**a), model.predict(**d)
        both = model.predict_batch([a, d])
        assert (both[1] == led).all()
        if precision == "f32":
            assert (both[0] == alone).all()
        else:
            close(both[0], alone, 0.1)
        assert (model.predict(**a) == alone).all()


@pytest.mark.parametrize("config,name", FLOWS)
def test_eight_side_by_side(config, name):
    """The largest batch: each observation's actions are its own, whoever is beside it."""
    a, b = observation(name, "a"), observation(name, "b")
    a = a | dict(images=[*a["images"], None])
    with load(config, name, "b", batch=8) as model:
        want = {id(x): model.predict(**x) for x in (a, b)}
        for given in ([a, b, b, a, a, b, a, b], [b] * 8, [a, b, a, b, b]):
            for x, actions in zip(given, model.predict_batch(given), strict=True):
                close(actions, want[id(x)], ACTIONS)
        with pytest.raises(vivace.InvalidArgumentError, match="9"):
            model.predict_batch([a] * 9)


def test_a_hard_prefix_is_kept_and_continued():
    want, given = expected("pi05_tiny", "d"), observation("pi05_tiny", "d")
    n = int(INPUTS["pi05_tiny"]["d.delay"][0])
    action_prefix = INPUTS["pi05_tiny"]["d.prev_actions"][:n]
    with load("pi05", "pi05_tiny", "d") as model:
        actions = model.predict(**given, action_prefix=action_prefix)
        free = model.predict(**given)
    assert (actions[:n] == action_prefix).all()
    close(actions, want["actions"], ACTIONS)
    assert np.abs(free[n:] - actions[n:]).max() > 1e-2  # the given actions do lead the rest


@pytest.mark.parametrize("config,name", FLOWS)
def test_bits_do_not_depend_on_how_it_runs(config, name):
    """Graphs or op by op, one observation after the other or side by side, again or for the first time."""
    a, b = observation(name, "a"), observation(name, "b")
    a = a | dict(images=[*a["images"], None])
    with load(config, name, "b", batch=3) as model:
        one, two = model.predict(**a), model.predict(**b)
        assert (model.predict(**a) == one).all()
        both = model.predict_batch([b, a])
        with pytest.raises(vivace.InvalidArgumentError, match="outside the 2 of the last"):
            model.normalized(2)
    assert (both[0] == two).all() and (both[1] == one).all()
    eager = _core.load_policy(str(FIXTURES / name), config=config, device=DEVICE, precision="f32", statistics="none", threads=2 * (DEVICE == "cpu"), num_views=3,
                              action_horizon=len(a["noise"]), num_steps=10, batch=3, eager=True)
    raw = eager.predict([dict(frames=b["images"], tokens=b["prompt"].tolist(), state=b["state"], noise=b["noise"], seed=0, end_token=1, action_prefix=None)])
    assert raw == two.tobytes()
    # A camera that is off counts as no camera.
    with load(config, name, "a") as model:
        close(model.predict(**observation(name, "a")), one, 2e-6)


@pytest.mark.skipif(DEVICE == "cpu", reason="shares of a GPU's multiprocessors")
def test_shares_of_a_device():
    given = observation("pi05_tiny", "a")
    from vivace import device

    whole = device.info()["sm_count"]
    with load("pi05", "pi05_tiny", "a") as model:
        want = model.predict(**given)
        assert model.report()["multiprocessors"] == whole
    share = 0.4
    with load("pi05", "pi05_tiny", "a", partition=share) as one, load("pi05", "pi05_tiny", "a", partition=share) as other:
        counts = [m.report()["multiprocessors"] for m in (one, other)]
        assert all(share * whole - 1 <= c < 0.6 * whole for c in counts) and sum(counts) <= whole
        assert (one.predict(**given) == want).all() and (other.predict(**given) == want).all()
        with pytest.raises(vivace.InvalidArgumentError, match="multiprocessors"):
            load("pi05", "pi05_tiny", "a", partition=share)
    with load("pi05", "pi05_tiny", "a", partition=0.9) as model:  # what two gave back
        assert (model.predict(**given) == want).all()


def test_profile():
    with load("pi05", "pi05_tiny", "a", num_steps=2) as model:
        launches = model.report()["action_launches"]
        seen = model.profile("actions", in_step=True)
        before = model.predict(**observation("pi05_tiny", "a"))
        assert (model.predict(**observation("pi05_tiny", "a")) == before).all() and (model.device_us() > 0) == (DEVICE != "cpu")
        counts = [sum(g["launches"] for g in model.profile(stage)["groups"]) for stage in ("context", "actions", "whole")]
        with pytest.raises(vivace.InvalidArgumentError, match="context, actions, whole"):
            model.profile("prefix")
    assert counts[0] + counts[1] == counts[2]
    assert len(seen["order"]) == sum(g["launches"] for g in seen["groups"]) <= launches and seen["step_us"] > 0
    assert all(g["us"] > 0 and g["in_step_us"] != 0 for g in seen["groups"])


def test_prompt_state_and_views_count():
    """Planted mistakes must show: another word, a swapped view, another state, another seed."""
    given = observation("pi0_tiny", "a")
    with load("pi0", "pi0_tiny", "a") as model:
        base = model.predict(**given)
        words = given["prompt"].copy()
        words[3] += 1
        state = given["state"].copy()
        state[1] += 0.1
        for other in (dict(prompt=words), dict(images=given["images"][::-1]), dict(state=state), dict(images=[given["images"][0], None])):
            assert np.abs(model.predict(**given | other) - base).max() > 1e-3
        seeded = [model.predict(**given | dict(noise=None, seed=s)) for s in (1, 2, 1)]
    assert (seeded[0] == seeded[2]).all() and np.abs(seeded[0] - seeded[1]).max() > 0.1


def test_noise_is_standard_normal():
    with load("pi05", "pi05_tiny", "a", action_horizon=1000, num_steps=1) as model:
        given = observation("pi05_tiny", "a") | dict(noise=None)
        seen = model.observe(**given, seed=3)
        noise = model.observe(**given | dict(seed=3))
    x = next(v for n, _, v in seen if n == "noise")
    assert abs(x.mean()) < 4 / np.sqrt(x.size) and abs(x.std() - 1) < 4 / np.sqrt(2 * x.size)
    assert (x == next(v for n, _, v in noise if n == "noise")).all()


SEEDED = np.float32([-1.2845248, -0.1814561, -0.24229194, 0.8049075])  # the first of seed 2026


def test_seeded_noise_is_the_same_everywhere():
    """Drawn from the seed and the place alone: these numbers on every machine, and of a longer chunk the first ones."""
    given = observation("pi05_tiny", "a") | dict(noise=None, seed=2026)

    def noise(**options):
        with load("pi05", "pi05_tiny", "a", num_steps=1, **options) as model:
            return next(v for n, _, v in model.observe(**given) if n == "noise")

    seen = noise()
    close(seen[0, :4], SEEDED, 0)
    assert (seen == noise(device="cpu", threads=2)).all() and (noise(action_horizon=30)[:len(seen)] == seen).all()


# ---- pi0-FAST ----

FAST = FIXTURES / "pi0_fast_tiny"
FAST_INPUTS = packed_tensors(FAST / "inputs.safetensors")
LOGITS = 2e-4


def fast_observation(case):
    """lerobot puts one BOS behind the prompt, which all of the prefix sees."""
    i = FAST_INPUTS
    views = [i["images_u8"][v] if on else None for v, on in zip(i[f"{case}.views"], i[f"{case}.view_mask"])]
    return dict(images=views, prompt=[*i[f"{case}.tokens"][i[f"{case}.token_mask"] > 0], 2])


def load_fast(case, path=FAST, **options):
    options = {"num_views": len(FAST_INPUTS[f"{case}.views"]), "max_action_tokens": 24, "statistics": "none", "precision": "f32", "device": DEVICE,
               "threads": 0 if DEVICE != "cpu" else 2, **options}
    return vivace.load_model(path, config="pi0fast", **options)


@pytest.mark.parametrize("precision", ["bf16", "fp8", "fp8_static"])
def test_codes_in_lower_precision(precision, tmp_path, monkeypatch):
    """The first logits, before greedy paths part, err no more than twice what float64 does when it is rounded likewise."""
    want, given = expected("pi0_fast_tiny", "a")["logits"][0], fast_observation("a")
    weights = {}
    for shard in FAST.glob("model-*.safetensors"):
        weights |= load_file(shard)
    on = np.stack(given["images"])
    close(Policy(weights).first_logits(on, given["prompt"]), want, 1e-5)  # the reference itself
    rounded = Policy(weights, arithmetic=Rounded(eight=precision != "bf16")).first_logits(on, given["prompt"])
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))
    with load_fast("a", precision=precision, calibration=[given] if precision == "fp8_static" else None, percentile=100.0) as model:
        got = next(v[0] for n, _, v in model.observe(**given, end_token=-1) if n == "logits")
    assert np.linalg.norm(got - want) <= 2 * np.linalg.norm(rounded - want)


@pytest.mark.parametrize("case", "ab")
def test_codes_match_lerobot(case):
    want, given = expected("pi0_fast_tiny", case), fast_observation(case)
    mask, token_mask = (FAST_INPUTS[f"{case}.{k}"] for k in ("view_mask", "token_mask"))
    with load_fast(case) as model:
        ids = model.tokens(**given, end_token=-1)
        ended = model.tokens(**given, end_token=int(want["end_token"][0]))
        seen = model.observe(**given, end_token=-1)
    assert ids == want["greedy_ids"].tolist()
    assert ended + [0] * (24 - len(ended)) == want["greedy_ids_with_end_token"].tolist()
    by = {(n, s): v for n, s, v in seen}
    on = by["image_tokens", -1].reshape(len(mask), 256, -1)
    for k, slot in enumerate(np.flatnonzero(mask)):
        close(on[k][want["image_rows"]], want["image_tokens"][slot], TOKENS)
    place = np.cumsum(np.concatenate([np.repeat(mask, 256), token_mask, [1]])) - 1
    assert (place[want["prefix_rows"]] == want["prefix_positions"]).all()
    last = max(s for n, s in by if n == "k_cache")
    for what, layer in (("first", 0), ("last", last)):
        for kv in "kv":
            close(by[f"{kv}_cache", layer][0][want["prefix_positions"]], want[f"{kv}_{what}"], KV)
    # Rows after the final norm are up to 50 in size.
    np.testing.assert_allclose(by["prefix_out", -1][want["prefix_positions"]], want["prefix_out"], rtol=1e-5, atol=2e-4)
    logits = [v[0] for n, _, v in seen if n == "logits"]
    assert len(logits) == 24
    for got, w in zip(logits, want["logits"]):
        close(got, w, LOGITS)
    for got, top, values in zip(logits, want["top5_ids"], want["top5_logits"]):
        close(got[top], values, LOGITS)


def test_codes_do_not_depend_on_company():
    a, b = fast_observation("a"), fast_observation("b")
    a["images"] = [*a["images"], None]
    with load_fast("b", batch=2) as model:
        one, two = (model.tokens(**o, end_token=-1) for o in (a, b))
        both = model._live.generate(model._observations("tokens", [dict(o, end_token=-1) for o in (b, a)]))
        assert model.tokens(**a, end_token=one[5]) == one[:6]  # and what an earlier run left behind plays no part
    assert both == [two, one]
    assert one == expected("pi0_fast_tiny", "a")["greedy_ids"].tolist()


@pytest.mark.parametrize("precision", ["f32", "bf16", "fp8"])
def test_codes_of_graphs_are_those_of_ops_one_by_one(precision):
    given = fast_observation("a")
    options = dict(config="pi0fast", device=DEVICE, precision=precision, statistics="none", threads=2 * (DEVICE == "cpu"), num_views=len(given["images"]), max_action_tokens=12)
    raw = dict(frames=given["images"], tokens=[int(t) for t in given["prompt"]], state=None, noise=None, seed=0, end_token=-1, action_prefix=None)
    captured, eager = (_core.load_policy(str(FAST), eager=e, **options) for e in (False, True))
    want = captured.generate([raw])
    assert len(want[0]) == 12 and eager.generate([raw]) == want and captured.generate([raw]) == want


CODECS = {c["name"]: c for c in json.loads((FIXTURES / "preprocess" / "config.json").read_text())["fast_codecs"]}


@pytest.mark.parametrize("name", CODECS)
def test_codec_matches_the_references(name):
    c, want = CODECS[name], load_file(PRE / "expected.safetensors")
    codec = _core.ActionCodec.open(str(packed_file(PRE / f"{name}.tokenizer.json")), c["scale"], c["min_token"])
    shape = c["time_horizon"], c["action_dim"]
    for i, length in enumerate(c["lengths"]):
        ids = want[f"{name}.ids_{i}"].tolist()
        assert len(ids) == length
        close(np.float32(codec.decode(ids, *shape)).reshape(shape), want[f"{name}.decoded_from_ids_{i}"], 1e-6)
    for which in ("short", "long"):
        for mode in ("relaxed", "strict"):
            got = codec.decode(want[f"{name}.{which}_ids"].tolist(), *shape, strict=mode == "strict")
            close(np.float32(got).reshape(shape), want[f"{name}.{which}_{mode}"], 1e-6)
    with pytest.raises(vivace.InvalidArgumentError, match="outside"):
        codec.decode([c["vocab_size"]], *shape)


def test_codes_become_actions(tmp_path):
    """Whatever the network writes: tokens below the reserved ones are codes, and the codec reads them."""
    shutil.copy(packed_file(PRE / "codec_a.tokenizer.json"), tmp_path / "tokenizer.json")
    (tmp_path / "processor_config.json").write_text(json.dumps({"scale": 10, "min_token": -354, "vocab_size": 2048}))
    given = fast_observation("a")
    with load_fast("a") as model:
        ids = model.tokens(**given, end_token=-1)
        with pytest.raises(vivace.FailedPreconditionError, match="codec="):
            model.predict(**given)
    with load_fast("a", codec=tmp_path, action_horizon=10) as model:
        actions = model.predict(**given)
    codec = _core.ActionCodec.open(str(tmp_path / "tokenizer.json"), 10, -354)
    end, size = ids.index(1) if 1 in ids else len(ids), len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"])
    codes = [2044 - 1 - 128 - t for t in ids[:end] if 0 <= 2044 - 1 - 128 - t < size]
    assert codes and (actions == np.float32(codec.decode(codes, 10, 32)).reshape(10, 32)).all()
    for name, text, error in (("processor_config.json", "{}", vivace.NotFoundError), ("tokenizer.json", '{"model": {"vocab": {"a": 3}}}', vivace.CorruptDataError)):
        old = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text)
        with pytest.raises(error):
            load_fast("a", codec=tmp_path)
        (tmp_path / name).write_text(old)


# ---- preprocessing ----

def test_lerobots_pictures_in_every_precision():
    """224 x 224 frames are the same in both flavours, but come as f32 or bf16 instead of u8."""
    given = observation("pi0_tiny", "a")
    for precision, bound in (("f32", 2e-5), ("bf16", 0.1)):
        with load("pi0", "pi0_tiny", "a", precision=precision, resize="lerobot") as one, load("pi0", "pi0_tiny", "a", precision=precision, resize="openpi") as other:
            close(one.predict(**given), other.predict(**given), bound)


def test_frames_of_any_size_reach_the_network():
    """The whole path: a large frame counts as its resized image, and strided rows as dense ones."""
    given = observation("pi0_tiny", "a")
    large = picture("480x640")
    small = resized(large[None], (1, 224, 224, 3), np.uint8)[0]
    wide = np.zeros((480, 700, 3), np.uint8)
    wide[:, :640] = large
    with load("pi0", "pi0_tiny", "a") as model:
        want = model.predict(**given | dict(images=[small, given["images"][1]]))
        for frame in (large, wide[:, :640]):
            assert (model.predict(**given | dict(images=[frame, given["images"][1]])) == want).all()


KINDS = {"mean_std": ("mean", "std"), "quantiles": ("q01", "q99"), "min_max": ("min", "max")}
NAMED = {("openpi", "mean_std"): "mean_std", ("openpi", "quantiles"): "quantile", ("lerobot", "mean_std"): "mean_std",
         ("lerobot", "quantiles"): "quantiles", ("lerobot", "min_max"): "min_max"}


@pytest.mark.parametrize("flavour,kind", NAMED)
@pytest.mark.parametrize("inverse", [False, True])
def test_normalisation_matches_the_references(flavour, kind, inverse):
    given = packed_tensors(PRE / "inputs.safetensors")
    low, high = (given[f"stats.{k}"].astype(float).tolist() for k in KINDS[kind])
    x = given["normalised" if inverse else "raw"]
    got = _core.scale_values(kind, flavour, low, high, x.ravel().tolist(), inverse)
    want = load_file(PRE / "expected.safetensors")[f"{flavour}.{NAMED[flavour, kind]}.{'unnormalise' if inverse else 'normalise'}"]
    # Relative to the terms that meet: what cancels keeps their absolute error.
    np.testing.assert_allclose(np.float32(got).reshape(x.shape), want, rtol=1e-6, atol=1e-6)


# ---- statistics ----

STATS = {"mean": [0.5, -1.0, 2.0], "std": [0.25, 2.0, 0.5], "q01": [-1.0, -2.0, 1.0], "q99": [1.0, 3.0, 4.0]}


def with_statistics(tmp_path, name, stats=STATS, at="assets/lab/arm"):
    for f in (FIXTURES / name).glob("*"):
        if f.name.startswith(("model", "config")):
            shutil.copy(f, tmp_path)
    folder = tmp_path / at
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "norm_stats.json").write_text(json.dumps({"norm_stats": {"state": stats, "actions": stats}}))
    return tmp_path


def test_actions_come_in_the_robots_units(tmp_path):
    path = with_statistics(tmp_path, "pi0_tiny")
    given = observation("pi0_tiny", "a") | dict(state=[0.6, -1.5, 2.5])
    mean, std = np.float32(STATS["mean"]), np.float32(STATS["std"])
    with load("pi0", "pi0_tiny", "a", path, statistics="auto", delta=[True, False, True]) as model:
        actions, raw = model.predict(**given), model.normalized()
        assert model.report()["robot_dim"] == 3 and actions.shape == (10, 3)
    np.testing.assert_allclose(actions, raw[:, :3] * std + mean + np.float32([0.6, 0, 2.5]), rtol=1e-5, atol=1e-5)
    with load("pi0", "pi0_tiny", "a") as plain:
        normal = np.zeros(32, np.float32)
        normal[:3] = (np.float32(given["state"]) - mean) / (std + 1e-6)
        close(plain.predict(**given | dict(state=normal)), raw, 1e-5)


def test_lerobot_processors(tmp_path):
    for f in (FIXTURES / "pi05_tiny").glob("model*"):
        shutil.copy(f, tmp_path)
    config = json.loads((FIXTURES / "pi05_tiny" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"type": "pi05", "chunk_size": 10, "max_action_dim": 32, "max_state_dim": 32}))
    for which, step in (("pre", "normalizer"), ("post", "unnormalizer")):
        name = f"policy_{which}processor"
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, "steps": [
            {"registry_name": "device_processor", "config": {}},
            {"registry_name": f"{step}_processor", "config": {"eps": 1e-8, "norm_map": {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES"}},
             "state_file": f"{name}_step_1.safetensors"}]}))
        save_file({f"{f}.{k}": np.float32(v) for f in ("observation.state", "action") for k, v in STATS.items()}, tmp_path / f"{name}_step_1.safetensors")
    with load("pi05", "pi05_tiny", "a", tmp_path, statistics="auto") as model:
        assert model.report()["resize"] == "lerobot"
        actions, raw = model.predict(**observation("pi05_tiny", "a")), model.normalized()
    q01, q99 = np.float32(STATS["q01"]), np.float32(STATS["q99"])
    np.testing.assert_allclose(actions, (raw[:, :3] + 1) * (q99 - q01) / 2 + q01, rtol=1e-6, atol=1e-6)


def test_bad_statistics_are_refused(tmp_path):
    with pytest.raises(vivace.NotFoundError, match="norm_stats.json"):
        load("pi05", "pi05_tiny", "a", statistics="auto")
    path = with_statistics(tmp_path, "pi05_tiny", STATS | {"q99": [1.0, -2.0, 4.0]})
    with pytest.raises(vivace.InvalidArgumentError, match="dimension 1 never moved"):
        load("pi05", "pi05_tiny", "a", path, statistics="auto")
    with_statistics(tmp_path, "pi05_tiny", at="assets/lab/other")
    with pytest.raises(vivace.InvalidArgumentError, match="lab/arm, lab/other"):
        load("pi05", "pi05_tiny", "a", path, statistics="auto")
    with load("pi05", "pi05_tiny", "a", path, statistics="auto", robot="lab/other") as model:
        assert model.report()["robot_dim"] == 3
    with_statistics(tmp_path, "pi05_tiny", STATS | {"q99": [1.0, 3.0]}, at="assets/lab/other")
    with pytest.raises(vivace.CorruptDataError, match="q01"):
        load("pi05", "pi05_tiny", "a", path, statistics="auto", robot="lab/other")


# ---- bad input ----

@pytest.fixture(scope="module")
def pi0():
    with load("pi0", "pi0_tiny", "a", prompt_tokens=16) as model:
        yield model


NAN = np.float32([np.nan] * 32)
BAD = {
    "views": (dict(images=[None]), vivace.InvalidArgumentError, "each of 2 cameras, got 1"),
    "no_view": (dict(images=[None, None]), vivace.InvalidArgumentError, "no camera is on"),
    "frame_dtype": (dict(images=[np.zeros((8, 8, 3), np.float32), None]), vivace.InvalidDTypeError, "u8, got f32"),
    "frame_nan": (dict(images=[np.full((8, 8, 3), np.nan, np.float32), None]), vivace.InvalidDTypeError, "u8, got f32"),
    "frame_shape": (dict(images=[np.zeros((3, 8, 8), np.uint8), None]), vivace.InvalidShapeError, "height, width, 3"),
    "frame_empty": (dict(images=[np.zeros((0, 8, 3), np.uint8), None]), vivace.InvalidShapeError, "0 x 8"),
    "state_missing": (dict(state=None), vivace.InvalidArgumentError, "reads the state"),
    "state_size": (dict(state=np.zeros(33, np.float32)), vivace.InvalidShapeError, "33 values"),
    "state_nan": (dict(state=NAN), vivace.InvalidArgumentError, "state is not finite"),
    "noise_nan": (dict(noise=np.full((10, 32), np.inf, np.float32)), vivace.InvalidArgumentError, "noise is not finite"),
    "noise_shape": (dict(noise=np.zeros((9, 32), np.float32)), vivace.InvalidShapeError, "noise"),
    "token": (dict(prompt=[2, 2044]), vivace.InvalidArgumentError, "token 2044"),
    "prompt_long": (dict(prompt=[1] * 17), vivace.LimitExceededError, "17 tokens, at most 16"),
    "prompt_none": (dict(prompt=None), vivace.InvalidArgumentError, "prompt"),
    "prompt_text": (dict(prompt="reach"), vivace.NotFoundError, "tokenizer"),
    "action_prefix": (dict(action_prefix=np.zeros((2, 32), np.float32)), vivace.UnsupportedError, "only pi05"),
    "seed": (dict(noise=None, seed=-1), vivace.InvalidArgumentError, "seed"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_observations(pi0, what):
    given = observation("pi0_tiny", "a")
    good = pi0.predict(**given)
    change, error, words = BAD[what]
    with pytest.raises(error, match=words):
        pi0.predict(**given | change)
    if what not in ("prompt_none", "prompt_text", "seed", "frame_dtype", "frame_nan", "frame_shape"):  # found before the network was asked
        with pytest.raises(vivace.FailedPreconditionError):
            pi0.normalized()
    assert (pi0.predict(**given) == good).all()


def test_bad_loads(tmp_path):
    with pytest.raises(vivace.InvalidArgumentError, match="those of pi05"):
        load("pi0", "pi05_tiny", "a")
    with pytest.raises(vivace.InvalidArgumentError, match="those of pi0;"):
        load("pi05", "pi0_tiny", "a")
    with pytest.raises(vivace.InvalidArgumentError, match="pi05, pi0, pi0fast, smolvla, groot_n16, groot_n17, got 'pi7'"):
        load("pi7", "pi05_tiny", "a")
    with pytest.raises(vivace.InvalidArgumentError, match="is of no policy"):
        load("pi05", "pi05_tiny", "a", FIXTURES.parent / "tiny" / "llama_untied")
    for option, value in (("precision", "q8"), ("num_views", 99), ("num_steps", -1), ("batch", 0), ("resize", "nearest"), ("statistics", "some"), ("device", "tpu"), ("threads", -3), ("threads", 5000)):
        with pytest.raises(vivace.InvalidArgumentError):
            load("pi05", "pi05_tiny", "a", **{option: value})
    for share in (-0.5, 0.0, 1.0, float("nan")):
        with pytest.raises(vivace.InvalidArgumentError, match="partition"):
            load("pi05", "pi05_tiny", "a", partition=share)
    with pytest.raises(vivace.UnsupportedError, match="partition"):
        load("pi05", "pi05_tiny", "a", device="cpu", partition=0.5)
    with pytest.raises(vivace.InvalidArgumentError, match="only precision='fp8_static'"):
        load("pi05", "pi05_tiny", "a", precision="bf16", calibration=[])
    with pytest.raises(vivace.InvalidArgumentError, match="no option 'num_view'"):
        vivace.load_model(FIXTURES / "pi05_tiny", num_view=3)
    weights = {}
    for shard in (FIXTURES / "pi05_tiny").glob("model-*.safetensors"):
        weights |= load_file(shard)
    shutil.copy(FIXTURES / "pi05_tiny" / "config.json", tmp_path)
    gone = "paligemma_with_expert.gemma_expert.model.layers.2.mlp.down_proj.weight"
    save_file({k: v for k, v in weights.items() if k != gone}, tmp_path / "model.safetensors")
    with pytest.raises(vivace.NotFoundError, match=gone):
        load("pi05", "pi05_tiny", "a", tmp_path)
    save_file(weights | {gone: weights[gone][:, :32].copy()}, tmp_path / "model.safetensors")
    with pytest.raises(vivace.InvalidShapeError, match=gone):
        load("pi05", "pi05_tiny", "a", tmp_path)


def test_a_closed_policy():
    with load("pi05", "pi05_tiny", "a") as model:
        pass
    with pytest.raises(vivace.ClosedError):
        model.predict(**observation("pi05_tiny", "a"))
