"""A robot's loop at its own pace over a policy that answers later: chunks of actions, joined without a jump.

    loop = vivace.control.Loop(ask, dims=7, horizon=50, hz=30, join="blend", max_step=[0.05] * 7)
    loop.run(position, observe, act, seconds=60)

`Runner` is the bookkeeping alone, for loops of one's own: no thread, no clock."""
from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from vivace import _core
from vivace.errors import InvalidArgumentError, InvalidShapeError
from vivace.options import RUNNER, callable_, checked, floats, one, positive, real, wrong


@dataclass(frozen=True)
class Tick:
    """What a tick did. source: "chunk", "blend", "hold" (nothing fresh: the action before), "stopped" (held, and the
    watchdog's time is over)."""

    action: object  # f32 [dims]
    source: str
    clamped: bool
    chunk_index: int  # of the action in its chunk, -1 where it is held
    age: float  # s since its observation


class Runner:
    """vivace::serve::ChunkRunner: start(), next(), needs_inference(), start_request() from the robot's thread, complete() and cancel() from one other.

    join: "swap" (the new chunk at once), "blend" (over `blend` ticks; None: 5, or the horizon where that is shorter), "prefix"
    (the next chunk is asked to begin with what will have been executed by then; the policy's action_prefix=), "future" (it is asked for the state that
    those actions lead to, and begins behind them; the policy's future_actions=). ask_after: ticks of a
    chunk before the next is asked for, 0 = half. max_step: most that an action differs from the one before, a number a
    dimension. max_action_age: s after its observation in which an action may be used. watchdog: s without a new chunk until "stopped".
    deadline: s after which a question without an answer is put anew, 0 = the watchdog's; what comes later may still be used."""

    def __init__(self, *, dims, horizon=50, network_dims=0, join="swap", blend=None, ask_after=0, max_step=(), max_action_age=1.0, watchdog=2.0, deadline=0.0):
        import numpy

        given = checked("Runner", RUNNER, dict(dims=dims, horizon=horizon, network_dims=network_dims, join=join, blend=blend, ask_after=ask_after, max_step=max_step,
                                               max_action_age=max_action_age, watchdog=watchdog, deadline=deadline))
        self._np, self._dims, self._horizon, self._network, self._prefix = numpy, given["dims"], given["horizon"], given["network_dims"], join == "prefix"
        self._asked_with = {"prefix": (self._horizon - 1, self._network), "future": (self._horizon, self._dims)}.get(join, (0, 0))
        self._core = _core.ChunkRunner.make(**given | {"max_step": given["max_step"].ravel().tolist()})

    @staticmethod
    def _shaped(call, name, values, *shape):
        array = one(call, name, floats, values)
        if array.shape != shape:
            raise InvalidShapeError(f"{call}: {name}: wanted {list(shape)}, got {list(array.shape)}")
        return array.tobytes()

    @staticmethod
    def _now(call, now):
        return one(call, "now", real, now)

    def start(self, position, now: float) -> None:
        self._core.start(self._shaped("start", "position", position, self._dims), self._now("start", now))

    def next(self, now: float) -> Tick:
        raw, *rest = self._core.next(self._now("next", now), self._dims)
        return Tick(self._np.frombuffer(raw, self._np.float32).copy(), *rest)

    def needs_inference(self, now: float) -> bool:
        return self._core.needs_inference(self._now("needs_inference", now))

    def ticks_to_request(self) -> int | None:
        """Ticks until needs_inference() will be true, as far as that is known; None while an answer is on its way."""
        ticks = self._core.ticks_to_request()
        return None if ticks < 0 else ticks

    def start_request(self, now: float):
        """(request, actions): what complete() or cancel() get back, and the policy's action_prefix=, or with "future" its future_actions= (None where
        there are none)."""
        rows, columns = self._asked_with
        request, raw = self._core.start_request(self._now("start_request", now), rows * columns)
        count = request.prefix_length + request.ahead
        return request, self._np.frombuffer(raw, self._np.float32).reshape(rows, columns)[:count].copy() if count else None

    def complete(self, request, actions, normalized=()) -> None:
        """actions [horizon, dims]; normalized [horizon, network_dims], which "prefix" alone reads. What is refused counts as failed."""
        self._asked("complete", request)
        try:
            own = self._shaped("complete", "normalized", normalized, self._horizon, self._network) if self._prefix else b""
            given = self._shaped("complete", "actions", actions, self._horizon, self._dims)
        except BaseException:
            self.cancel(request)
            raise
        self._core.complete(request, given, own)  # counts what it refuses itself

    def cancel(self, request) -> None:
        """There will be no answer."""
        self._asked("cancel", request)
        self._core.cancel(request)

    @staticmethod
    def _asked(call, request):
        if not isinstance(request, _core.ChunkRequest):
            raise wrong(call, "request", "what start_request() gave", request)

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
    failed: int = 0  # answers that could not be used: ask() raised, or returned no (actions, normalized) of the right size and finite
    failures: list = field(default_factory=list)  # their texts, of the first MOST_TEXTS


# A policy that fails at each of a day's ticks must not fill the memory.
MOST_TEXTS, MOST_CHARACTERS = 100, 1000
MOST_TICKS = 1 << 40


