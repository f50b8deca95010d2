"""A robot's loop over a link that is slow, breaks and comes back: no action is stale, jumps, or is anybody else's; episodes come again."""
import json
import socket
import threading
import time

import numpy as np
import pytest

import vivace
from tests.test_policy_host import CAMERAS, load
from vivace.demo import arm, reach
from vivace.robot_client import replay

FRAMES = {"images": {c: np.full((20, 20, 3), 9 * i, np.uint8) for i, c in enumerate(CAMERAS)}}


@pytest.fixture(scope="module")
def policy():
    with load(action_horizon=50) as p:  # at 50 ticks a second a chunk lasts a second, also on a machine that is busy
        yield p


class Link:
    """A way to the host that can be slow, cut, or closed to newcomers."""

    def __init__(self, port):
        self.port, self.delay, self.shut, self._pairs = port, 0.0, False, []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.door = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            if self.shut:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.port))
            self._pairs.append((near, far))
            threading.Thread(target=self._carry, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near, True), daemon=True).start()

    def _carry(self, a, b, slow):
        try:
            while data := a.recv(1 << 16):
                if slow and self.delay:
                    time.sleep(self.delay)
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        for pair in self._pairs:
            for s in pair:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self._pairs.clear()

    def close(self):
        self._door.close()
        self.cut()


@pytest.fixture
def link(policy):
    with vivace.PolicyHost(policy, cameras=CAMERAS, port=0, prompt="reach the red ball") as h:
        wire = Link(h.port)
        wire.host = h
        yield wire
        wire.close()


def client(link, **options):
    return vivace.RobotClient("127.0.0.1", link.door, **dict(hz=50, max_step=0.05, wait=0.02, most_wait=0.1) | options)


def run(robot, seconds=2.0, each=None, **options):
    """An episode whose every action is looked at: each step within max_step, none older than stale."""
    at, path = np.zeros(3, np.float32), []

    def act(tick):
        assert np.abs(tick.action - at).max() <= 0.05 + 1e-6 and np.isfinite(tick.action).all()
        assert tick.source in ("hold", "stopped") or 0 <= tick.age <= 1.0
        at[:] = tick.action
        path.append((tick.source, tick.chunk_index))
        if each:
            each(len(path))
    report = robot.run(np.zeros(3), lambda: FRAMES | {"state": at.copy()}, act, seconds=seconds, **options)
    return report, path


def test_an_arm_reaches_what_it_is_told(policy, link):
    """The demonstration's arm, over the wire: it looks and asks, and turns its joints."""
    scene, cameras = arm.scene(3), arm.Cameras(reach.SIDE)
    joints = scene.start[0].copy()
    with vivace.RobotClient("127.0.0.1", link.port, hz=10, ask_after=5, answer=30, max_action_age=30, watchdog=60) as robot:
        assert (robot.horizon, robot.dims, robot.network_dims) == (50, 3, 8) and robot.metadata["vivace"]["policy"] == "pi05"
        robot.set_prompt(reach.words_of(scene))
        robot.begin(np.zeros(3), seed=1)
        moved, deadline = 0, time.monotonic() + 60
        while moved < 15 and time.monotonic() < deadline:
            front, above = cameras.frames(scene, joints[None])[0]
            tick = robot.tick(lambda: {"images": {"front": front, "above": above}, "state": joints})
            if tick.source == "chunk":
                joints = arm.turned(joints, tick.action)
                moved += 1
            time.sleep(0.01)
        report = robot.end()
    assert moved == 15 and report.failed == 0 and report.answered >= 2
    far = np.linalg.norm(arm.tip(np, scene.start[0]) - scene.things[0, 0])
    assert np.linalg.norm(arm.tip(np, joints) - scene.things[0, 0]) < far  # one step of the flow is coarse; nearer all the same


@pytest.mark.parametrize("join", ["swap", "blend", "prefix", "future"])
def test_each_join(link, join):
    with client(link, join=join) as robot:
        report, path = run(robot)
    assert report.answered >= 2 and report.failed == 0 and report.connections == 0 and report.failures == [] and report.sources["chunk"] > 10
    assert ("blend" in report.sources) == (join == "blend")


