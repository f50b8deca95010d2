"""A robot arm of three joints among coloured things, its analytic controller, and the pictures of two cameras.

Every function takes whole batches, and arrays of NumPy or of PyTorch alike (`xp` is the module they are from): what a policy
is trained on and what it is shown later are made by the same lines. Lengths are metres, angles radians.
"""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

COLOURS = {"red": (214, 40, 40), "green": (44, 150, 60), "blue": (40, 90, 220), "yellow": (240, 200, 30), "purple": (140, 60, 180), "orange": (245, 125, 20)}
SHAPES = ("ball", "block")
THINGS = 3                                     # in a scene; the first is the one to reach
JOINTS = 3                                     # yaw of the column, elevation of the upper arm, bend of the elbow
LOW, HIGH = (-1.2, -0.1, 0.2), (1.2, 1.3, 2.2) # limits of the joints
STEP = 0.12                                    # most that a joint turns in one step
GAIN = 0.4                                     # of the controller, where that is less
RADIUS = 0.075                                 # of a thing: the tip inside it has reached it
COLUMN, UPPER, FORE = 0.25, 0.5, 0.45

TRIES = 32                                     # draws of a scene, of which the first good one counts
NUMBERS = TRIES * (THINGS + 1) * JOINTS + len(COLOURS) + THINGS  # uniform ones that a scene is made of
_APART, _ABOVE = 0.3, 0.12                     # of things and the tip at the start; of the floor


class Scene(NamedTuple):
    """B scenes."""

    start: object   # [B, 3] joints
    goal: object    # [B, 3] joints with the tip in the first thing
    things: object  # [B, 3, 3] places
    colour: object  # [B, 3] numbers of COLOURS, all different
    block: object   # [B, 3] whether it is a block, else a ball


def skeleton(xp, q):
    """Joints [..., 3] -> foot, shoulder, elbow, tip [..., 4, 3]."""
    yaw, shoulder, fore = q[..., 0], q[..., 1], q[..., 1] - q[..., 2]
    out, up = UPPER * xp.cos(shoulder), COLUMN + UPPER * xp.sin(shoulder)
    tip_out, tip_up = out + FORE * xp.cos(fore), up + FORE * xp.sin(fore)
    c, s, zero = xp.cos(yaw), xp.sin(yaw), yaw * 0
    rows = [(zero, zero, zero), (zero, zero, zero + COLUMN), (out * c, out * s, up), (tip_out * c, tip_out * s, tip_up)]
    return xp.stack([xp.stack(row, -1) for row in rows], -2)


def tip(xp, q):
    return skeleton(xp, q)[..., 3, :]


def scenes(xp, u) -> Scene:
    """Scenes made of uniform numbers [B, NUMBERS]: things within reach, clear of the floor, of each other and of the start."""
    b, n = len(u), TRIES * (THINGS + 1) * JOINTS
    share = u[:, :n].reshape(b, TRIES, THINGS + 1, JOINTS) * 0.9 + 0.05
    q = xp.stack([LOW[j] + share[..., j] * (HIGH[j] - LOW[j]) for j in range(JOINTS)], -1)
    at = tip(xp, q)
    room = at[..., 2].reshape(b, TRIES, -1) - _ABOVE
    rooms = [room[..., i] for i in range(THINGS + 1)]
    for i in range(THINGS + 1):
        for k in range(i):
            rooms.append(xp.sqrt(((at[..., i, :] - at[..., k, :]) ** 2).sum(-1)) - _APART)
    least = rooms[0]
    for r in rooms[1:]:
        least = xp.minimum(least, r)
    # The first try with room for all; where none has it, that with the most.
    rank = xp.where(least >= 0, TRIES - xp.cumsum(least * 0 + 1, 1), least - TRIES)
    chosen = (rank == xp.amax(rank, 1)[:, None])[..., None, None]
    q, at = (q * chosen).sum(1), (at * chosen).sum(1)
    colour = xp.argsort(u[:, n:n + len(COLOURS)], -1)[:, :THINGS]
    return Scene(q[:, 0], q[:, 1], at[:, 1:], colour, u[:, n + len(COLOURS):] > 0.5)


def scene(seed: int, colour: int | None = None) -> Scene:
    """The scene of a seed, a batch of one; `colour`: of the thing to reach, which it then is."""
    made = scenes(np, np.random.default_rng(seed).random((1, NUMBERS)))
    if colour is not None:
        others = [c for c in made.colour[0].tolist() if c != colour]
        made = made._replace(colour=np.array([[colour, *others][:THINGS]]))
    return made


def join(each) -> Scene:
    """One batch of several."""
    return Scene(*(np.concatenate(part) for part in zip(*each)))


def chunk(xp, q, goal, steps):
    """The controller's next `steps` turns of the joints, [..., steps, 3]: straight to the goal, slower at its end."""
    turns = []
    for _ in range(steps):
        turns.append(xp.clip((goal - q) * GAIN, -STEP, STEP))
        q = q + turns[-1]
    return xp.stack(turns, -2)


