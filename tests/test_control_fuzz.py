"""Runners under any order of calls: answers that are late, lost, failed, doubled, overtaken, wrong, another runner's or made up.

The actions of an answer say to which question they belong, so that every action that comes out is checked against a plain
model of what may come: never NaN, never further than max_step, never of an answer that is stale, foreign or overtaken."""
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import vivace
from vivace.control import Runner

STALE, WATCHDOG = 0.5, 0.8
LARGEST = float(np.finfo(np.float32).max)
NUMBERS = st.one_of(st.floats(-100, 100, width=32), st.sampled_from([LARGEST, -LARGEST, 0.0, 1e-45, 2.0**100]))


class Robots(RuleBasedStateMachine):
    """Two robots, whose policies' answers may go to the wrong one."""

    @initialize(join=st.sampled_from(["swap", "blend", "prefix", "future"]), horizon=st.integers(1, 12), dims=st.integers(1, 3), bounded=st.booleans(), deadline=st.sampled_from([0.0, 0.1]), data=st.data())
    def make(self, join, horizon, dims, bounded, deadline, data):
        self.join, self.horizon, self.dims, self.network = join, horizon, dims, 2
        self.bound = np.float32(data.draw(st.lists(st.floats(2.0**-10, 2.0**30, width=32), min_size=dims, max_size=dims))) if bounded else None
        self.runners = [Runner(dims=dims, horizon=horizon, network_dims=2, join=join, max_action_age=STALE, watchdog=WATCHDOG, deadline=deadline,
                               **({"max_step": self.bound} if bounded else {})) for _ in range(2)]
        self.now = 0.0
        self.asked = [[], []]      # (request, tick, time, life)
        self.answers, self.answered = [{}, {}], [0, 0]  # by request id: what counts; the newest of them
        self.tick, self.life, self.last = [0, 0], [0, 0], [None, None]
        self.newest = [0, 0]       # id of the newest answer that was used

    def position(self, data):
        return np.float32(data.draw(st.lists(NUMBERS, min_size=self.dims, max_size=self.dims)))

    @rule(which=st.integers(0, 1), data=st.data())
    def start(self, which, data):
        self.last[which] = self.position(data)
        self.runners[which].start(self.last[which], self.now)
        self.life[which] += 1
        self.newest[which] = 0

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.03, 0.2, 0.6]))
    def wait(self, seconds):
        self.now += seconds

    @rule(which=st.integers(0, 1))
    def ask(self, which):
        if self.last[which] is None:
            return
        request, action_prefix = self.runners[which].start_request(self.now)
        assert (action_prefix is None) == (request.prefix_length + request.ahead == 0) and 0 <= request.prefix_length < max(self.horizon, 1) and 0 <= request.ahead <= self.horizon
        if action_prefix is not None and self.join == "future":  # what is left of answers of this runner, each within max_step of the one before
            assert request.prefix_length == 0 and action_prefix.shape == (request.ahead, self.dims) and np.isfinite(action_prefix).all()
            rows = np.concatenate([self.last[which][None], action_prefix]).astype(np.float64)
            assert self.bound is None or (np.abs(np.diff(rows, axis=0)) <= self.bound * (1 + 1e-6)).all()
            known = [self.answers[which][q[0].id][self.tick[which] + i - q[1]] for q in self.asked[which] if q[0].id in self.answers[which] for i in range(request.ahead) if 0 <= self.tick[which] + i - q[1] < self.horizon]
            assert self.bound is not None or all(row[0] in known for row in action_prefix)
        elif action_prefix is not None:  # rows of an answer of this runner, as many as it says
            assert self.join == "prefix" and np.isfinite(action_prefix).all() and action_prefix.shape == (request.prefix_length, self.network)
            first = int(action_prefix[0, 0])
            of = [q for q in self.asked[which] if q[0].id % (1 << 20) == first and q[0].id in self.answers[which]]
            assert of, "another runner's, or nobody's"
            assert (action_prefix[:, 1] == self.tick[which] - of[0][1] + np.arange(request.prefix_length)).all()
        assert not any(request.id == q[0].id for all_ in self.asked for q in all_)
        assert request.tick == self.tick[which] + request.ahead
        self.asked[which].append((request, request.tick, self.now, self.life[which]))

    def chunk(self, request, value):
        """Row k is value + k / 8 in every dimension; the network's own rows are (id, k)."""
        actions = (np.float32(value) + np.arange(self.horizon, dtype=np.float32)[:, None] / np.float32(8)).repeat(self.dims, 1)
        own = np.stack([np.full(self.horizon, request.id % (1 << 20)), np.arange(self.horizon)], 1).astype(np.float32)
        return actions, own

    def good(self, which, request, value):
        """The first answer to a question counts, unless one to a newer question is there already."""
        actions, own = self.chunk(request, value)
        self.runners[which].complete(request, actions, own)
        if request.id > self.answered[which]:
            self.answered[which] = request.id
            self.answers[which][request.id] = actions[:, 0]

    def fresh(self, which, number):
        """(question, its action) that may count at this tick: of this life, answered, not stale, and with a row for it."""
        return [(q, self.answers[which][q[0].id][number - q[1]]) for q in self.asked[which]
                if q[0].id in self.answers[which] and q[3] == self.life[which] and self.now - q[2] <= STALE and 0 <= number - q[1] < self.horizon]

    @precondition(lambda self: any(self.asked))
    @rule(data=st.data(), how=st.sampled_from(["good", "good", "good", "good", "NaN", "infinite", "size", "foreign", "fail", "foreign fail"]), value=NUMBERS)
    def answer(self, data, how, value):
        """Any question of all that were ever put, also for the second time."""
        which = data.draw(st.sampled_from([w for w in (0, 1) if self.asked[w]]))
        request, *_ = data.draw(st.sampled_from(self.asked[which][-6:]))
        actions, own = self.chunk(request, value)
        if how == "fail":
            self.runners[which].cancel(request)
        elif how.startswith("foreign"):
            before = self.runners[1 - which].needs_inference(self.now)
            try:
                self.runners[1 - which].cancel(request) if how == "foreign fail" else self.runners[1 - which].complete(request, actions, own)
                assert False, "a foreign request was taken"
            except vivace.InvalidArgumentError as e:
                assert "this runner's" in str(e)
            assert self.runners[1 - which].needs_inference(self.now) == before
        elif how == "good":
            self.good(which, request, value)
        else:
            at = data.draw(st.integers(0, actions.size - 1))
            if how == "size":
                actions = actions[:-1]
            else:
                actions.ravel()[at] = np.nan if how == "NaN" else -np.inf
            try:
                self.runners[which].complete(request, actions, own)
                assert False, "a wrong answer was taken"
            except (vivace.InvalidArgumentError, vivace.InvalidShapeError):
                pass

    @rule(which=st.integers(0, 1), value=NUMBERS, ticks=st.integers(1, 3), seconds=st.sampled_from([0.0, 0.01, 0.6]), again=st.booleans())
    def one_round(self, which, value, ticks, seconds, again):
        """What goes well, so that the rest meets robots that move: a question, its answer, some ticks."""
        if self.last[which] is None:
            return
        self.now += seconds
        self.ask(which)
        for number in range(1 + again):  # a second answer to it counts neither before the first is used nor after
            self.good(which, self.asked[which][-1][0], value if number == 0 else -value + 1)
        self.move(which, ticks)
        if again:
            self.good(which, self.asked[which][-1][0], -value + 1)

    @rule(which=st.integers(0, 1), ticks=st.integers(1, 4))
    def move(self, which, ticks):
        if self.last[which] is None:
            return
        for _ in range(ticks):
            self.one_tick(which)

    def one_tick(self, which):
        tick = self.runners[which].next(self.now)
        number, last = self.tick[which], self.last[which]
        assert tick.action.shape == (self.dims,) and np.isfinite(tick.action).all()
        if self.bound is not None:
            assert (np.abs((tick.action - last).astype(np.float64)) <= self.bound * (1 + 1e-6)).all()
        if tick.source in ("hold", "stopped"):
            assert (tick.action == last).all() and tick.chunk_index == -1
        else:
            fresh = self.fresh(which, number)
            fit = [(q, row) for q, row in fresh if q[1] == number - tick.chunk_index and abs(self.now - q[2] - tick.age) < 1e-9 and q[0].id >= self.newest[which]]
            assert 0 <= tick.chunk_index < self.horizon and tick.age <= STALE and fit, "no answer has this action"
            self.newest[which] = min(q[0].id for q, _ in fit)
            if tick.source == "chunk" and not tick.clamped:
                assert any((tick.action == row).all() for _, row in fit)
            if tick.source == "blend":
                rows = [row for _, row in fresh]
                assert self.join == "blend" and len(rows) > 1, "there is nothing to blend with"
                assert tick.clamped or ((tick.action >= min(rows)).all() and (tick.action <= max(rows)).all())
        self.last[which], self.tick[which] = tick.action, number + 1

    @invariant()
    def times_that_are_none_are_refused(self):
        if getattr(self, "last", [None])[0] is None:
            return
        for call in (self.runners[0].next, self.runners[0].start_request):
            try:
                call(float("nan"))
                assert False, "NaN is no time"
            except vivace.InvalidArgumentError:
                pass


TestRobots = Robots.TestCase
TestRobots.settings = settings(max_examples=150, stateful_step_count=60, deadline=None, report_multiple_bugs=False)
