"""From a checkpoint to a robot's units: the family is found, fields by openpi's names of ALOHA, DROID and LIBERO, and what is wrong with them."""
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import vivace
from vivace.demo import reach
from vivace.demo.weights import unpacked

FIXTURES = Path(__file__).parent / "fixtures"
FLIP = np.array([1, -1, -1, 1, 1, 1, 1, 1, -1, -1, 1, 1, 1, 1])


def stats(n, padded=None):
    rng = np.random.default_rng(n)

    def part(n):
        mean, std = rng.standard_normal(n), rng.random(n) + 0.5
        both = {"mean": mean, "std": std, "q01": mean - 2 * std, "q99": mean + 2 * std}
        return {k: np.concatenate([v, np.zeros((padded or n) - n)]).tolist() for k, v in both.items()}
    return {"norm_stats": {"state": part(n[0]), "actions": part(n[1])}} if isinstance(n, tuple) else None


def checkpoint(tmp_path, fixture="pi05_tiny", asset=None, counts=(8, 8), padded=None, **config):
    """The fixture's weights with another config.json and statistics under assets/."""
    folder = tmp_path / "policy"
    folder.mkdir()
    for f in (FIXTURES / "vla" / fixture).glob("model*"):
        (folder / f.name).symlink_to(f)
    (folder / "config.json").write_text(json.dumps(json.loads((FIXTURES / "vla" / fixture / "config.json").read_text()) | config))
    shutil.copy(FIXTURES / "pieces" / "paligemma.model", folder / "tokenizer.model")
    if asset:
        (folder / "assets" / asset).mkdir(parents=True)
        (folder / "assets" / asset / "norm_stats.json").write_text(json.dumps(stats(counts, padded)))
    return folder


def load(folder, **options):
    return vivace.load_model(folder, device="cpu", threads=1, precision="f32", num_steps=1, action_horizon=4, **options)


def frame(seed, height=30, width=40):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def scaled(folder, what, values, quantiles):
    """openpi's normalisation in float64."""
    s = {k: np.array(v)[:len(values)] for k, v in json.loads(next(folder.glob("assets/**/norm_stats.json")).read_text())["norm_stats"][what].items()}
    return (values - s["q01"]) / (s["q99"] - s["q01"] + 1e-6) * 2 - 1 if quantiles else (values - s["mean"]) / (s["std"] + 1e-6)


def aloha_state(state):
    """openpi's state of ALOHA in the space of pi's arms, from its published constants, in float64."""
    s = FLIP * np.asarray(state, np.float64)
    way = s[[6, 13]] * (0.05800 - 0.01844) + 0.01844
    s[[6, 13]] = (np.arcsin(np.clip((0.022**2 + way**2 - 0.036**2) / (2 * 0.022 * way), -1, 1)) - 0.5476) / (1.6296 - 0.5476)
    return s


def aloha_actions(actions):
    a = FLIP * np.asarray(actions, np.float64)
    a[:, [6, 13]] = (a[:, [6, 13]] + 0.5476 + 0.6213) / (1.4910 + 0.6213)
    return a


@pytest.mark.parametrize("padded", [None, 32])
def test_droid(tmp_path, padded):
    """The state is joints and gripper, two cameras, the third slot off; statistics padded to the network's width are those of the robot."""
    folder = checkpoint(tmp_path, asset="droid", padded=padded)
    with load(folder) as policy:
        facts = policy.report()
        assert facts["family"] == "pi05" and facts["robot"] == "droid" and facts["robot_dim"] == facts["state_dim"] == 8 and facts["num_views"] == 2 and facts["state_in_prompt"]
        joints, gripper = np.linspace(-1, 1, 7), np.array([0.4])
        o = {"observation/exterior_image_1_left": frame(1), "observation/wrist_image_left": frame(2), "observation/joint_position": joints, "observation/gripper_position": gripper, "prompt": "pick it up"}
        got = policy.infer(o, seed=3)["actions"]
        want = policy.predict([frame(1), frame(2)], "pick it up", np.concatenate([joints, gripper]), seed=3)
        assert got.shape == (4, 8) and (got == want).all()
        for other in (o | {"observation/gripper_position": 0.4}, o | {"observation/gripper_position": np.float32(0.4)}, {"observation": {k.split("/")[1]: v for k, v in o.items() if "/" in k}, "prompt": o["prompt"]}):
            assert np.abs(policy.infer(other, seed=3)["actions"] - want).max() < 1e-6
        with pytest.raises(vivace.UnsupportedError, match="future_actions: actions of robot droid do not say where its joints will be"):
            policy.infer(o, future_actions=np.zeros((2, 8)))
        policy.set_prompt("pick it up")
        del o["prompt"]
        assert (policy.infer(o, seed=3)["actions"] == want).all()