def turned(q, turn):
    """Joints after one step, kept within their limits (NumPy)."""
    return np.clip(q + np.clip(turn, -STEP, STEP), LOW, HIGH)


_HALF = 0.95                                   # of what a camera sees, in metres
_PAPER, _STEEL, _DARK, _WOOD = (238, 240, 244), (150, 158, 170), (70, 76, 88), (196, 188, 176)


def _camera(elevation, at):
    """Rows right, up, towards of a camera in front of the arm; then what stands in its middle."""
    c, s = np.cos(elevation), np.sin(elevation)
    turn = np.array([(0, 1, 0), (-s, 0, c), (c, 0, s)])
    return turn, turn @ np.array(at)


class Cameras:
    """Two cameras without perspective: one before the arm and a little raised, one above it and a little before."""

    VIEWS = 2

    def __init__(self, size: int, xp=np, **where):
        def put(a):
            return xp.asarray(np.asarray(a, np.float32), **where)

        self.xp, self.size = xp, size
        turns, middles = zip(_camera(0.25, (0.3, 0, 0.5)), _camera(1.3, (0.45, 0, 0.3)))
        self.turn, self.middle = put(turns), put(middles)
        at = ((np.arange(size) + 0.5) / size * 2 - 1) * _HALF
        self.right, self.up = put(at), put(-at[:, None])
        self.palette, self.paper = put(list(COLOURS.values())), put(_PAPER)
        self.steel, self.dark, self.wood = put(_STEEL), put(_DARK), put(_WOOD)

    def frames(self, scene: Scene, q):
        """u8 [B, 2, size, size, 3] of joints [B, 3]."""
        xp, b = self.xp, len(q)
        bones, things = self._seen(skeleton(xp, q)), self._seen(scene.things)
        floor = scene.things * 1
        floor[..., 2] = 0
        feet, colours = self._seen(floor), self.palette[scene.colour]
        canvas = bones[:, :, :1, :1, None] * 0 + (self.right * 0 + self.up * 0 + self.paper.reshape(3, 1, 1))  # [B, 2, 3, size, size]
        nearest = canvas[:, :, 0] * 0 - 10
        for i in range(THINGS):
            self._bar(canvas, nearest, feet[:, :, i], things[:, :, i], 0.012, self.wood)
            self._bar(canvas, nearest, things[:, :, i], None, RADIUS, colours[:, None, i], scene.block[:, i].reshape(b, 1, 1, 1))
        self._bar(canvas, nearest, bones[:, :, 0], bones[:, :, 1], 0.075, self.dark)
        self._bar(canvas, nearest, bones[:, :, 1], bones[:, :, 2], 0.05, self.steel)
        self._bar(canvas, nearest, bones[:, :, 2], bones[:, :, 3], 0.035, self.steel)
        self._bar(canvas, nearest, bones[:, :, 3], None, 0.045, self.dark)
        canvas = xp.moveaxis(canvas, 2, -1) + 0.5
        return canvas.astype(np.uint8, order="C") if xp is np else canvas.byte().contiguous()

    def _seen(self, p):
        """Points [B, n, 3] -> right, up, towards [B, 2, n, 3]."""
        p = self.xp.asarray(p, dtype=self.xp.float32)
        return (p[:, None, :, None, :] * self.turn[:, None]).sum(-1) - self.middle[:, None]

    def _bar(self, canvas, nearest, a, b, radius, colour, block=None):
        """Draws a bar with round ends from a to b [B, 2, 3], or a ball at a, or where `block` says a block, if nothing is nearer."""
        xp = self.xp
        a = a[..., None, None]
        du, dv, depth = self.right - a[:, :, 0], self.up - a[:, :, 1], a[:, :, 2]
        if b is not None:
            along = b[..., None, None] - a
            eu, ev, ed = along[:, :, 0], along[:, :, 1], along[:, :, 2]
            share = xp.clip((du * eu + dv * ev) / (eu * eu + ev * ev + 1e-6), 0, 1)
            du, dv, depth = du - share * eu, dv - share * ev, depth + share * ed
        far = xp.sqrt(du * du + dv * dv)
        arch = xp.sqrt(xp.clip(1 - far * far / (radius * radius), 0, 1))  # how far the surface stands out, of the radius
        if block is not None:
            far = xp.where(block, xp.maximum(abs(du), abs(dv)) * 1.1, far)
            arch = xp.where(block, far * 0 + 0.75, arch)
        depth = depth + arch * radius
        cover = xp.clip((radius - far) * (self.size / (2 * _HALF)) + 0.5, 0, 1) * (depth > nearest)
        nearest[:] = xp.where(cover > 0.5, depth, nearest)
        shade = (0.6 + 0.4 * arch)[:, :, None] * colour.reshape(*colour.shape, 1, 1)
        canvas += cover[:, :, None] * (shade - canvas)
