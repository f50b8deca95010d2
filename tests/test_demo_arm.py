"""`vivace demo arm`: the arm reaches what it is told to over links that are slow, lose segments and break, and its targets never jump; openpi's
own client drives it too. Cameras are drawn, and rendered where there is a GL."""
import base64
import json
import os
import socket
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np
import pytest

import vivace
from tests.test_policy_host import openpi_client  # noqa: F401
from vivace.demo import arm, closed_loop, reach, sim, weights
from vivace.demo.link import FAULTS, RETRANSMIT, Fault, Link

try:
    sim.mujoco()
except vivace.UnsupportedError as e:  # the extra needs Python 3.11
    pytest.skip(str(e), allow_module_level=True)


@pytest.fixture(scope="module")
def policy():
    with closed_loop.load("cpu", "f32", threads=2) as p:
        yield p


@pytest.fixture(scope="module")
def pace(policy):
    """The robot's clock as slow as this machine, busy as it is now, needs: a call takes a fifth of a second of it at most."""
    scene, took = arm.scene(0), []
    frames = list(arm.Cameras(reach.SIDE).frames(scene, scene.start)[0])
    for i in range(4):
        begin = time.perf_counter()
        policy.predict(frames, "reach the red ball", scene.start[0], seed=i)
        took.append(time.perf_counter() - begin)
    return max(0.02, min(1.0, 0.1 / max(took[1:])))


def test_ten_episodes(policy, pace):
    ended, way = closed_loop.run(policy, range(10), cameras="drawn", pace=pace)
    assert way == "drawn" and [e.link for e in ended[:4]] == list(FAULTS)
    assert sum(e.reached for e in ended) >= 7, [(e.seed, e.link, e.reached, e.steps, e.answered) for e in ended]
    for e in ended:
        targets, joints = np.array(e.targets), np.array(e.joints)
        assert e.largest_step <= closed_loop.MAX_STEP + 1e-6 and np.isfinite(targets).all()
        assert (joints > np.array(arm.LOW) - 0.1).all() and (joints < np.array(arm.HIGH) + 0.1).all()
        assert e.answered and e.latency and len(e.sources) == len(targets) - 1 <= closed_loop.LIMIT
        assert e.reached == (e.steps < closed_loop.LIMIT) or e.steps == closed_loop.LIMIT


@pytest.mark.parametrize("join", ["swap", "blend"])
@pytest.mark.parametrize("name", FAULTS)
def test_targets_never_jump(policy, pace, name, join):
    """... by more than they may, and a bound that bites is kept as well."""
    (e,), _ = closed_loop.run(policy, [3], links=(name,), cameras="drawn", pace=pace, join=join, max_step=0.02)
    assert e.largest_step <= 0.02 + 1e-6 and e.clamped


def test_a_link_that_breaks_is_made_anew(policy, pace):
    (e,), _ = closed_loop.run(policy, [1], links=("cut",), cameras="drawn", pace=pace)
    assert e.connections or e.steps < FAULTS["cut"].cut * sim.HZ


def test_the_scene_is_that_of_the_policys_cameras():
    world = sim.Sim()
    for seed in range(5):
        scene = arm.scene(seed)
        world.begin(scene)
        np.testing.assert_allclose(world.tip, arm.tip(np, world.joints), atol=1e-9)
        assert not world.inside()
        world.place(scene.goal[0])
        assert world.inside()
    world.begin(arm.scene(0))
    for _ in range(60):  # servos hold the arm against its weight
        world.step(scene.goal[0])
    assert np.abs(world.joints - scene.goal[0]).max() < 0.05
    assert np.abs(closed_loop.wanted(scene.start[0], scene.goal[0])[0]).max() <= closed_loop.TURN + 1e-9


def test_rendered_frames_are_near_the_drawn_ones():
    world = sim.Sim()
    try:
        rendered = sim.cameras(world, reach.SIDE, "gl")
    except vivace.FailedPreconditionError as e:
        pytest.skip(str(e)[:200])
    drawn = sim.cameras(world, reach.SIDE, "drawn")
    for seed in range(4):
        world.begin(arm.scene(seed))
        a, b = rendered.frames(), drawn.frames()
        assert a.shape == b.shape == (2, reach.SIDE, reach.SIDE, 3) and a.dtype == b.dtype == np.uint8
        assert np.abs(a.astype(int) - b).mean() < 4  # seen 2.1
        for view in range(2):  # and a camera's own scene is nearer than the other's
            assert np.abs(a[view].astype(int) - b[view]).mean() < np.abs(a[view].astype(int) - b[1 - view]).mean()
    rendered.close()