def test_libero_reads_no_state_into_its_prompt(tmp_path):
    """openpi's pi05_libero was trained with discrete_state_input off: the words alone, and a newline."""
    folder = checkpoint(tmp_path, asset="physical-intelligence/libero", counts=(8, 7))
    with load(folder) as policy:
        assert policy.report()["robot"] == "libero" and not policy.state_in_prompt
        o = {"observation/image": frame(1), "observation/wrist_image": frame(2), "observation/state": np.zeros(8), "prompt": "open_the drawer"}
        got = policy.infer(o, seed=1)["actions"]
        text = policy._encode
        ids = [2, *text("open the drawer"), *text("\n")]
        assert got.shape == (4, 7) and (got == policy.predict([frame(1), frame(2)], ids, seed=1)).all()
        assert (got == policy.infer(o | {"observation/state": np.ones(8)}, seed=1)["actions"]).all()
        for call in (lambda: policy.infer(o, future_actions=np.zeros((2, 7))), lambda: policy.predict([frame(1), frame(2)], "go", np.zeros(8), future_actions=np.zeros((2, 7)))):
            with pytest.raises(vivace.UnsupportedError, match="future_actions: this pi05 takes no state"):
                call()


@pytest.mark.parametrize("asset,adapted", [("trossen", True), ("lerobot/aloha_sim_transfer_cube_human", False)])
def test_aloha(tmp_path, asset, adapted):
    folder = checkpoint(tmp_path, "pi0_tiny", asset=asset, counts=(14, 14))
    state = np.linspace(-0.5, 0.9, 14)
    o = {"images": {c: np.ascontiguousarray(frame(i).transpose(2, 0, 1)) for i, c in enumerate(("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist"))}, "state": state, "prompt": "go"}
    with load(folder, delta=[True] * 6 + [False] + [True] * 6) as policy:
        assert policy.report()["robot"] == ("aloha" if adapted else "aloha_sim") and policy.report()["num_views"] == 3
        got = policy.infer(o, seed=2)["actions"]
        own = aloha_state(state) if adapted else state
        raw = policy.predict([frame(0), frame(2), frame(3)], "go", own.astype(np.float32), seed=2)
        np.testing.assert_allclose(got, aloha_actions(raw) if adapted else raw, rtol=0, atol=2e-6)
        # What is executed meanwhile moves the joints, and where commands have the state's unit the grippers.
        ahead = np.random.default_rng(5).uniform(-0.5, 0.5, (3, 14)).astype(np.float32)
        stay = [6, 13] if adapted else []
        for steps, then in ((False, ahead[-1]), (True, state.astype(np.float32) + ahead[0] + ahead[1] + ahead[2])):
            then = np.where(np.isin(np.arange(14), stay), state, then)
            np.testing.assert_allclose(policy.infer(o, seed=2, future_actions=ahead, future_steps=steps)["actions"], policy.infer(o | {"state": then}, seed=2)["actions"], rtol=0, atol=2e-6)
        # A wrist's camera may be missing, the high one may not.
        some = {k: v for k, v in o["images"].items() if k != "cam_left_wrist"}
        off = policy.predict([frame(0), None, frame(3)], "go", own.astype(np.float32), seed=2)
        np.testing.assert_allclose(policy.infer(o | {"images": some}, seed=2)["actions"], aloha_actions(off) if adapted else off, rtol=0, atol=2e-6)
        for bad, words in (({"images": {"cam_low": frame(0)}}, "images/cam_high: this camera of robot aloha"), ({"state": state[:13]}, "state: wanted 14 values, got 13"), ({"images": o["images"] | {"cam_top": frame(0)}}, "'images/cam_top': robot aloha")):
            with pytest.raises(vivace.Error, match=words):
                policy.infer(o | bad)
        with pytest.raises(vivace.InvalidArgumentError, match="state: the state of robot aloha.* is missing"):
            policy.infer({k: v for k, v in o.items() if k != "state"})


def test_lerobots_names(tmp_path):
    """config.json's type names the family, its features the cameras; fields by lerobot's names, floats [3, height, width] as its data sets have them."""
    folder = checkpoint(tmp_path, type="pi05", input_features={"observation.images.top": {"type": "VISUAL", "shape": [3, 30, 40]}, "observation.state": {"type": "STATE", "shape": [6]}, "observation.images.wrist": {"type": "VISUAL", "shape": [3, 30, 40]}})
    with load(folder, statistics="none") as policy:
        assert policy.report()["cameras"] == ["top", "wrist"] and policy.report()["num_views"] == 2 and policy.report()["robot"] == "any"
        o = {"observation.images.top": frame(1).transpose(2, 0, 1) / np.float32(255), "observation.images.wrist": frame(2), "observation.state": np.zeros(6, np.float32), "task": "go"}
        want = policy.predict([frame(1), frame(2)], "go", np.zeros(6), seed=1)
        assert (policy.infer(o, seed=1)["actions"] == want).all()
        assert (policy.infer({"images": {"top": frame(1), "wrist": frame(2)}, "state": np.zeros(6), "prompt": "go"}, seed=1)["actions"] == want).all()
        for bad, words in (({"observation.images.side": frame(1)}, "no such field"), ({"prompt": "again"}, "this field came before, by another of its names"), ({"observation.images.top": object()}, "observation.images.top: wanted numbers"),
                           ({"observation.images.top": [["a"]]}, "wanted numbers"), ({"task": b"go"}, "task: wanted numbers, a text or None")):
            with pytest.raises(vivace.InvalidArgumentError, match=words):
                policy.infer(o | bad)
        for bad in ([1], None, {1: 2}):
            with pytest.raises(vivace.InvalidArgumentError, match="observation"):
                policy.infer(bad)


