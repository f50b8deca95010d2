"""docs/robots/: each page's loop, as it is written there, on random weights of the checkpoint's form behind a policy host; its commands' options exist."""
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import vivace
from tests.test_robots import checkpoint, frame
from vivace import cli

PAGES = Path(__file__).parents[1] / "docs" / "robots"


class Parts:
    """What a page calls its own robot."""

    def __init__(self):
        self.moved, self.language_instruction, self.left = [], "put the cup into the box", 12

    def outside(self):
        return frame(1)

    def wrist(self):
        return frame(2)

    def image(self, name):
        return frame(len(name)).transpose(2, 0, 1).copy() if name == "cam_high" else frame(len(name))

    def joints(self):
        return np.linspace(-0.5, 0.5, self.dims)

    def gripper(self):
        return np.array([0.3])

    def move(self, *what):
        self.moved.append(np.hstack(what))

    def stop(self):
        self.moved.append(None)

    def go(self, pose):
        assert pose == [0, -1.5, 1.5, 0, 0, 0]

    def reset(self):
        return {"agentview_image": frame(1), "robot0_eye_in_hand_image": frame(2), "robot0_eef_pos": np.zeros(3), "robot0_eef_quat": np.array([0, 0, 1.0, 0]), "robot0_gripper_qpos": np.zeros(2)}

    def step(self, action):
        self.moved.append(action)
        self.left -= 1
        return self.reset(), 0.0, self.left == 0, {}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (PAGES / f"{page}.md").read_text(), re.M | re.S)


@pytest.mark.parametrize("page,name,asset,counts,dims", [("droid", "Droid", "droid", (8, 8), 7), ("libero", "Libero", "physical-intelligence/libero", (8, 7), 0), ("aloha", "Aloha", "trossen", (14, 14), 14)])
def test_the_loop(tmp_path, page, name, asset, counts, dims):
    (code,), made = blocks(page, "python"), []

    def robot():
        made.append(Parts())
        made[-1].dims = dims
        return made[-1]
    metadata = {"reset_pose": [0, -1.5, 1.5, 0, 0, 0]} if page == "aloha" else None
    delta = [True] * 6 + [False] + [True] * 6 + [False] if page == "aloha" else ()
    horizon = {"droid": 15, "libero": 10, "aloha": 50}[page]
    with vivace.load_model(checkpoint(tmp_path, "pi05_tiny", asset, counts=counts), device="cpu", threads=2, precision="f32", num_steps=1, action_horizon=horizon, delta=delta) as policy, vivace.PolicyHost(policy, port=0, deadline=30.0, metadata=metadata, prompt="fold the towel") as host:
        assert policy.report()["robot"] == page
        code = code.replace("8000", str(host.port)).replace("seconds=60", "seconds=1.5").replace("watchdog=1.0", "watchdog=30.0, max_action_age=30.0, answer=30.0")
        exec(compile(code, f"docs/robots/{page}.md", "exec"), {name: robot})
    moved = [m for m in made[0].moved if m is not None]
    assert moved and all(np.isfinite(m).all() for m in moved) and {len(m) for m in moved} == {counts[1]}


@pytest.mark.parametrize("page", ["droid", "libero", "aloha"])
def test_the_commands(page):
    """Every `vivace` line is one that the command line takes."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("vivace ")]
    assert len(lines) >= 2
    for line in lines:
        assert cli.parser().parse_args(shlex.split(line, comments=True)[1:]).command
