"""GR00T between a robot's units and the network's: statistics, relative actions, named cameras, tasks as text, the policy host. Of the network itself: test_groot.py."""
import json
import shutil

import numpy as np
import pytest

import vivace
from tests.test_groot import DEVICE, FIXTURE, IMAGE, load, observation
from tests.test_policy_host import Robot
from vivace import _core, cli

RNG = np.random.default_rng(5)
STATE, ACTION = {"arm": 3, "hand": 2}, {"arm": 3, "hand": 2, "base": 1}
IDS = {"<|image_pad|>": IMAGE, "<|vision_start|>": 502, "<|vision_end|>": 503, "<|im_start|>": 504, "<|im_end|>": 505}


def ranges(groups, rows=None):
    """Every statistic of each group; one dimension of the hand never moved."""
    out = {}
    for name, n in groups.items():
        low = RNG.uniform(-2, 0, (rows, n) if rows else n)
        high = low + RNG.uniform(0.5, 3, low.shape)
        if name == "hand":
            high[..., -1] = low[..., -1]
        out[name] = {"min": low, "max": high, "q01": low + 0.1 * (high - low), "q99": high - 0.2 * (high - low), "mean": (low + high) / 2, "std": high - low}
    return out


def plain(tree):
    return {k: plain(v) if isinstance(v, dict) else v.tolist() for k, v in tree.items()}


ROBOT = {"state": ranges(STATE), "action": ranges(ACTION), "relative_action": ranges({"arm": 3}, rows=6)}


def folder(tmp_path, *, statistics=None, ids={"one": 1, "two": 2, "also_two": 2}, modality=None, fixture=FIXTURE, **options):
    """The fixture beside a processor's files: of "one", and of what `statistics` adds."""
    path = tmp_path / "checkpoint"
    shutil.copytree(fixture, path)
    modality = modality or {"state": {"modality_keys": list(STATE)}, "action": {"modality_keys": list(ACTION), "delta_indices": list(range(8))}, "video": {"modality_keys": ["front", "wrist"], "delta_indices": [0]}}
    robots = statistics if statistics is not None else {"one": plain(ROBOT)}
    (path / "statistics.json").write_text(json.dumps(robots))
    (path / "processor_config.json").write_text(json.dumps({"processor_kwargs": {"modality_configs": {name: modality for name in robots}, **options}}))
    if ids is not None:
        (path / "embodiment_id.json").write_text(json.dumps(ids))
    return path


def relative_modality(**more):
    configs = [{"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None} | more, {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT"}, {"rep": "ABSOLUTE"}]
    return {"state": {"modality_keys": list(STATE)}, "action": {"modality_keys": list(ACTION), "action_configs": configs, "delta_indices": list(range(8))}}


def joined(of, low, high, groups):
    return (np.concatenate([np.atleast_2d(of[g][k]) for g in groups], -1).astype(np.float32) for k in (low, high))


def reals(**more):
    given = observation("d", slots=2)
    for name in ("prev_actions", "overlap", "frozen", "embodiment"):
        given.pop(name)
    return given | {"state": np.float32([0.1, -0.5, 0.2, -1.0, 0.3])} | more


@pytest.mark.parametrize("percentiles,clip", [(False, True), (True, True), (True, False)])
def test_units(tmp_path, percentiles, clip):
    """As lerobot: least and largest, or percentiles, to [-1, 1]; a dimension that never moved is 0."""
    path = folder(tmp_path, use_percentiles=percentiles, clip_outliers=clip)
    low, high = (v[0] for v in joined(ROBOT["state"], *(("q01", "q99") if percentiles else ("min", "max")), STATE))
    given = reals(state=np.float32([0.1, -9, 0.2, -1.0, 7]))
    with load(path, statistics="auto", num_views=0) as robot, load(embodiment=1, num_views=2) as network:
        facts = robot.report()
        assert (facts["embodiment"], facts["embodiment_name"], facts["num_views"], facts["cameras"], facts["state_dim"], facts["robot_dim"]) == (1, "one", 2, ["front", "wrist"], 5, 6)
        moved = high != low
        normal = np.where(moved, 2 * (given["state"] - low) / np.where(moved, high - low, 1) - 1, 0).astype(np.float32)
        normal = normal.clip(-1, 1) if clip else normal
        got = robot.predict(**given)
        want = network.predict(**given | {"state": normal})
        low, high = joined(ROBOT["action"], *(("q01", "q99") if percentiles else ("min", "max")), ACTION)
        np.testing.assert_allclose(got, (want[:, :6].clip(-1, 1) + 1) * np.float32(0.5) * (high - low) + low, rtol=0, atol=2e-5)
        assert got.shape == (8, 6) and robot.normalized().shape == (8, 20)
        np.testing.assert_allclose(robot._live.normalize_state(given["state"].tolist()), normal, atol=1e-6)


