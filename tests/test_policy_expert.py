"""pi0.5 whose action expert reads 8 bits: expert="e4m3" of "fp8_static". Its error, its bits, its scales, and what the arm of the demo makes of it."""
import json

import numpy as np
import pytest

import vivace
from tests.reference.policy_numpy import Rounded
from tests.test_demo import THREADS
from tests.test_demo import observation as arm_observation
from tests.test_policy import DEVICE, FIXTURES, exact, gated, load, observation, references, velocities  # noqa: F401
from vivace import _core
from vivace.demo import reach

PLACES, EXPERT = 3 + 4 * (2 + 4), 4 * 4  # of vision and language model; of the expert
E4M3 = dict(precision="fp8_static", expert="e4m3", percentile=100.0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))


def norm(x):
    return float(np.linalg.norm(x))


@pytest.mark.parametrize("case", "ab")
def test_error_of_the_velocity(gated, references, case):  # noqa: F811
    """No more than twice what float64 errs by that is rounded as the plan says: by rows of h (1 + scale) in e4m3 of one scale for all, where
    the reference has normalised rows of a scale each, since e4m3 is a float format."""
    given, right = observation("pi05_tiny", case), np.stack(references[case, "f32"][0])
    rounded = np.stack(exact(gated, case, Rounded(eight=True, expert=True))[0])
    seen = {}
    for expert in ("bf16", "e4m3"):
        with load("pi05", "pi05_tiny", case, gated, **E4M3 | dict(expert=expert), calibration=[given]) as model:
            seen[expert] = velocities(model.observe(**given), given["noise"], 10)
            report = model.report()
            assert set(report["forms"]["expert"].values()) == {expert} and report["activations_to_e4m3"] == "calibrated"
    error = {k: norm(v - right) / norm(right) for k, v in seen.items()}
    assert error["bf16"] < error["e4m3"] <= 2 * norm(rounded - right) / norm(right), error


def raw(given, **more):
    return dict(frames=given["images"], tokens=[int(t) for t in given["prompt"]], state=None, noise=given["noise"], seed=0, end_token=1, action_prefix=None) | more


def scales_of(path, given, precision="bf16", **options):
    with load("pi05", "pi05_tiny", "a", path, precision=precision, expert="e4m3", **options) as model:
        return model.calibrate([given])


@pytest.mark.parametrize("horizon, batch", [(10, 1), (10, 7), (1, 1)])
def test_bits_do_not_depend_on_how_it_runs(gated, horizon, batch):  # noqa: F811
    """Norms behind products (10 rows and one), before them (70 rows, and actions that are given): captured as op by op, and whatever ran before."""
    given = observation("pi05_tiny", "a")
    given["noise"] = np.ascontiguousarray(given["noise"][:horizon])
    options = dict(config="pi05", device=DEVICE, precision="fp8_static", expert="e4m3", statistics="none", threads=2 * (DEVICE == "cpu"), num_views=len(given["images"]), action_horizon=horizon, num_steps=2, batch=batch,
                   act_scales=scales_of(gated, given, action_horizon=horizon))
    captured, eager = (_core.load_policy(str(gated), eager=e, **options) for e in (False, True))
    plain, led = raw(given), raw(given, action_prefix=np.ascontiguousarray(given["noise"][:3] / 2) if horizon > 1 else None)
    want, other = captured.predict([plain]), captured.predict([led])
    assert (want != other) == (horizon > 1)
    for model in (captured, eager):
        assert model.predict([plain]) == want and model.predict([led]) == other and model.predict([plain]) == want


def test_forms_of_its_rows_agree(gated):  # noqa: F811
    """One observation alone has its norms behind its products, beside six others before them, in e4m3 by a scale a row: within what 8 bits make of either."""
    given = observation("pi05_tiny", "a")
    options = E4M3 | dict(calibration=[given], path=gated)
    with load("pi05", "pi05_tiny", "a", **options) as one, load("pi05", "pi05_tiny", "a", **options, batch=7) as several, load("pi05", "pi05_tiny", "a", path=gated) as f32:
        want, alone, beside = f32.predict(**given), one.predict(**given), several.predict(**given)
    assert (alone != beside).any() and norm(alone - want) <= 0.1 * norm(want) and norm(beside - want) <= 0.1 * norm(want), (norm(alone - want) / norm(want), norm(beside - want) / norm(want))


