"""A robot's loop at its own pace over a policy that answers later: chunks of actions, joined without a jump.

    loop = vivace.control.Loop(ask, dims=7, horizon=50, hz=30, join="blend", max_step=[0.05] * 7)
    loop.run(position, observe, act, seconds=60)

`Runner` is the bookkeeping alone, for loops of one's own: no thread, no clock."""
from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field

from vivace import _core
from vivace.errors import Error, InvalidArgumentError


@dataclass(frozen=True)
class Tick:
    """What a tick did. source: "chunk", "blend", "hold" (nothing fresh: the action before), "stopped" (held, and the
    watchdog's time is over)."""

    action: object  # f32 [dims]
    source: str
    clamped: bool
    place: int  # of the action in its chunk, -1 where it is held
    age: float  # s since its observation


class Runner:
    """vivace::serve::ChunkRunner: start(), next(), wants(), begin() from the robot's thread, deliver() and fail() from one other.

    join: "swap" (the new chunk at once), "blend" (over `blend` ticks), "prefix" (the next chunk is asked to begin with
    what will have been executed by then; the policy's frozen=). ask_after: ticks of a chunk before the next is asked for, 0 = half.
    max_step: most that an action differs from the one before, a number a dimension. stale: s after its
    observation in which an action may be used. watchdog: s without a new chunk until "stopped". deadline: s after which a
    question without an answer is put anew, 0 = the watchdog's; what comes later may still be used."""

    def __init__(self, *, dims, horizon=50, network_dims=0, join="swap", blend=5, ask_after=0, max_step=(), stale=1.0, watchdog=2.0, deadline=0.0):
        import numpy

        self._np, self._dims, self._horizon, self._network = numpy, dims, horizon, network_dims
        self._prefix = join == "prefix"
        self._core = _core.ChunkRunner.make(horizon=horizon, dims=dims, network_dims=network_dims, join=join, blend=blend, ask_after=ask_after,
                                            max_step=list(max_step), stale=stale, watchdog=watchdog, deadline=deadline)

    def _bytes(self, values) -> bytes:
        return self._np.ascontiguousarray(values, self._np.float32).tobytes()

    def start(self, position, now: float) -> None:
        self._core.start(self._bytes(position), now)

    def next(self, now: float) -> Tick:
        raw, *rest = self._core.next(now, self._dims)
        return Tick(self._np.frombuffer(raw, self._np.float32).copy(), *rest)

    def wants(self, now: float) -> bool:
        return self._core.wants(now)

    def begin(self, now: float):
        """(request, frozen): what deliver() or fail() get back, and the policy's frozen= (None where nothing is)."""
        request, raw = self._core.begin(now, (self._horizon - 1) * self._network if self._prefix else 0)
        frozen = self._np.frombuffer(raw, self._np.float32).reshape(-1, self._network)[:request.frozen].copy() if request.frozen else None
        return request, frozen

    def deliver(self, request, actions, normalized=()) -> None:
        self._core.deliver(request, self._bytes(actions), self._bytes(normalized))

    def fail(self, request) -> None:
        self._core.fail(request)

    @property
    def delay(self) -> int:
        """Ticks from question to use, the largest of the last few."""
        return self._core.delay()


@dataclass
class Report:
    """What a run was like."""

    ticks: int = 0
    sources: dict = field(default_factory=dict)
    clamped: int = 0
    late: int = 0  # ticks that began more than a tenth of a period after their time
    asked: int = 0
    failures: list = field(default_factory=list)  # what the policy raised


class Wall:
    """The time that a Loop goes by; a test has another."""

    monotonic, sleep, questions = time.monotonic, time.sleep, queue.SimpleQueue


class Loop:
    """Runs act() every 1 / hz seconds; ask(observation, frozen) -> (actions, normalized) on a thread of its own."""

    def __init__(self, ask, *, hz=30.0, clock=Wall, **options):
        if not hz > 0:
            raise InvalidArgumentError(f"hz: wanted a positive number, got {hz}")
        self._ask, self._period, self._clock, self._options = ask, 1 / hz, clock, options

    def run(self, position, observe, act, *, seconds: float) -> Report:
        """observe() gives what ask() takes; act(Tick) moves the robot."""
        clock, runner, report = self._clock, Runner(**self._options), Report()
        questions = clock.questions()
        worker = threading.Thread(target=self._answer, args=(runner, questions, report), daemon=True)
        worker.start()
        begun = clock.monotonic()
        runner.start(position, begun)
        try:
            for i in range(max(1, round(seconds / self._period))):
                due = begun + i * self._period
                clock.sleep(max(0.0, due - clock.monotonic()))
                now = clock.monotonic()
                report.late += now - due > 0.1 * self._period
                if runner.wants(now):
                    request, frozen = runner.begin(now)
                    questions.put((request, observe(), frozen))
                    report.asked += 1
                tick = runner.next(clock.monotonic())
                act(tick)
                report.ticks += 1
                report.clamped += tick.clamped
                report.sources[tick.source] = report.sources.get(tick.source, 0) + 1
        finally:
            questions.put(None)
            worker.join()
        return report

    def _answer(self, runner, questions, report) -> None:
        while (question := questions.get()) is not None:
            request, observation, frozen = question
            if not questions.empty():  # put anew since: the newer one counts
                runner.fail(request)
                continue
            try:
                actions, normalized = self._ask(observation, frozen)
                runner.deliver(request, actions, normalized)
            except Error as e:
                runner.fail(request)
                report.failures.append(e)