def embedded(state, action=(), **lists):
    return {"state": {"modality_keys": list(state)} | lists, "action": {"modality_keys": list(ACTION), "mean_std_embedding_keys": list(action)}}


@pytest.mark.parametrize("sines", [True, False])
def test_sines_and_deviations(tmp_path, sines):
    """Groups that go as sines, then cosines, where the processor says so, and those that are counted in deviations, whose values nothing cuts; a deviation of 0 leaves them."""
    path = folder(tmp_path, apply_sincos_state_encoding=sines, modality=embedded(STATE, action=["arm", "hand"], sin_cos_embedding_keys=["arm"], mean_std_embedding_keys=["hand"]))
    given = reals(state=np.float32([0.1, -0.5, 2.2, 9.0, 0.3]))
    arm, hand = given["state"][:3], given["state"][3:]
    of = ROBOT["state"]
    low, high = (np.float32(of["arm"][k]) for k in ("min", "max"))
    state = [*np.sin(arm), *np.cos(arm)] if sines else (2 * (arm - low) / (high - low) - 1).clip(-1, 1).tolist()
    mean, std = (np.float32(of["hand"][k]) for k in ("mean", "std"))
    state = np.float32([*state, (hand[0] - mean[0]) / std[0], hand[1]])
    with load(path, statistics="auto", num_views=2) as robot, load(embodiment=1, num_views=2) as network:
        assert robot.report()["state_dim"] == 5
        got, raw = robot.predict(**given), network.predict(**given | {"state": state})[:, :6]
        np.testing.assert_allclose(robot._live.normalize_state(given["state"].tolist()), state, atol=1e-6)
        of, want = ROBOT["action"], raw.copy()
        for first, group in ((0, "arm"), (3, "hand")):
            mean, std = (np.float32(of[group][k]) for k in ("mean", "std"))
            part = raw[:, first:first + len(mean)]
            want[:, first:first + len(mean)] = np.where(std == 0, part, part * std + mean)
        low, high = (np.float32(of["base"][k]) for k in ("min", "max"))
        want[:, 5:] = (raw[:, 5:].clip(-1, 1) + 1) * np.float32(0.5) * (high - low) + low
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)


def test_relative_actions(tmp_path):
    """Steps from the state, with a range for each action of a chunk, of which there are six: so many come out."""
    path = folder(tmp_path, use_relative_action=True, use_percentiles=True, modality=relative_modality())
    given = reals()
    with load(path, statistics="auto", num_views=2) as robot, load(embodiment=1, num_views=2) as network:
        assert (robot.report()["action_horizon"], robot.report()["network_horizon"]) == (6, 8)
        got = robot.predict(**given)
        low, high = (v[0] for v in joined(ROBOT["state"], "q01", "q99", STATE))
        moved = high != low
        want = network.predict(**given | {"state": np.where(moved, 2 * (given["state"] - low) / np.where(moved, high - low, 1) - 1, 0).clip(-1, 1).astype(np.float32)})[:6, :6].clip(-1, 1)
        steps = ROBOT["relative_action"]["arm"]
        arm = (want[:, :3] + 1) * 0.5 * (steps["max"] - steps["min"]) + steps["min"] + given["state"][:3]
        low, high = joined({g: ROBOT["action"][g] for g in ("hand", "base")}, "q01", "q99", ("hand", "base"))
        np.testing.assert_allclose(got, np.concatenate([arm, (want[:, 3:] + 1) * 0.5 * (high - low) + low], 1), rtol=0, atol=2e-5)
        # noise of as many actions as come out, or of the network's
        assert robot.predict(**given | {"noise": given["noise"][:6]}).shape == (6, 6)
        assert np.array_equal(robot.predict(**given | {"noise": None, "seed": 3}), robot.predict(**given | {"noise": None, "seed": 3}))
        again = robot.predict(**given, prev_actions=robot.normalized(), overlap=3, frozen=1)
        assert again.shape == (6, 6)