@pytest.mark.parametrize("steps", [False, True])
def test_a_chunk_is_asked_for_the_state_that_the_arm_will_have(policy, link, tmp_path, steps):
    """What the link carries: the actions that come between, whose answers are the policy's own for the state that they lead to."""
    with client(link, join="future", future_steps=steps, record=tmp_path) as robot:
        assert robot.metadata["vivace"]["future_actions"] is True
        run(robot, episode="e", seed=3, prompt="reach the red ball")
    link.host.close()  # which has the policy for itself
    record = json.loads((tmp_path / "e.json").read_text())
    with np.load(tmp_path / "e.npz") as arrays:
        asked = [i for i, row in enumerate(record["questions"]) if f"q{i}.vivace/future_actions" in arrays.files and row["answer"]]
        assert asked
        for i in asked[:2]:
            actions, state = arrays[f"q{i}.vivace/future_actions"], arrays[f"q{i}.state"]
            then = state.copy() if steps else actions[-1]
            for row in actions if steps else ():
                then = then + row
            seen = {"images": {c: arrays[f"q{i}.images/{c}"] for c in CAMERAS}, "state": then, "prompt": record["questions"][i]["question"]["prompt"]}
            want = policy.infer(seen, robot="any", cameras=CAMERAS, seed=record["questions"][i]["question"]["vivace/seed"])["actions"]
            np.testing.assert_array_equal(arrays[f"a{i}.actions"], want)
    assert max(replay(policy, tmp_path / "e.json", cameras=CAMERAS)) == 0


def test_the_same_seed_and_observations_have_the_same_chunks(policy, link, tmp_path):
    """Whatever the link did between: episodes are replayable, on the policy itself too."""
    seen = []
    for name, cut in (("a", False), ("b", True)):
        with client(link, join="prefix" if not cut else "swap", record=tmp_path) as robot:
            robot.begin(np.zeros(3), episode=name, seed=7)
            for i in range(3):
                deadline = time.monotonic() + 20
                while robot._core.counts()[1] < i + 1 and time.monotonic() < deadline:
                    robot.tick(lambda: FRAMES | {"state": np.zeros(3, np.float32)})
                    time.sleep(0.005)
                if cut and i == 0:
                    link.cut()
            seen.append(robot.end())
    assert all(e.answered >= 3 for e in seen) and seen[0].connections == 0 and seen[1].connections >= 1
    first, second = (json.loads((tmp_path / f"{n}.json").read_text()) for n in "ab")
    assert first["seed"] == second["seed"] == 7 and first["dropped"] == 0
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert (a["a0.actions"] == b["a0.actions"]).all() and a["q0.images/front"].shape == (20, 20, 3)
        seeds = [[q["question"]["vivace/seed"] for q in rec["questions"]] for rec in (first, second)]
        assert len(set(seeds[0])) == len(seeds[0]) and seeds[0][:2] == seeds[1][:2]
        assert any(f"q{i}.vivace/action_prefix" in a for i in range(len(first["questions"])))
    with load(action_horizon=50) as fresh:
        fresh.set_prompt("reach the red ball")
        for name in "ab":
            differences = replay(fresh, tmp_path / f"{name}.json", cameras=CAMERAS)
            assert len(differences) >= 3 and max(differences) == 0
        with np.load(tmp_path / "a.npz") as a:  # and what is not the same is seen
            np.savez(tmp_path / "a.npz", **{k: v + 1 if k == "a1.actions" else v for k, v in a.items()})
        assert [d > 0.5 for d in replay(fresh, tmp_path / "a", cameras=CAMERAS)][:3] == [False, True, False]


def test_a_link_that_breaks_and_comes_back(link):
    def each(i):
        if i == 40:
            link.shut = True
            link.cut()
        if i == 100:
            link.shut = False
    with client(link, max_action_age=0.3, watchdog=0.5, deadline=0.2) as robot:
        report, path = run(robot, 4.0, each)
    assert report.connections >= 1 and report.failed > 0 and report.failures and "policy host" in report.failures[0]
    assert {"chunk", "hold", "stopped"} <= report.sources.keys()
    assert any(s == "chunk" for s, _ in path[-60:])  # it moves again


