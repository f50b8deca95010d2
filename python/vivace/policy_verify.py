"""`vivace verify` of a robot's policy: what a precision plan costs, against another plan of the same checkpoint.

Both plans see the same observations with the same noise. Stage by stage, as Policy.observe() names them: the relative error of each value.
At the end: the error of the network's own actions, and the largest in the robot's units. One policy is loaded at a time; what the first one
computed lies in an unnamed temporary file."""
from __future__ import annotations

import math
import tempfile

import numpy as np

from vivace.errors import InvalidArgumentError, IoError, UnsupportedError


def verify(load, observations, *, precision: str, against: str, robot="auto", cameras=()) -> dict:
    """`load(precision)`: the policy; `observations`: infer()'s. Returns {"stages": [{"name", "step", "error"}], "actions_error", "max_error", "cosine",
    "precision", "against", "observations"}. Errors: those of load and infer(); UnsupportedError where the plans compute different stages; IoError."""
    if not observations:
        raise InvalidArgumentError("verify: no observation: nothing to compare")
    with tempfile.TemporaryFile() as kept:
        stages = []  # of each observation: (name, step) in order
        try:
            with load(precision) as policy:  # the plan in question first: what it does not take is said before any work
                for values in _values(policy, observations, robot, cameras):
                    stages.append([])
                    for name, step, value in values:
                        stages[-1].append((name, step))
                        np.save(kept, value, allow_pickle=False)
        except OSError as e:
            raise IoError(f"{tempfile.gettempdir()}: {e.strerror}: the first plan's values are kept there until the second has its own; give fewer observations, or set TMPDIR") from e
        kept.seek(0)
        sums, largest, dot = {}, 0.0, 0.0
        with load(against) as policy:
            for names, values in zip(stages, _values(policy, observations, robot, cameras), strict=True):
                values = list(values)
                if [(name, step) for name, step, _ in values] != names:
                    raise UnsupportedError(f"verify: {against} and {precision} compute different stages; they cannot be compared")
                for name, step, a in values:
                    b = np.load(kept, allow_pickle=False)
                    if a.shape != b.shape:
                        raise UnsupportedError(f"verify: {name}: {list(a.shape)} by {against}, {list(b.shape)} by {precision}; they cannot be compared")
                    if name == "robot":
                        largest = max(largest, float(np.abs(a.astype(np.float64) - b).max()))
                        continue
                    a, b = a.astype(np.float64), b.astype(np.float64)
                    of = sums.setdefault((name, step), [0.0, 0.0, 0.0])
                    for i, v in enumerate((np.sum((b - a) ** 2), np.sum(a ** 2), np.sum(b ** 2))):
                        of[i] += float(v)
                    dot += float(np.sum(a * b)) if name == "actions" else 0.0
    of = sums.pop(("actions", -1))
    return {"precision": precision, "against": against, "observations": len(observations), "stages": [{"name": name, "step": step, "error": _relative(of)} for (name, step), of in sums.items()],
            "actions_error": _relative(of), "max_error": largest, "cosine": dot / math.sqrt(of[1] * of[2]) if of[1] and of[2] else 0.0}


def _values(policy, observations, robot, cameras):
    """Of each observation its stages, then the network's actions and the robot's."""
    for seed, fields in enumerate(observations):
        mine, given = policy._read("verify", fields, robot, cameras)
        stages = [(name, step, value) for name, step, value in policy.observe(**given, seed=seed) if value.dtype.kind == "f"]
        actions = policy.predict(**given, seed=seed)
        units = np.frombuffer(mine.to_robot(actions.tobytes()), np.float32)
        yield [*stages, ("actions", -1, policy.normalized()), ("robot", -1, units)]


def _relative(of) -> float:
    return math.sqrt(of[0] / of[1]) if of[1] else math.inf if of[0] else 0.0