def homogeneous(pose):
    """[4, 4] of a place and two rows of a rotation."""
    a, b = np.float64(pose[3:6]), np.float64(pose[6:9])
    a /= np.linalg.norm(a)
    b = b - a * (a @ b)
    b /= np.linalg.norm(b)
    m = np.eye(4)
    m[:3, :3], m[:3, 3] = np.stack([a, b, np.cross(a, b)]), pose[:3]
    return m


def test_relative_poses(tmp_path):
    """An end effector's place and two rows of its rotation, as a motion from where it is."""
    groups = {"eef": 9, "grip": 1}
    robot = {"state": ranges(groups), "action": ranges(groups), "relative_action": ranges({"eef": 9}, rows=8)}
    modality = {"state": {"modality_keys": ["grip", "eef"]}, "action": {"modality_keys": list(groups), "action_configs": [{"rep": "RELATIVE", "type": "EEF", "format": "XYZ_ROT6D"}, {"rep": "ABSOLUTE"}], "delta_indices": list(range(8))}}
    path = folder(tmp_path, statistics={"one": plain(robot)}, modality=modality, use_relative_action=True)
    state = RNG.standard_normal(10).astype(np.float32)
    low, high = (np.concatenate([robot["state"][g][k] for g in ("grip", "eef")]).astype(np.float32) for k in ("min", "max"))
    with load(path, statistics="auto", num_views=2) as model, load(embodiment=1, num_views=2) as network:
        got = model.predict(**reals(state=state))
        raw = network.predict(**reals(state=(2 * (state - low) / (high - low) - 1).clip(-1, 1))).clip(-1, 1)
        motion, grip = robot["relative_action"]["eef"], robot["action"]["grip"]
        motion = (raw[:, :9] + 1) * 0.5 * (motion["max"] - motion["min"]) + motion["min"]
        for row, step in zip(got, motion):
            there = homogeneous(state[1:]) @ homogeneous(step)
            np.testing.assert_allclose(row[:9], [*there[:3, 3], *there[0, :3], *there[1, :3]], rtol=0, atol=2e-4)
        np.testing.assert_allclose(got[:, 9:], (raw[:, 9:10] + 1) * 0.5 * (grip["max"] - grip["min"]) + grip["min"], rtol=0, atol=2e-5)
        state[4:] = 0  # no rotation
        with pytest.raises(vivace.CorruptDataError, match="not finite in the robot's units"):
            model.predict(**reals(state=state))


def test_embodiments_of_statistics(tmp_path):
    path = folder(tmp_path, statistics={"two": plain(ROBOT), "also_two": plain(ROBOT), "one": plain(ROBOT)})
    for wanted, number, name in (("two", 2, "two"), ("also_two", 2, "also_two"), (1, 1, "one"), ("one", 1, "one")):
        with load(path, statistics="auto", embodiment=wanted) as robot:
            assert (robot.report()["embodiment"], robot.report()["embodiment_name"]) == (number, name)
    for wanted, message in ((None, "two, also_two, one; 3 of them are this policy"), (2, "2 of them are number 2"), (0, "0 of them are number 0"), ("leg", "'leg' is none of one, two, also_two")):
        with pytest.raises(vivace.InvalidArgumentError, match=message):
            load(path, statistics="auto", embodiment=wanted)


