"""`vivace run`, `verify`, `calibrate` and `serve-policy` of robots' policies: observations in files, actions out, what a plan costs, scales that are kept."""
import io
import json
import zipfile

import numpy as np
import pytest

import vivace
from tests.test_robots import checkpoint, frame
from vivace import cli, cli_policy, observations
from vivace.policy import Policy
from vivace.policy_verify import verify

DROID = {"observation/exterior_image_1_left": frame(1), "observation/wrist_image_left": frame(2), "observation/joint_position": np.linspace(-1, 1, 7, dtype=np.float32), "observation/gripper_position": np.float32([0.5])}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def droid(tmp_path):
    return str(checkpoint(tmp_path, asset="droid"))


def saved(tmp_path, name="seen", **fields):
    np.savez(path := tmp_path / f"{name}.npz", **DROID | fields)
    return str(path)


def ask(capsys, *arguments, status=0):
    assert cli.main([*arguments, "--device", "cpu", "--json"]) == status
    said = json.loads(capsys.readouterr().out)
    return said["error"] if status else said


def test_run(tmp_path, droid, capsys):
    """The actions that infer() gives, of files, of pictures beside them, by the file's prompt or the argument's."""
    with vivace.load_model(droid, device="cpu", threads=2) as policy:
        want = [policy.infer(DROID | {"prompt": p}, seed=s)["actions"] for p, s in (("pick up the cup", 7), ("open", 8), ("pick up the cup", 0))]
    files = saved(tmp_path, prompt="pick up the cup"), saved(tmp_path, "other", prompt="open")
    said = ask(capsys, "run", "--model", droid, "--threads", "2", "--observation", files[0], "--observation", files[1], "--seed", "7")
    assert said["family"] == "pi05" and [c["seed"] for c in said["chunks"]] == [7, 8]
    for chunk, actions in zip(said["chunks"], want):
        assert np.array_equal(np.float32(chunk["actions"]), actions)
    image = pytest.importorskip("PIL.Image")
    image.fromarray(frame(2)).save(tmp_path / "wrist.png")
    blind = saved(tmp_path, "blind", prompt="what it said before", **{"observation/wrist_image_left": frame(9)})
    said = ask(capsys, "run", "--model", droid, "--threads", "2", "--observation", blind, "--image", f"observation/wrist_image_left={tmp_path / 'wrist.png'}", "pick up the cup")
    assert np.array_equal(np.float32(said["chunks"][0]["actions"]), want[2])
    assert cli.main(["run", "--model", droid, "--device", "cpu", "--threads", "2", "--observation", files[0], "--seed", "7"]) == 0
    out, err = capsys.readouterr()
    np.testing.assert_allclose(np.loadtxt(io.StringIO(out)), want[0], rtol=1e-5, atol=1e-5)
    assert f"{len(want[0])} actions of 8 dimensions" in err


def test_run_takes_pictures_alone(tmp_path, capsys):
    """Without statistics, by cameras of one's own."""
    image = pytest.importorskip("PIL.Image")
    folder = checkpoint(tmp_path)
    image.fromarray(frame(3)).save(tmp_path / "top.png")
    np.savez(tmp_path / "state.npz", state=np.zeros(8, np.float32))
    said = ask(capsys, "run", "--model", str(folder), "--statistics", "none", "--robot", "any", "--camera", "top", "--image", f"images/top={tmp_path / 'top.png'}", "--observation", str(tmp_path / "state.npz"), "go")
    assert np.isfinite(said["chunks"][0]["actions"]).all()


def test_verify(tmp_path, droid, capsys):
    """Against the plan that runs in f32: bf16 errs, stage by stage, and f32 does not."""
    file = saved(tmp_path, prompt="pick up the cup")
    said = ask(capsys, "verify", "--model", droid, "--precision", "bf16", "--against", "f32", "--observation", file, "--observation", file)
    names = {row["name"] for row in said["stages"]}
    assert said["observations"] == 2 and len(names) > 3 and all(0 <= row["error"] < 0.2 for row in said["stages"])
    assert 1e-4 < said["actions_error"] < 0.05 and said["cosine"] > 0.999 and said["max_error"] > 0
    same = ask(capsys, "verify", "--model", droid, "--precision", "f32", "--against", "f32", "--observation", file)
    assert same["actions_error"] == same["max_error"] == 0 and same["cosine"] == pytest.approx(1, abs=1e-12)
    assert cli.main(["verify", "--model", droid, "--precision", "fp8_static", "--observation", file, "--device", "cpu"]) == 0
    assert "fp8_static against bf16, 1 observations: actions" in capsys.readouterr().out
    with pytest.raises(vivace.InvalidArgumentError, match="no observation"):
        verify(None, [], precision="bf16", against="f32")


def within(kept_scales, monkeypatch):
    """_kept_scales() that must find what was kept."""
    def found(self, observations, percentile, anew=False):
        def measured(*_):
            raise AssertionError("scales are measured anew")
        monkeypatch.setattr("vivace.calibrate.Cache.write", measured)
        return kept_scales(self, observations, percentile, anew)
    return found