def test_answers_that_come_too_late(link):
    """They are nobody's: the link is made anew, and the arm holds."""
    with client(link, answer=0.15, max_action_age=0.3, watchdog=0.5) as robot:
        link.delay = 0.4
        report, path = run(robot, 1.2)
        assert report.answered == 0 and report.failed > 0 and report.sources.keys() <= {"hold", "stopped"}
        link.delay = 0
        report, path = run(robot, 1.5)
        assert report.answered > 0 and "chunk" in report.sources


def test_a_new_prompt_interrupts(link, tmp_path):
    """What was on its way for the old one is not used; the next question is put at once and has the new one."""
    with client(link, record=tmp_path) as robot:
        def each(i):
            if i == 30:
                robot.set_prompt("reach the blue block")
        report, _ = run(robot, 2.0, each, prompt="reach the red ball", episode="words")
    said = [q["question"]["prompt"] for q in json.loads((tmp_path / "words.json").read_text())["questions"]]
    assert said[0] == "reach the red ball" and said[-1] == "reach the blue block" and report.answered >= 2
    assert said == sorted(said, reverse=True)


def test_observations_that_the_host_refuses(link):
    """The robot holds, and says why; the next good one moves it again."""
    with client(link) as robot:
        robot.begin(np.zeros(3))
        deadline = time.monotonic() + 10
        while robot._core.counts()[2] < 2 and time.monotonic() < deadline:
            assert robot.tick(lambda: {"images": {"front": np.zeros((2, 2, 3), np.uint8)}, "state": np.zeros(3)}).source in ("hold", "stopped")
            time.sleep(0.01)
        report = robot.end()
        assert report.failed >= 2 and "images/above: this camera of robot any is missing" in report.failures[0]
        again, _ = run(robot, 1.0)
        assert again.answered > 0
        with pytest.raises(vivace.InvalidArgumentError, match="'vivace' is the client's own"):
            robot.begin(np.zeros(3))
            robot.tick(lambda: {"vivace": {}})
        with pytest.raises(ZeroDivisionError):
            robot.run(np.zeros(3), lambda: 1 // 0, lambda tick: None, seconds=1)


@pytest.mark.parametrize("options,error,words", [
    (dict(port=1), vivace.IoError, "Connection refused"), (dict(port=0), vivace.InvalidArgumentError, "port: wanted"), (dict(join="melt"), vivace.InvalidArgumentError, "join: wanted swap"), (dict(host="a b"), vivace.InvalidArgumentError, "host: wanted"),
    (dict(hz=0), vivace.InvalidArgumentError, "hz"), (dict(answer=0), vivace.InvalidArgumentError, "time limit"), (dict(max_step=[1, 2]), vivace.InvalidShapeError, "max_step"), (dict(max_action_age=-1), vivace.InvalidArgumentError, "max_action_age"), (dict(blend=0.5), vivace.InvalidArgumentError, "blend"),
])
def test_options_that_are_wrong(link, options, error, words):
    with pytest.raises(error, match=words):
        vivace.RobotClient(**dict(host="127.0.0.1", port=link.port, connect=0.3) | options)


def test_a_host_that_refuses(policy):
    with vivace.PolicyHost(policy, cameras=CAMERAS, port=0, key="k", max_clients=1) as h:
        with pytest.raises(vivace.InvalidArgumentError, match="it answers 401: wanted the host's key"):
            vivace.RobotClient("127.0.0.1", h.port)
        with vivace.RobotClient("127.0.0.1", h.port, key="k") as robot:
            with pytest.raises(vivace.InvalidShapeError, match="position"):
                robot.begin(np.zeros(2))
            with pytest.raises(vivace.FailedPreconditionError):
                robot.tick(lambda: {})
    with vivace.PolicyHost(port=0) as h:
        h.fail("nothing there")
        with pytest.raises(vivace.FailedPreconditionError, match="nothing there"):
            vivace.RobotClient("127.0.0.1", h.port)