def test_statistics_that_are_missing_or_wrong(tmp_path):
    with pytest.raises(vivace.NotFoundError, match='statistics.json is not in .*statistics="none"'):
        load(statistics="auto")
    cases = [
        (dict(ids=None), vivace.InvalidArgumentError, "give the number of one"),
        (dict(ids={"one": 3}), vivace.CorruptDataError, "number 3, the network has 3"),
        (dict(ids={"one": -1}), vivace.CorruptDataError, "from 0 on"),
        (dict(apply_sincos_state_encoding=True, modality=embedded({"arm": 3}, sin_cos_embedding_keys=[3])), vivace.CorruptDataError, "sin_cos_embedding_keys"),
        (dict(modality=embedded({"arm": 3}, mean_std_embedding_keys="arm")), vivace.CorruptDataError, "mean_std_embedding_keys"),
        (dict(statistics={"one": {"state": {"arm": {"min": [0], "max": [1]}, "hand": {"min": [0], "max": [1]}}, "action": {}}}, modality=embedded(STATE, mean_std_embedding_keys=["arm"])), vivace.NotFoundError, "mean"),
        (dict(apply_sincos_state_encoding=True, statistics={"one": {"state": plain(ranges({"arm": 9, "hand": 3})), "action": plain(ranges(ACTION))}}, modality=embedded(STATE, sin_cos_embedding_keys=list(STATE))), vivace.InvalidArgumentError, "24 values of state"),
        (dict(use_relative_action=True, modality=relative_modality(type="EEF")), vivace.UnsupportedError, "type eef and format default"),
        (dict(use_relative_action=True, modality=relative_modality(type="EEF", format="XYZ_ROT6D")), vivace.CorruptDataError, "a pose has 9 values, got 3"),
        (dict(use_relative_action=True, modality=relative_modality(state_key="hand")), vivace.CorruptDataError, "3 values, its state 2"),
        (dict(use_relative_action=True, modality=relative_modality(state_key="leg")), vivace.CorruptDataError, "no state that it is a step from"),
        (dict(modality={"state": {"modality_keys": ["leg"]}, "action": {"modality_keys": []}}), vivace.NotFoundError, "leg"),
        (dict(statistics={"one": {"state": plain(ranges({"arm": 30, "hand": 2})), "action": plain(ranges(ACTION))}}), vivace.InvalidArgumentError, "32 values of state"),
        (dict(statistics={"one": {"state": {"arm": {"min": [0, 1], "max": [1]}, "hand": {"min": [0], "max": [1]}}, "action": {}}}), vivace.CorruptDataError, "wanted 2 numbers"),
        (dict(statistics={"one": {"state": {"arm": {"min": [1e31], "max": [1]}, "hand": {"min": [0], "max": [1]}}, "action": {}}}), vivace.CorruptDataError, "beyond 1e\\+30"),
        (dict(statistics={"one": 3}), vivace.CorruptDataError, "one"),
    ]
    for i, (changes, error, message) in enumerate(cases):
        with pytest.raises(error, match=message):
            load(folder(tmp_path / str(i), **changes), statistics="auto")


def test_infer_by_camera_names(tmp_path):
    path = folder(tmp_path)
    given = observation("a", slots=2)
    state = np.float32([0.1, -0.5, 0.2, -1.0, 0.3])
    with load(path, statistics="auto", num_views=0) as robot:
        want = robot.predict(given["images"], prompt=given["prompt"], state=state, noise=given["noise"])
        robot.set_prompt(given["prompt"])
        front, wrist = given["images"]
        for fields in ({"images": {"front": front, "wrist": wrist}, "state": state}, {"images/wrist": wrist.transpose(2, 0, 1).copy(), "images/front": front.astype(np.float32) / 255, "state": state.astype(np.float64)},
                       {"observation.images.front": front, "observation.images.wrist": wrist, "observation.state": state}):
            assert np.array_equal(robot.infer(fields, noise=given["noise"])["actions"], want)
        assert robot.infer({"images": {"front": front, "wrist": wrist}, "state": state}, noise=given["noise"], prev_actions=robot.normalized(), overlap=2, frozen=1)["actions"].shape == (8, 6)
        for fields, message in (({"images": {"front": front}, "state": state}, "wrist: this camera .* is missing"), ({"images": {"front": front, "wrist": wrist, "left": wrist}, "state": state}, "left': robot any has no such field"),
                                ({"images": {"front": front, "wrist": wrist}}, "the state .* is missing"), ({"images": {"front": front, "wrist": front[:100]}, "state": state}, "multiples of 32")):
            with pytest.raises(vivace.Error, match=message):
                robot.infer(fields)
    with load(num_views=2, embodiment=2) as network:  # cameras by names of one's own
        network.set_prompt(given["prompt"])
        named = network.infer({"images": {"left": front, "right": wrist}, "state": given["state"]}, robot="any", cameras=["left", "right"], noise=given["noise"])
        assert np.array_equal(named["actions"], network.predict(**given))


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer.json of single bytes, with Qwen3-VL's control tokens where the tiny model has them."""
    letters = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    letters += [chr(256 + i) for i in range(256 - len(letters))]
    vocab = {c: i for i, c in enumerate(letters)}
    rules = {"version": "1.0", "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for t, i in sorted(IDS.items(), key=lambda x: x[1])],
             "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}, "post_processor": None, "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab | {f"x{i}": i for i in range(256, 500)} | {"y501": 501}, "merges": []}}
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    path.write_text(json.dumps(rules))
    return path, vocab


