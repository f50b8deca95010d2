"""No number that is not finite reaches a robot: broken weights, statistics and inputs give an error, and no action."""
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vivace
from tests.packed import packed_file
from tests.test_policy import FAST, FIXTURES, PRE, STATS, fast_observation, load, load_fast, observation, with_statistics

HUGE = [1.1e30, 3e38, 1e39, 1e150, 1e308]  # the first that is refused, and those of the audit: f32's end and beyond
FLOWS = {"pi05": ("pi05_tiny", ("q01", "q99")), "pi0": ("pi0_tiny", ("mean", "std"))}


def codec(folder, scale=10):
    folder.mkdir(exist_ok=True)
    shutil.copy(packed_file(PRE / "codec_a.tokenizer.json"), folder / "tokenizer.json")
    (folder / "processor_config.json").write_text(json.dumps({"scale": scale, "min_token": -354, "vocab_size": 2048}))
    return folder


def loaded(family, path, tmp_path, **options):
    if family == "pi0fast":
        return load_fast("a", path, codec=codec(tmp_path / "codec"), action_horizon=10, **options)
    return load(family, FLOWS[family][0], "a", path, **options)


def with_fast_statistics(tmp_path, stats):
    for f in FAST.glob("*"):
        if f.name.startswith(("model", "config")):
            shutil.copy(f, tmp_path)
    (tmp_path / "norm_stats.json").write_text(json.dumps({"norm_stats": {"state": stats, "actions": stats}}))
    return tmp_path


def statistics_of(family, tmp_path, stats):
    return with_fast_statistics(tmp_path, stats) if family == "pi0fast" else with_statistics(tmp_path, FLOWS[family][0], stats)


@pytest.mark.parametrize("value", [*HUGE, -3e38, -1e308])
@pytest.mark.parametrize("family", ["pi05", "pi0", "pi0fast"])
def test_statistics_beyond_f32_are_refused(family, value, tmp_path):
    """Each of the two numbers of a dimension: infinite once they are f32, or once they meet an action."""
    for which in {"pi05": ("q01", "q99"), "pi0": ("mean", "std"), "pi0fast": ("q01", "q99")}[family]:
        if which == "std" and value < 0 or (which == "q01") != (value < 0) and which.startswith("q"):
            continue  # a range below zero has its own error
        path = statistics_of(family, tmp_path, STATS | {which: [*STATS[which][:1], value, *STATS[which][2:]]})
        with pytest.raises(vivace.CorruptDataError, match="dimension 1 .*f32 does not hold"):
            loaded(family, path, tmp_path, statistics="auto")


def test_statistics_of_lerobot_beyond_f32_are_refused(tmp_path):
    for f in (FIXTURES / "pi05_tiny").glob("model*"):
        shutil.copy(f, tmp_path)
    config = json.loads((FIXTURES / "pi05_tiny" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"type": "pi05", "chunk_size": 10, "max_action_dim": 32, "max_state_dim": 32}))
    for mode, names in (("QUANTILES", ("q01", "q99")), ("MIN_MAX", ("min", "max")), ("MEAN_STD", ("mean", "std"))):
        for which, step in (("pre", "normalizer"), ("post", "unnormalizer")):
            name = f"policy_{which}processor"
            (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, "steps": [{"registry_name": f"{step}_processor", "state_file": f"{name}.safetensors",
                                                                                         "config": {"norm_map": {"STATE": mode, "ACTION": mode}}}]}))
            high = np.float32([1, 1, 3e38])
            save_file({f"{f}.{k}": v for f in ("observation.state", "action") for k, v in ((names[0], -high if mode != "MEAN_STD" else high), (names[1], high))}, tmp_path / f"{name}.safetensors")
        with pytest.raises(vivace.CorruptDataError, match="dimension 2 .*f32 does not hold"):
            load("pi05", "pi05_tiny", "a", tmp_path, statistics="auto")