def test_scales(gated):  # noqa: F811
    """Four a layer of the expert behind all others, which stay what they are; the same of any plan that rounds nothing to 8 bits, batch and horizon; and read at run time."""
    given = observation("pi05_tiny", "a")
    with load("pi05", "pi05_tiny", "a", gated, precision="bf16") as model:
        others = model.calibrate([given])
    scales = scales_of(gated, given)
    assert len(others) == PLACES and len(scales) == PLACES + EXPERT and scales[:PLACES] == others and min(scales) > 0
    assert 1.0 not in scales[PLACES:]  # every one of them was reached
    for precision, options in (("f32", {}), ("bf16", dict(batch=7)), ("bf16", dict(batch=3))):
        np.testing.assert_allclose(scales_of(gated, given, precision, **options)[PLACES:], scales[PLACES:], rtol=0.05)
    led = scales_of(gated, given | dict(action_prefix=given["noise"][:3]))
    np.testing.assert_allclose(led[PLACES:], scales[PLACES:], rtol=0.5)
    options = dict(config="pi05", device=DEVICE, precision="fp8_static", statistics="none", threads=2 * (DEVICE == "cpu"), num_views=len(given["images"]), action_horizon=10, num_steps=2)
    model = _core.load_policy(str(gated), act_scales=scales, expert="e4m3", **options)
    first = model.predict([raw(given)])
    for place in range(PLACES, PLACES + EXPERT):
        model.set_act_scales([s / 64 if i == place else s for i, s in enumerate(scales)])
        assert model.predict([raw(given)]) != first, place - PLACES
    model.set_act_scales(scales)
    assert model.predict([raw(given)]) == first
    for expert, given_scales, wanted in (("e4m3", others, PLACES + EXPERT), ("bf16", scales, PLACES)):
        with pytest.raises(vivace.InvalidArgumentError, match=f"act_scales: precision fp8_static takes {wanted} of them"):
            _core.load_policy(str(gated), act_scales=given_scales, expert=expert, **options)


def test_the_default_is_what_it_was(gated, tmp_path):  # noqa: F811
    """Also where kept scales are found: those of "bf16" serve loads that do not say it."""
    given = observation("pi05_tiny", "a")
    actions = []
    for options in (dict(), dict(expert="bf16"), dict(expert="e4m3")):
        with load("pi05", "pi05_tiny", "a", gated, precision="fp8_static", calibration=[given], percentile=100.0, **options) as model:
            actions.append(model.predict(**given))
    assert (actions[0] == actions[1]).all() and (actions[0] != actions[2]).any()
    kept = [json.loads(p.read_bytes().partition(b"\n")[2])["act_scales"] for p in (tmp_path / "models" / "calibration").glob("policy-*.json")]
    assert sorted(map(len, kept)) == [PLACES, PLACES + EXPERT]


def test_recalibrated(gated):  # noqa: F811
    given = observation("pi05_tiny", "a")
    other = given | dict(images=[None if i is None else np.uint8(i // 8) for i in given["images"]], noise=given["noise"] * 2)
    with load("pi05", "pi05_tiny", "a", gated, **E4M3, calibration=[other]) as model:
        want = model.predict(**given)
    with load("pi05", "pi05_tiny", "a", gated, **E4M3, calibration=[given]) as model:
        assert (model.predict(**given) != want).any()
        model.recalibrate([other])
        assert (model.predict(**given) == want).all()


@pytest.mark.parametrize("config, name, options, says", [
    ("pi05", "pi05_tiny", dict(expert="fp8"), "expert: wanted bf16 or e4m3, got 'fp8'"), ("pi05", "pi05_tiny", dict(expert="e4m3", precision="fp8"), "expert: e4m3 takes its scales from calibration; load with precision fp8_static, got fp8"),
    ("pi05", "pi05_tiny", dict(expert=8), "expert"), ("pi0", "pi0_tiny", dict(expert="e4m3", precision="bf16"), "expert: pi0 has bf16 alone; only pi05 takes e4m3")])
def test_bad_options(config, name, options, says):
    with pytest.raises(vivace.InvalidArgumentError, match=says):
        load(config, name, "a", **options)


def test_codes_have_no_expert():
    with pytest.raises(vivace.InvalidArgumentError, match="expert: pi0fast has bf16 alone"):
        vivace.load_model(FIXTURES / "pi0_fast_tiny", config="pi0fast", device=DEVICE, statistics="none", num_views=2, expert="e4m3")


def test_the_arm_of_the_demo_reaches():
    """A trained policy: velocities near those of f32, and moves that arrive."""
    given = [arm_observation(seed) | dict(seed=seed) for seed in range(8)]
    actions, reached = {}, {}
    for name, options in (("f32", dict(precision="f32")), ("bf16", E4M3 | dict(expert="bf16", calibration=given)), ("e4m3", E4M3 | dict(calibration=given))):
        with reach.load(DEVICE, threads=THREADS, **options) as policy:
            actions[name] = np.stack([policy.predict(**arm_observation(seed), seed=seed) for seed in range(100, 108)])
            if name == "e4m3":
                reached = [e.reached for e in reach.run(policy, range(12))[0]]
    error = {k: norm(v - actions["f32"]) / norm(actions["f32"]) for k, v in actions.items()}
    print(error, sum(reached))
    assert error["e4m3"] <= 0.1 and sum(reached) >= 11, (error, reached)