def test_tasks_as_text(words):
    path, vocab = words
    ids = [504, *(vocab[c] for c in "user"), vocab["\u010a"], *[502, IMAGE, 503] * 2, *(vocab[c if c != " " else "\u0120"] for c in "pick up_the red block 2"), 505, vocab["\u010a"]]
    assert _core.GrootPrompter.open(str(path)).tokens("Pick up_the RED block #2!", 2) == ids
    given = observation("a")
    with load(tokenizer=path) as model:
        want = model.predict(**given | {"prompt": ids})
        assert np.array_equal(model.predict(**given | {"prompt": "Pick up_the RED block #2!"}), want)
        model.set_prompt("pick up_the red block 2?")
        assert np.array_equal(model.predict(**given | {"prompt": None}), want)
        assert np.array_equal(model.predict(**given | {"prompt": "<|image_pad|> go"}), model.predict(**given | {"prompt": "image_pad go"}))  # a task's control tokens are words
        with pytest.raises(vivace.UnsupportedError, match="ASCII"):
            model.predict(**given | {"prompt": "gr\u00fcn"})
        with pytest.raises(vivace.LimitExceededError, match="at most 128"):
            model.predict(**given | {"prompt": "go " * 60})
    with load() as model, pytest.raises(vivace.NotFoundError, match="tokenizer"):
        model.predict(**given | {"prompt": "go"})