def test_calibrate(tmp_path, droid, capsys, monkeypatch):
    """Scales as the policy itself finds them, kept for whoever asks with the same observations: nothing is measured twice."""
    file = saved(tmp_path, prompt="pick up the cup")
    said = ask(capsys, "calibrate", "--model", droid, "--observation", file)
    with vivace.load_model(droid, device="cpu", precision="bf16") as policy:
        given = policy._read("calibrate", DROID | {"prompt": "pick up the cup"})[1]
        assert said["act_scales"] == policy.calibrate([given]) and said["observations"] == 1
    kept = list((tmp_path / "cache").rglob("policy-*.json"))
    assert len(kept) == 1
    monkeypatch.setattr(Policy, "_kept_scales", within(Policy._kept_scales, monkeypatch))
    args = cli.parser().parse_args(["serve-policy", droid, "--precision", "fp8_static", "--observation", file, "--device", "cpu"])
    load, robot, cameras = cli_policy._served(args)
    with load() as policy:
        assert policy.report()["precision"] == "fp8_static"
    ran = ask(capsys, "run", "--model", droid, "--precision", "fp8_static", "--observation", file)
    assert ran["precision"] == "fp8_static" and len(list((tmp_path / "cache").rglob("policy-*.json"))) == 1


def test_records_of_episodes(tmp_path, droid, capsys):
    """Each question of a record is an observation."""
    rows = [{"question": {"prompt": p, "vivace/seed": 3}, "answer": None, "asked": 0, "answered": 0, "error": None} for p in ("open", "close")]
    (tmp_path / "episode.json").write_text(json.dumps({"questions": rows}))
    np.savez(tmp_path / "episode.npz", **{f"q{i}.{name}": v for i in range(2) for name, v in DROID.items()})
    seen = observations.read([tmp_path / "episode.json"])
    assert [o["prompt"] for o in seen] == ["open", "close"] and all(np.array_equal(o[name], v) for o in seen for name, v in DROID.items()) and set(seen[0]) == {*DROID, "prompt"}
    assert len(ask(capsys, "run", "--model", droid, "--observation", str(tmp_path / "episode.npz"))["chunks"]) == 2


def bomb(path):
    """Few bytes of file, 8 GB of array."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z, z.open("state.npy", "w") as f:
        np.lib.format.write_array_header_1_0(f, {"descr": "|u1", "fortran_order": False, "shape": (1 << 33,)})


@pytest.mark.parametrize("make,code,message", [
    (lambda p: p.write_bytes(b"no zip"), "CorruptData", "no .npz of plain arrays"), (lambda p: None, "NotFound", "seen.npz"), (lambda p: p.mkdir(), "InvalidArgument", "a directory"),
    (lambda p: np.savez(p, state=np.array([{}], object)), "CorruptData", "no .npz of plain arrays"), (lambda p: np.savez(p, **DROID | {"observation/joint_position": np.zeros(6)}), "InvalidShape", "joint_position"),
    (lambda p: np.savez(p, **DROID, left=np.zeros(3)), "InvalidArgument", "left"), (lambda p: np.savez(p, **DROID), "InvalidArgument", "prompt"), (bomb, "CorruptData", "no .npz of plain arrays"),
    (lambda p: np.savez(p, **DROID | {"observation/joint_position": np.full(7, np.nan)}, prompt="go"), "InvalidArgument", "not finite"),
    (lambda p: (np.savez(p, **DROID), p.with_suffix(".json").write_text('{"questions": [1]}')), "CorruptData", "no record of an episode"),
], ids=range(10))
def test_bad_files(tmp_path, droid, capsys, make, code, message):
    make(tmp_path / "seen.npz")
    error = ask(capsys, "run", "--model", droid, "--observation", str(tmp_path / "seen.npz"), status=1)
    assert error["code"] == code and message in error["message"], error


@pytest.mark.parametrize("arguments,message", [
    (["run", "hi"], "show it something by --observation"), (["verify", "--precision", "bf16"], "show it something"), (["calibrate"], "show it something"),
    (["run", "hi", "--image", "x"], "wanted NAME=FILE"), (["run", "hi", "--temperature", "0.5"], "--temperature: of language models"), (["run", "hi", "--system", "x"], "--system: of language models"),
    (["calibrate", "--prompts", "x"], "--prompts: of language models"), (["verify", "--precision", "bf16", "--context", "5"], "--context: of language models"),
    (["run", "hi", "--observation", "FILE", "--embodiment", "2"], "embodiment"), (["run", "hi", "--observation", "FILE", "--precision", "int4"], "precision"), (["run", "hi", "--observation", "FILE", "--robot", "r2d2"], "robot: wanted one of"),
])
def test_bad_options(tmp_path, droid, capsys, arguments, message):
    file = saved(tmp_path)
    error = ask(capsys, *(file if a == "FILE" else a for a in arguments), "--model", droid, status=1)
    assert error["code"] == "InvalidArgument" and message in error["message"], error


def test_language_models_take_none_of_it(tmp_path, droid, capsys):
    model = "tests/fixtures/tiny_gguf/llama_q4_1.gguf"
    for arguments in (["run", "hi", "--observation", "x"], ["calibrate", "--camera", "x"], ["verify", "--precision", "bf16", "--image", "a=b"]):
        error = ask(capsys, *arguments, "--model", model, status=1)
        assert error["code"] == "InvalidArgument" and "of robots' policies" in error["message"]
    assert cli.main(["chat", droid, "--plain"]) == 1 and "is a robot's policy; `vivace run`" in capsys.readouterr().err