def broken_weights(source, tmp_path, name, value):
    weights = {}
    for shard in source.glob("model-*.safetensors"):
        weights |= load_file(shard)
    full = next(k for k in weights if k.endswith(name))
    shutil.copy(source / "config.json", tmp_path)
    save_file(weights | {full: np.broadcast_to(np.asarray(value, weights[full].dtype), weights[full].shape).copy()}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_dimension_that_the_robot_lacks_counts_too(tmp_path):
    """normalized() hands all of the network's actions back for the next chunk's action_prefix=."""
    path = with_statistics(broken_weights(FIXTURES / "pi0_tiny", tmp_path, "action_out_proj.bias", np.float32([0.0] * 31 + [np.nan])), "pi0_tiny")
    without_shards(tmp_path)
    with load("pi0", "pi0_tiny", "a", path, statistics="auto", num_steps=1) as model:
        with pytest.raises(vivace.CorruptDataError, match="network's actions are not finite"):
            model.predict(**observation("pi0_tiny", "a") | dict(state=[0.6, -1.5, 2.5]))


def without_shards(folder):
    for file in [*folder.glob("model-*"), *folder.glob("*.index.json")]:
        file.unlink()


@pytest.mark.parametrize("family", ["pi05", "pi0", "pi0fast"])
def test_weights_that_are_not_finite_give_no_action(family, tmp_path):
    source = FAST if family == "pi0fast" else FIXTURES / FLOWS[family][0]
    given = fast_observation("a") if family == "pi0fast" else observation(FLOWS[family][0], "a")
    path = broken_weights(source, tmp_path, "language_model.norm.weight" if family == "pi0fast" else "action_out_proj.bias", np.nan)
    with loaded(family, path, tmp_path) as model:
        with pytest.raises(vivace.CorruptDataError, match="no action was given"):
            model.predict(**given)
        with pytest.raises(vivace.FailedPreconditionError):
            model.normalized()
        if family == "pi0fast":
            with pytest.raises(vivace.CorruptDataError, match="logits are NaN"):
                model.tokens(**given)


@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_finite_actions_that_overflow_in_the_robots_units_give_none(family, tmp_path):
    """The network's are finite, statistics are sane, and what would leave is infinite: the last check is on what leaves."""
    name = FLOWS[family][0]
    path = with_statistics(tmp_path, name)
    given = observation(name, "a") | dict(state=[0.6, -1.5, 2.5])
    largest = np.zeros_like(given["noise"])
    with load(family, name, "a", path, statistics="auto") as model:
        good = model.predict(**given)
    broken_weights(FIXTURES / name, tmp_path, "action_out_proj.bias", 3e38)
    without_shards(tmp_path)
    with load(family, name, "a", path, statistics="auto", num_steps=1) as model:
        with pytest.raises(vivace.CorruptDataError, match="dimension 1: .* in the robot's units.*no action"):
            model.predict(**given | dict(noise=largest))
        with pytest.raises(vivace.FailedPreconditionError):
            model.normalized()
    assert np.isfinite(good).all()


def test_a_step_from_the_state_that_overflows_is_refused(tmp_path):
    """The statistics are the largest that are taken, the network's actions a thousand: neither leaves f32, the sum does."""
    path = with_statistics(broken_weights(FIXTURES / "pi05_tiny", tmp_path, "action_out_proj.bias", 1e3), "pi05_tiny", STATS | {"q01": [-1e30] * 3, "q99": [1e30] * 3})
    without_shards(tmp_path)
    given = observation("pi05_tiny", "a")
    top = float(np.finfo(np.float32).max)
    with load("pi05", "pi05_tiny", "a", path, statistics="auto", delta=[True, True, True]) as model:
        with pytest.raises(vivace.CorruptDataError, match="robot's units"):
            for sign in (1, -1):  # a step of either sign leaves f32 from one of the two
                model.predict(**given | dict(state=[sign * top] * 3))
        assert np.isfinite(model.predict(**given | dict(state=[1.0, 2.0, 3.0]))).all()


def test_a_state_that_overflows_once_it_is_normalised_is_the_callers(tmp_path):
    path = with_statistics(tmp_path, "pi0_tiny", STATS | {"std": [1e-6, 2.0, 0.5]})
    with load("pi0", "pi0_tiny", "a", path, statistics="auto") as model:
        with pytest.raises(vivace.InvalidArgumentError, match="state: value 0 is 3e\\+38"):
            model.predict(**observation("pi0_tiny", "a") | dict(state=[3e38, 0, 0]))


def test_calibration_sees_values_that_are_not_finite(tmp_path):
    """The largest magnitude of NaN and numbers was a number: scales of a broken checkpoint looked sound."""
    path = broken_weights(FIXTURES / "pi05_tiny", tmp_path, "multi_modal_projector.linear.bias", np.nan)
    with load("pi05", "pi05_tiny", "a", path) as model:
        with pytest.raises(vivace.CorruptDataError, match="calibrate: .*not finite"):
            model.calibrate([observation("pi05_tiny", "a")])


@pytest.mark.parametrize("scale", [1e-300, 1e-40])
def test_a_codec_beyond_f32_is_refused(scale, tmp_path):
    with pytest.raises(vivace.InvalidArgumentError, match="scale"):
        load_fast("a", codec=codec(tmp_path / "codec", scale))