def test_a_tokenizer_without_images(words, tmp_path):
    rules = json.loads(words[0].read_text())
    rules["added_tokens"] = [t for t in rules["added_tokens"] if t["content"] != "<|image_pad|>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(vivace.CorruptDataError, match="image_pad"):
        _core.GrootPrompter.open(str(tmp_path))


@pytest.mark.skipif(DEVICE != "cpu", reason="the host is the same")
def test_over_the_wire(tmp_path, words):
    """The policy host serves it to a robot's client by its cameras' names, in the robot's units."""
    path = folder(tmp_path)
    given, state = observation("a", slots=2), np.float32([0.1, -0.5, 0.2, -1.0, 0.3])
    front, wrist = given["images"]
    fields = {"images": {"front": front, "wrist": wrist}, "state": state, "prompt": "go on"}
    with load(path, statistics="auto", num_views=0, tokenizer=words[0]) as robot:
        want = robot.infer(fields, noise=given["noise"])["actions"]
        with vivace.PolicyHost(robot, port=0, deadline=30.0) as host:
            with Robot(host) as client:
                assert client.metadata["vivace"]["policy"] == "groot_n17" and client.metadata["vivace"]["cameras"] == ["images/front", "images/wrist"]
                assert np.array_equal(client.ask(fields | {"vivace": {"noise": given["noise"]}})["actions"], want)
            with Robot(host) as client:
                line, _ = client.refused(fields | {"images": {"front": front[:100], "wrist": wrist}})
                assert "multiples of 32" in line
            with Robot(host) as client:
                assert np.array_equal(client.ask(fields | {"vivace": {"noise": given["noise"]}})["actions"], want)


def test_cameras_of_any_size_over_the_wire(tmp_path, words):
    """As the checkpoint's processor scales them (test_groot_frames.py), in rows or planes."""
    path = folder(tmp_path, image_target_size=[256, 256], shortest_image_edge=256, crop_fraction=0.95, use_albumentations=True)
    front, wrist = RNG.integers(0, 256, (480, 640, 3), np.uint8), RNG.integers(0, 256, (240, 424, 3), np.uint8)
    fields = {"images": {"front": front, "wrist": wrist}, "state": np.float32([0.1, -0.5, 0.2, -1.0, 0.3]), "prompt": "go on"}
    with load(path, statistics="auto", num_views=0, tokenizer=words[0]) as robot:
        assert robot.report()["resize"] == "area"
        want = robot.infer(fields, seed=7)["actions"]
        with vivace.PolicyHost(robot, port=0, deadline=30.0) as host, Robot(host) as client:
            for images in (fields["images"], {name: x.transpose(2, 0, 1).copy() for name, x in fields["images"].items()}):
                assert np.array_equal(client.ask(fields | {"images": images, "vivace": {"seed": 7}})["actions"], want)
            line, _ = client.refused(fields | {"images": {"front": front[:16], "wrist": wrist}})
            assert "becomes more pixels" in line


def test_chunks_that_follow_each_other_over_the_wire(tmp_path, words):
    """Real-time chunking as pi0.5 has it: a robot's client asks for chunks that begin with what will have been executed."""
    given, state = observation("a", slots=2), np.float32([0.1, -0.5, 0.2, -1.0, 0.3])
    front, wrist = given["images"]
    fields = {"images": {"front": front, "wrist": wrist}, "state": state, "prompt": "go on"}
    with load(folder(tmp_path), statistics="auto", num_views=0, tokenizer=words[0]) as robot, vivace.PolicyHost(robot, port=0, deadline=30.0) as host:
        with Robot(host) as client:
            assert client.metadata["vivace"]["action_prefix"] is True
            first = client.ask(fields | {"vivace": {"seed": 1, "normalized": True}})
            after = client.ask(fields | {"vivace": {"seed": 2, "normalized": True, "action_prefix": first["normalized"][4:7]}})
            assert np.array_equal(after["normalized"][:3], first["normalized"][4:7]) and np.array_equal(after["actions"][:3], first["actions"][4:7])
        with vivace.RobotClient("127.0.0.1", host.port, hz=20, join="prefix", answer=30.0, watchdog=30.0, max_action_age=30.0, record=tmp_path / "record") as client:
            episode = client.run(np.zeros(6, np.float32), lambda: {k: v for k, v in fields.items() if k != "prompt"}, lambda tick: None, seconds=1.5, prompt="go on")
    assert episode.answered >= 2
    with np.load(next((tmp_path / "record").glob("*.npz"))) as arrays:
        asked = [name for name in arrays.files if name.endswith(".vivace/action_prefix")]
        assert asked and all(np.array_equal(arrays[a := f"a{name[1:].split('.')[0]}.normalized"][:len(arrays[name])], arrays[name]) for name in asked if f"a{name[1:].split('.')[0]}.normalized" in arrays.files)


def test_steps_from_the_state_are_no_prefix(tmp_path, words):
    """The state that they are steps from has moved: said when a client connects, and of each question."""
    path = folder(tmp_path, use_relative_action=True, modality=relative_modality() | {"video": {"modality_keys": ["front", "wrist"]}})
    with load(path, statistics="auto", num_views=0, tokenizer=words[0]) as robot:
        with pytest.raises(vivace.UnsupportedError, match="steps from the state"):
            robot.predict(**reals(), action_prefix=np.zeros((1, 20), np.float32))
        with vivace.PolicyHost(robot, port=0) as host:
            with pytest.raises(vivace.UnsupportedError, match="join chunks by blend or swap"):
                vivace.RobotClient("127.0.0.1", host.port, join="prefix")
            with vivace.RobotClient("127.0.0.1", host.port, join="blend", max_step=0.1) as client:
                assert client.dims == 6


def test_plan_and_bench(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache"))
    path = str(folder(tmp_path))
    for command, more in (("plan", []), ("bench", ["--steps", "3", "--batch", "2"]), ("bench", ["--steps", "2", "--precision", "fp8_static"])):
        assert cli.main([command, "--model", path, "--device", "cpu", "--threads", "2", "--json", *more]) == 0
    planned, timed, eight = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert planned["report"]["family"] == "groot_n17" and planned["total_bytes"] == sum(r["bytes"] for r in planned["regions"])
    assert timed["rows"][0]["case"].startswith("groot_n17 f32 cpu, 2 views, 8 actions, 4 steps, batch 2") and timed["rows"][0]["p50_us"] > 0
    assert eight["rows"][0]["case"].startswith("groot_n17 fp8_static cpu")