# ---- the link ------------------------------------------------------------------------------------

@pytest.fixture
def echo():
    """A port whose connections say back what they are told."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                s, _ = door.accept()
            except OSError:
                return

            def answer(s=s):
                try:
                    while data := s.recv(1 << 16):
                        s.sendall(data)
                except OSError:
                    pass
                s.close()
            threading.Thread(target=answer, daemon=True).start()
    threading.Thread(target=serve, daemon=True).start()
    yield door.getsockname()[1]
    door.shutdown(socket.SHUT_RDWR)
    door.close()


def back(s, n):
    data = b""
    while len(data) < n and (piece := s.recv(1 << 16)):
        data += piece
    return data


def test_a_link_carries_all_in_order_and_late(echo):
    sent = np.random.default_rng(0).bytes(300_000)
    with Link(echo, Fault(delay=0.05, jitter=0.02, loss=0.3)) as link, socket.create_connection(("127.0.0.1", link.port)) as s:
        begin = time.monotonic()
        threading.Thread(target=s.sendall, args=(sent,), daemon=True).start()
        assert back(s, len(sent)) == sent
        assert time.monotonic() - begin >= 0.1 + (RETRANSMIT if link.lost else 0)
    with Link(echo, Fault(delay=0.1), pace=4.0) as link, socket.create_connection(("127.0.0.1", link.port)) as s:
        begin = time.monotonic()
        s.sendall(b"x")
        assert back(s, 1) == b"x" and time.monotonic() - begin >= 0.05  # of the robot's clock, which goes four times as fast


def test_a_link_breaks_and_takes_newcomers(echo):
    with Link(echo, Fault(cut=0.2)) as link:
        for broken in (1, 2):
            with socket.create_connection(("127.0.0.1", link.port)) as s:
                s.sendall(b"x")
                assert back(s, 2) in (b"x", b"") and link.broken == broken
        link.begin(Fault())
        with socket.create_connection(("127.0.0.1", link.port)) as s:
            s.sendall(b"y")
            assert back(s, 1) == b"y"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", link.port), timeout=2)


# ---- openpi's client -----------------------------------------------------------------------------

DRIVER = """
import base64, json, sys, numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from openpi_client.action_chunk_broker import ActionChunkBroker
robot = ActionChunkBroker(WebsocketClientPolicy("127.0.0.1", int(sys.argv[1])), 8)
print("ready", flush=True)
for line in sys.stdin:
    o = json.loads(line)
    frames = np.frombuffer(base64.b64decode(o["frames"]), np.uint8).reshape(2, 112, 112, 3)
    print(json.dumps(robot.infer({"images": {"front": frames[0], "above": frames[1]}, "state": np.array(o["state"]), "prompt": o["prompt"]})["actions"].tolist()), flush=True)