class Questions:
    """What the policy is asked next: the newest question alone. One that was put before and not taken is of no use any more, and
    frames are large."""

    def __init__(self):
        self._put, self._newest = threading.Condition(), []

    def put(self, question) -> None:
        with self._put:
            self._newest[:] = [question]
            self._put.notify()

    def get(self):
        with self._put:
            self._put.wait_for(lambda: self._newest)
            return self._newest.pop()

    def empty(self) -> bool:
        return not self._newest


class Wall:
    """The time that a Loop goes by; a test has another."""

    monotonic, sleep, questions = time.monotonic, time.sleep, Questions


class Loop:
    """Runs act() every 1 / hz seconds; ask(observation, actions) -> (actions, normalized) on a thread of its own, with what start_request() gave.

    Whatever ask() raises or returns, the loop goes on: what cannot be used is counted in the report. policy: that ask() asks, where a vivace.Scheduler loaded
    it: it is told when the next question comes, so that others stand back in time. Other options are Runner's; a wrong one raises here."""

    def __init__(self, ask, *, hz=30.0, clock=Wall, policy=None, **options):
        self._ask, self._clock, self._options = one("Loop", "ask", callable_, ask), clock, checked("Loop", RUNNER, options)
        if policy is not None and not callable(getattr(policy, "expect_in", None)):
            raise wrong("Loop", "policy", "a policy", policy)
        self._policy = policy
        self._period = 1 / one("Loop", "hz", positive, hz)
        Runner(**options)
        self._asking = threading.Lock()  # of all runs one ask() at a time, also where that of the run before has not returned

    def run(self, position, observe, act, *, seconds: float) -> Report:
        """observe() gives what ask() takes; act(Tick) moves the robot. What either raises ends the run and is raised. It ends
        within `seconds` and one tick also where ask() has not returned: that answer is dropped, and until it is there no
        run of this Loop asks again."""
        one("run", "observe", callable_, observe)
        one("run", "act", callable_, act)
        ticks = one("run", "seconds", positive, seconds) / self._period
        if ticks > MOST_TICKS:
            raise InvalidArgumentError(f"seconds: {seconds} are {ticks:g} ticks, at most {MOST_TICKS}")
        clock, runner, report = self._clock, Runner(**self._options), Report()
        begun = clock.monotonic()
        runner.start(position, begun)
        answers = _Answers(self._ask, self._asking, runner, clock.questions())
        told = -1  # the tick for which others were told to stand back
        try:
            for i in range(max(1, round(ticks))):
                due = begun + i * self._period
                clock.sleep(max(0.0, due - clock.monotonic()))
                now = clock.monotonic()
                report.late += now - due > 0.1 * self._period
                if runner.needs_inference(now):
                    request, action_prefix = runner.start_request(now)
                    answers.ask(request, observe(), action_prefix)
                    report.asked += 1
                tick = runner.next(clock.monotonic())
                act(tick)
                report.ticks += 1
                report.clamped += tick.clamped
                report.sources[tick.source] = report.sources.get(tick.source, 0) + 1
                if self._policy is not None and (ticks := runner.ticks_to_request()) is not None and told != (told := i + 1 + ticks):
                    self._policy.expect_in(max(0.0, begun + told * self._period - clock.monotonic()))
        finally:
            answers.close(self._period)
            report.failed, report.failures = answers.failed, list(answers.failures)
        return report


class _Answers:
    """The thread on which a run's questions are answered."""

    _TURN = 0.05  # s between looks whether the run is over, while the ask() of a run before goes on

    def __init__(self, ask, asking, runner, questions):
        self._ask, self._asking, self._runner, self._questions = ask, asking, runner, questions
        self._closed, self.failed, self.failures = False, 0, []
        self._thread = threading.Thread(target=self._answer, name="vivace-policy", daemon=True)
        self._thread.start()

    def ask(self, request, observation, action_prefix) -> None:
        self._questions.put((request, observation, action_prefix))

    def close(self, seconds: float) -> None:
        """What comes later reaches nobody."""
        self._closed = True
        self._questions.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            _core.expect_live_objects()  # at exit, when what this thread holds may still be there

    def _answer(self) -> None:
        while (question := self._questions.get()) is not None:
            while not self._asking.acquire(timeout=self._TURN):
                if self._closed:
                    return
            try:
                if self._questions.empty():  # else it was put anew meanwhile: the newer one counts
                    self._answer_one(*question)
            finally:
                self._asking.release()
            del question  # its frames are large, and the next may be long in coming

    def _answer_one(self, request, observation, action_prefix) -> None:
        try:
            answer = self._ask(observation, action_prefix)
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise wrong("Loop", "ask()", "a tuple (actions, normalized)", answer)
            self._runner.complete(request, *answer)
        except BaseException as e:  # SystemExit too: a robot's answers do not end because a policy says so
            self._runner.cancel(request)
            self.failed += 1
            if len(self.failures) < MOST_TEXTS:
                self.failures.append(_words(e))


def _words(e: BaseException) -> str:
    """Its class and text; of a text that cannot be made, the class."""
    try:
        return f"{type(e).__name__}: {e}"[:MOST_CHARACTERS]
    except BaseException:
        return type(e).__name__
