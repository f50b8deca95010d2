"""The arm of `vivace demo arm` in MuJoCo: joints with mass under gravity, moved by servos, seen by two cameras.

arm.py says where its things stand, and draws the same two views where MuJoCo finds nothing to draw with."""
from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from vivace.demo import arm
from vivace.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError

MODEL = Path(__file__).parent / "arm.xml"
HZ = 30                      # ticks a second: a target of the joints each
CAMERAS = ("front", "above")
WAYS = ("auto", "gl", "drawn")


def mujoco():
    """The package. Errors: UnsupportedError."""
    if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # draws without a screen
    try:
        import mujoco
    except ModuleNotFoundError as e:
        raise UnsupportedError("demo arm: the package mujoco is not installed (pip install vivace[demo])") from e
    except Exception as e:  # MuJoCo's own choice of a way to draw, made where it is imported
        raise FailedPreconditionError(f"demo arm: mujoco cannot be imported: {e}; MUJOCO_GL says how it draws (egl, osmesa, glfw, disabled)") from e
    return mujoco


class Sim:
    """One arm in one scene after another. Not for several threads at once."""

    def __init__(self):
        self.mj = mujoco()
        self.model = self.mj.MjModel.from_xml_path(str(MODEL))
        self.data = self.mj.MjData(self.model)
        self._substeps = round(1 / (HZ * self.model.opt.timestep))
        self._tip = self.model.site("tip").id
        self.scene = None

    def begin(self, scene: arm.Scene) -> None:
        """The arm stands at the scene's start; its things are where and what they are."""
        m, d = self.model, self.data
        self.mj.mj_resetData(m, d)
        colours = list(arm.COLOURS.values())
        for i in range(arm.THINGS):
            at = scene.things[0, i]
            d.mocap_pos[m.body(f"thing{i}").mocapid[0]] = at
            stand = m.geom(f"stand{i}")
            stand.size[1], stand.pos[2] = at[2] / 2, -at[2] / 2
            m.geom_sameframe[stand.id] = 0  # its middle is no longer its body's
            for name, is_it in (("ball", not scene.block[0, i]), ("block", bool(scene.block[0, i]))):
                m.geom(f"{name}{i}").rgba[:] = (*(c / 255 for c in colours[int(scene.colour[0, i])]), float(is_it))
        self.place(scene.start[0])
        self.scene = scene

    def place(self, joints) -> None:
        """The arm stands at `joints` [3], at rest."""
        self.data.qpos[:] = self.data.ctrl[:] = joints
        self.data.qvel[:] = 0
        self.mj.mj_forward(self.model, self.data)

    def step(self, target) -> None:
        """One tick: the servos hold `target` [3] while 1 / HZ of a second goes by."""
        self.data.ctrl[:] = np.clip(target, arm.LOW, arm.HIGH)
        self.mj.mj_step(self.model, self.data, nstep=self._substeps)

    @property
    def joints(self):
        """Measured [3]."""
        return self.data.qpos[:arm.JOINTS].astype(np.float64)

    @property
    def tip(self):
        return self.data.site_xpos[self._tip].copy()

    def inside(self) -> bool:
        """Whether the tip is in the thing to reach."""
        return bool(np.linalg.norm(self.tip - self.scene.things[0, 0]) < arm.RADIUS)


class Rendered:
    """Frames u8 [2, side, side, 3] by MuJoCo's renderer, from one thread, which is the one that made it."""

    way = "gl"

    def __init__(self, sim: Sim, side: int):
        try:
            self._renderer = sim.mj.Renderer(sim.model, side, side)
        except Exception as e:  # whatever the GL at hand raises
            raise FailedPreconditionError(f"cameras: MuJoCo finds nothing to draw with ({type(e).__name__}: {e}); install Mesa's EGL (libegl1, libgl1-mesa-dri), set MUJOCO_GL, or draw them: --cameras drawn") from e
        self._sim = sim

    def frames(self):
        out = []
        for name in CAMERAS:
            self._renderer.update_scene(self._sim.data, camera=name)
            out.append(self._renderer.render().copy())
        return np.stack(out)

    def close(self):
        self._renderer.close()


class Drawn:
    """The same frames by arm.Cameras, of the joints that MuJoCo says."""

    way = "drawn"

    def __init__(self, sim: Sim, side: int):
        self._sim, self._cameras = sim, arm.Cameras(side)

    def frames(self):
        return self._cameras.frames(self._sim.scene, self._sim.joints[None])[0]

    def close(self):
        pass


def cameras(sim: Sim, side: int, way: str = "auto"):
    """Rendered, or Drawn; "auto": Rendered where there is a GL, and .way says which it became. Errors: FailedPreconditionError, InvalidArgumentError."""
    if way not in WAYS:
        raise InvalidArgumentError(f"cameras: wanted one of {', '.join(WAYS)}, got {way!r}")
    if way == "drawn":
        return Drawn(sim, side)
    try:
        return Rendered(sim, side)
    except FailedPreconditionError:
        if way == "gl":
            raise
        return Drawn(sim, side)
