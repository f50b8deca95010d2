"""A robot's side of a policy host: its loop at its own pace, over a link that may be slow, break and come back.

    with vivace.RobotClient("127.0.0.1", 8000, hz=30, join="blend", max_step=0.05) as robot:
        robot.run(position, observe, act, seconds=60, prompt="reach the red ball")

docs/robots.md has an arm that it moves."""
from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from vivace import _core
from vivace.control import MOST_TICKS, Report, Tick
from vivace.errors import InvalidArgumentError, InvalidShapeError
from vivace.options import CLIENT, callable_, checked, floats, one, positive, real, utf8, whole

MOST_RECORDED = 1 << 30  # bytes of an episode's questions and answers


@dataclass
class Episode(Report):
    """What an episode was like; Report's numbers, and the link's."""

    name: str = ""
    seed: int = 0
    answered: int = 0
    connections: int = 0
    dropped: int = 0           # questions that the record has no room for
    files: list = field(default_factory=list)


class RobotClient:
    """A policy host's client for a robot's loop. Use as a context manager or close() it.

    host, port, key: where `vivace serve-policy` listens. hz: ticks a second. join, blend, ask_after, max_step, max_action_age, watchdog, deadline: as
    vivace.control.Runner has them; max_step may be one number for all dimensions. "prefix" asks for chunks that begin with what will have been executed,
    "future" for chunks that begin behind it, from the state that it leads to: where actions say, or, with future_steps, add up to.
    connect: s for the first connection. answer: s for an answer, after which the link is made anew. wait, most_wait: s before the second try to
    connect; each after that waits twice as long, up to most_wait. record: a folder that episodes are written to.
    Errors: IoError, LimitExceededError (nobody there), InvalidArgumentError (options; the host refuses), NotFoundError (its name), UnsupportedError (a join
    that the host's policy has no input for)."""

    def __init__(self, host="127.0.0.1", port=8000, *, key="", hz=30.0, join="swap", blend=None, ask_after=0, max_step=(), max_action_age=1.0, watchdog=2.0, deadline=0.0, connect=600.0, answer=1.0, wait=0.1,
                 most_wait=5.0, future_steps=False, record=None, clock=time):
        import numpy as np

        given = checked("RobotClient", CLIENT, dict(host=host, port=port, key=key, join=join, blend=blend, ask_after=ask_after, max_action_age=max_action_age, watchdog=watchdog, deadline=deadline, connect=connect,
                                                    answer=answer, wait=wait, most_wait=most_wait, future_steps=future_steps))
        steps = one("RobotClient", "max_step", floats, max_step)
        self._np, self._clock, self._period = np, clock, 1 / one("RobotClient", "hz", positive, hz)
        self._record = None if record is None else Path(record)
        self._same = steps.ndim == 0
        options = given | {"recorded": 0 if record is None else MOST_RECORDED}
        self._core = _core.RobotClient.start(max_step=b"" if self._same else steps.astype(np.float32).tobytes(), **options)
        self.horizon, self.dims, self.network_dims = self._core.sizes()
        if self._same:  # how many dimensions there are, the host has just said
            self._core.close()
            self._core = _core.RobotClient.start(max_step=np.full(self.dims, steps, np.float32).tobytes(), **options)
        self._prompt, self._episode = None, None

    @property
    def metadata(self) -> dict:
        """What the host said first."""
        return self._core.metadata()

    def set_prompt(self, prompt: str) -> None:
        """The task from now on. In an episode: what is on its way counts no more, the next observation is asked for at once, and until its answer
        is there the arm goes on with the chunk at hand."""
        self._prompt = one("set_prompt", "prompt", utf8, prompt)
        if self._episode is not None:
            self._core.interrupt()

    def begin(self, position, *, episode="", seed=0) -> None:
        """An episode begins, with the robot at `position`. The same seed and observations have the same actions, whatever the link did."""
        at = one("begin", "position", floats, position)
        if at.shape != (self.dims,):
            raise InvalidShapeError(f"begin: position: wanted [{self.dims}], got {list(at.shape)}")
        name, seed = one("begin", "episode", utf8, episode), one("begin", "seed", whole(0, (1 << 63) - 1), seed)
        self._core.take_records()
        self._core.begin(at.tobytes(), self._clock.monotonic(), name, seed)
        self._episode, self._before = Episode(name=name, seed=seed), self._core.counts()

    def tick(self, observe) -> Tick:
        """This tick's action; where a chunk should be asked for, observe() gives the fields of docs/robots.md and they are sent off. Waits for nothing."""
        now = self._clock.monotonic()
        if self._core.wants(now):
            seen = observe()
            if not isinstance(seen, dict):
                raise InvalidArgumentError("observe: wanted a dict of fields")
            if self._prompt is not None:
                seen = seen | {"prompt": self._prompt}
            if "vivace" in seen:
                raise InvalidArgumentError("observe: the field 'vivace' is the client's own")
            self._core.ask(now, self._dense(seen))
        raw, *rest = self._core.next(self._clock.monotonic())
        return Tick(self._np.frombuffer(raw, self._np.float32).copy(), *rest)

    def _dense(self, seen: dict) -> dict:
        np = self._np
        return {k: self._dense(v) if isinstance(v, dict) else v if v is None or isinstance(v, (str, int, float)) else np.ascontiguousarray(v) for k, v in seen.items()}

    def end(self) -> Episode:
        """The episode is over: what it was like, and, with record=, its files."""
        e, self._episode = self._episode, None
        asked, e.answered, e.failed, e.connections, e.dropped = (now - before for now, before in zip(self._core.counts(), self._before))
        e.asked = asked
        if (error := self._core.error()) and e.failed:
            e.failures.append(error)
        if self._record is not None:
            e.files = self._write(e)
        return e

    def run(self, position, observe, act, *, seconds: float, prompt=None, episode="", seed=0) -> Episode:
        """An episode of `seconds`, a tick each 1 / hz: act(Tick) moves the robot. What observe() or act() raises ends it and is raised."""
        one("run", "observe", callable_, observe)
        one("run", "act", callable_, act)
        ticks = one("run", "seconds", positive, seconds) / self._period
        if ticks > MOST_TICKS:
            raise InvalidArgumentError(f"seconds: {seconds} are {ticks:g} ticks, at most {MOST_TICKS}")
        if prompt is not None:
            self._prompt = one("run", "prompt", utf8, prompt)
        clock = self._clock
        self.begin(position, episode=episode, seed=seed)
        begun, report = clock.monotonic(), self._episode
        for i in range(max(1, round(ticks))):
            due = begun + i * self._period
            clock.sleep(max(0.0, due - clock.monotonic()))
            report.late += clock.monotonic() - due > 0.1 * self._period
            tick = self.tick(observe)
            act(tick)
            report.ticks += 1
            report.clamped += tick.clamped
            report.sources[tick.source] = report.sources.get(tick.source, 0) + 1
        return self.end()

    def _write(self, e: Episode) -> list:
        """NAME.npz: arrays qI.FIELD and aI.FIELD of question and answer I; NAME.json: all else, in order."""
        np, rows, arrays = self._np, [], {}
        for i, (question, answer, error, asked, answered) in enumerate(self._core.take_records()):
            row = {"asked": asked, "answered": answered, "error": error}
            for letter, what, message in (("q", "question", question), ("a", "answer", answer)):
                plain = {}
                for name, value in _leaves(_core.unpack_message(message)) if message is not None else ():
                    if isinstance(value, np.ndarray):
                        arrays[f"{letter}{i}.{name}"] = value
                    else:
                        plain[name] = value
                row[what] = plain if message is not None else None
            rows.append(row)
        self._record.mkdir(parents=True, exist_ok=True)
        name = e.name or time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name.startswith("."):
            raise InvalidArgumentError(f"episode: a record's name is of letters, digits, '-', '_' and '.', got {name!r}")
        files = [self._record / f"{name}.npz", self._record / f"{name}.json"]
        from vivace.files import new_file

        with new_file(files[0]) as f:
            np.savez(f, **arrays)
        with new_file(files[1]) as f:
            f.write(json.dumps({"episode": e.name, "seed": e.seed, "metadata": self.metadata, "questions": rows, "dropped": e.dropped}).encode())
        return [str(f) for f in files]

    def close(self) -> None:
        """Ends the link. Twice is fine."""
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def _leaves(value: dict, before=""):
    for k, v in value.items():
        if isinstance(v, dict):
            yield from _leaves(v, f"{before}{k}/")
        else:
            yield f"{before}{k}", v


def replay(policy, record, *, robot="auto", cameras=()) -> list[float]:
    """Asks a policy each answered question of a record (NAME.json or NAME.npz) anew, with its seed and prefix, and returns the largest difference of
    each answer's actions: 0 where nothing changed. Errors: NotFoundError, CorruptDataError."""
    import numpy as np

    from vivace import observations

    differences = []
    for row, seen, own, answer in observations.questions(Path(record).with_suffix("")):
        if row.get("answer") and "actions" in answer:
            got = policy.infer(seen, robot=robot, cameras=cameras, seed=own["seed"], action_prefix=own.get("action_prefix"), future_actions=own.get("future_actions"),
                               future_steps=own.get("future_steps", False))["actions"]
            differences.append(float(np.abs(got - answer["actions"]).max()))
    return differences