def test_torch_frames(tmp_path):
    torch = pytest.importorskip("torch")
    folder = checkpoint(tmp_path, cameras=["a"])
    with load(folder, statistics="none") as policy:
        o = {"images": {"a": torch.from_numpy(frame(1)).permute(2, 0, 1)}, "state": torch.zeros(4), "prompt": "go"}
        assert (policy.infer(o, seed=1)["actions"] == policy.predict([frame(1)], "go", np.zeros(4), seed=1)).all()


@pytest.mark.parametrize("fixture,family", [("pi05_tiny", "pi05"), ("pi0_tiny", "pi0"), ("pi0_fast_tiny", "pi0fast")])
@pytest.mark.parametrize("config", [{}, {"type": "lerobot's"}, None])
def test_the_family_is_found(tmp_path, fixture, family, config):
    """By the tensors, whatever config.json says or where there is none."""
    folder = checkpoint(tmp_path, fixture)
    text = json.loads((folder / "config.json").read_text())
    text.pop("type", None)
    text.pop("family", None)
    (folder / "config.json").write_text(json.dumps(text | (config or {})))
    assert vivace._core.policy_family(str(folder)) == family
    if config is not None:
        with vivace.load_model(folder, device="cpu", threads=1, statistics="none", num_steps=1) as policy:
            assert policy.report()["family"] == family


def test_what_is_no_policy(tmp_path):
    assert vivace._core.policy_family(str(FIXTURES / "tiny_gguf" / "llama_q4_1.gguf")) == ""
    with pytest.raises(vivace.InvalidArgumentError, match="none of pi05, pi0, pi0fast"):
        vivace.load_model(FIXTURES / "tiny_gguf" / "llama_q4_1.gguf", config="auto", device="cpu")
    with pytest.raises(vivace.InvalidArgumentError, match="load_model: context, max_batch: of language models"):
        vivace.load_model(unpacked(reach.FOLDER), context=7, max_batch=2)
    folder = checkpoint(tmp_path)
    with load(folder, statistics="none") as policy:
        with pytest.raises(vivace.InvalidArgumentError, match="the checkpoint does not say whose it is; name one of aloha"):
            policy.infer({"state": np.zeros(3)})
        with pytest.raises(vivace.InvalidArgumentError, match="robot: wanted one of aloha"):
            policy.infer({}, robot="r2d2")
        with pytest.raises(vivace.InvalidArgumentError, match="cameras in 4 slots"):
            policy.infer({}, cameras=["a", "b", "c", "d"])
    with pytest.raises(vivace.NotFoundError, match="norm_stats"):  # missing statistics are never guessed
        load(folder)


def test_statistics_of_another_robot(tmp_path):
    with load(checkpoint(tmp_path, asset="droid", counts=(6, 6))) as policy:
        with pytest.raises(vivace.InvalidShapeError, match="robot droid has a state of 8 values, the checkpoint's statistics have 6"):
            policy.infer({})


def test_padding_is_zeros_to_the_networks_width_alone(tmp_path):
    """A dimension that never moved is an error as before; what is padded to another width too."""
    for padded, counts in ((31, (8, 8)), (9, (8, 8))):
        folder = checkpoint(tmp_path, asset="droid", counts=counts, padded=padded)
        with pytest.raises(vivace.InvalidArgumentError, match="dimension 8 never moved"):
            load(folder)
        shutil.rmtree(folder)


@pytest.mark.parametrize("command", [["plan"], ["bench", "--steps", "2"]])
def test_the_command_line(tmp_path, capsys, command):
    from vivace.cli import main

    folder = checkpoint(tmp_path, asset="droid")
    assert main([*command, "--model", str(folder), "--device", "cpu", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["report"]["robot"] == "droid" and said["total_bytes"] > 1e6 if command[0] == "plan" else said["rows"][0]["p50_us"] > 0


def test_a_field_by_two_names(tmp_path):
    """The same field by two names is neither."""
    folder = checkpoint(tmp_path, cameras=["a"])
    with load(folder, statistics="none") as policy:
        with pytest.raises(vivace.InvalidArgumentError, match="came before"):
            policy.infer({"images": {"a": frame(1)}, "observation/images/a": frame(2), "state": np.zeros(3), "prompt": "go"})