"""


def test_openpis_client_unchanged_drives_the_arm(openpi_client, policy):  # noqa: F811
    reached = 0
    for seed in (0, 1, 2):
        world, scene = sim.Sim(), arm.scene(seed)
        world.begin(scene)
        cameras = sim.cameras(world, reach.SIDE, "drawn")
        with vivace.PolicyHost(policy, cameras=sim.CAMERAS, port=0) as host, subprocess.Popen([openpi_client, "-W", "ignore", "-c", DRIVER, str(host.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout.readline() == "ready\n"
            for _ in range(closed_loop.LIMIT):
                driver.stdin.write(json.dumps({"frames": base64.b64encode(cameras.frames().tobytes()).decode(), "state": world.joints.tolist(), "prompt": reach.words_of(scene)}) + "\n")
                driver.stdin.flush()
                world.step(np.array(json.loads(driver.stdout.readline())))
                if world.inside():
                    break
            driver.stdin.close()
            reached += world.inside()
    assert reached >= 2


# ---- weights, command, errors --------------------------------------------------------------------

def test_it_is_served_by_name():
    args = ["serve-policy", "tiny-pi05-arm", "--port", "0", "--device", "cpu", "--threads", "2", "--steps", "4"]
    ran = subprocess.Popen([sys.executable, "-m", "vivace.cli", *args], stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    try:
        port = int(ran.stderr.readline().split("port ")[1].split(";")[0])
        scene = arm.scene(0)
        with vivace.PolicyClient("127.0.0.1", port) as robot:
            frames = dict(zip(sim.CAMERAS, arm.Cameras(reach.SIDE).frames(scene, scene.start)[0]))
            actions = robot.infer({"images": frames, "state": scene.start[0], "prompt": reach.words_of(scene)})["actions"]
        assert actions.shape == (closed_loop.HORIZON, arm.JOINTS) and np.abs(actions[0] - scene.start[0]).max() < 0.1 < np.abs(actions[-1] - scene.start[0]).max()
    finally:
        ran.terminate()
        ran.wait(30)
    bad = subprocess.run([sys.executable, "-m", "vivace.cli", "serve-policy", "tiny-pi05", "--delta", "1,yes"], capture_output=True, text=True, timeout=60)
    assert bad.returncode == 2 and "--delta: wanted 0 or 1 for each dimension" in bad.stderr


def test_changed_tensors_lie_over_the_others(tmp_path, monkeypatch):
    from safetensors.numpy import load_file, save_file

    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((3, 4)).astype(np.float32) for name in "abc"}
    base, own = tmp_path / "base", tmp_path / "own"
    for folder, part in ((base, tensors), (own, {"b": -tensors["b"]})):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"of": folder.name}))
        save_file(part, folder / weights.NAME)
        weights.pack(folder)
        (folder / weights.NAME).unlink()
    (base / "tokenizer.json").write_text("{}")
    whole = weights.unpacked(own, base)
    got = load_file(whole / weights.NAME)
    assert {n: v.tolist() for n, v in got.items()} == {n: v.tolist() for n, v in (tensors | {"b": -tensors["b"]}).items()}
    assert (whole / "tokenizer.json").read_text() == "{}" and json.loads((whole / "config.json").read_text()) == {"of": "own"}
    assert weights.unpacked(own, base) == whole
    for bad in ({"d": tensors["a"]}, {"a": tensors["a"][:2]}, {"a": tensors["a"].astype(np.float16)}):
        save_file(bad, own / weights.NAME)
        weights.pack(own)
        (own / weights.NAME).unlink()
        with pytest.raises(vivace.CorruptDataError, match="no tensor of what it is changed in"):
            weights.unpacked(own, base)


def test_the_weights_are_few():
    sizes = [(folder / f"{weights.NAME}.xz").stat().st_size for folder in (reach.FOLDER, closed_loop.FOLDER)]
    assert sum(sizes) <= 6_000_000


def demo(*args, **env):
    return subprocess.run([sys.executable, "-m", "vivace.cli", "demo", "arm", *args], capture_output=True, text=True, timeout=280, env=os.environ | env)


def test_the_command(tmp_path, pace):
    out = tmp_path / "arm.svg"
    got = demo("--device", "cpu", "--threads", "2", "--episodes", "1", "--link", "far", "--cameras", "drawn", "--pace", str(pace), "--out", str(out))
    assert got.returncode == 0, got.stderr
    assert "link far" in got.stdout and "largest step" in got.stdout and "from question to answer" in got.stdout and "drawn by" in got.stdout
    names = [e.tag.split("}")[1] for e in xml.parse(out).iter()]
    assert names.count("polyline") == 6 and names.count("rect") > 10
    facts = json.loads(demo("--device", "cpu", "--threads", "2", "--episodes", "1", "--link", "clean", "--cameras", "drawn", "--pace", str(pace), "--out", str(tmp_path / "arm.png"), "--json").stdout)
    assert facts["largest_step"] <= facts["max_step"] + 1e-6 and (tmp_path / "arm.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("args,said", [
    (["--link", "carrier-pigeon"], "link: wanted all or one of clean, far, lossy, cut"),
    (["--pace", "0"], "pace: wanted 0.01 to 10"),
    (["--pace", "nan"], "pace: wanted 0.01 to 10"),
    (["--cameras", "both"], "cameras: wanted one of auto, gl, drawn"),
    (["--out", "arm.gif"], "ends with .apng or .png or .svg"),
    (["--goal", "pink"], "goal: wanted one of red, green"),
    (["--episodes", "0"], "episodes: wanted 1 to"),
])
def test_bad_input_is_refused_before_anything_runs(args, said):
    got = demo("--device", "cpu", *args)
    assert got.returncode == 1 and said in got.stderr and "Traceback" not in got.stderr and "episode 0" not in got.stdout, got.stderr


def test_no_gl_and_no_mujoco_are_errors_of_their_own(tmp_path):
    got = demo("--device", "cpu", "--cameras", "gl", MUJOCO_GL="disabled")
    assert got.returncode == 1 and "cameras: MuJoCo finds nothing to draw with" in got.stderr and "Traceback" not in got.stderr
    (tmp_path / "mujoco.py").write_text("raise ModuleNotFoundError(\"No module named 'mujoco'\")")
    got = demo("--device", "cpu", PYTHONPATH=str(tmp_path))
    assert got.returncode == 1 and "pip install vivace[demo]" in got.stderr and "Traceback" not in got.stderr
