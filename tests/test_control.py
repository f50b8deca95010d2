"""Chunks under injected delay, jitter, loss, disorder and restart: no jump exceeds the bound, nothing stale is used."""
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vivace
from vivace.control import Loop, Questions, Runner

HZ = 30.0
DIMS, HORIZON, NETWORK = 3, 20, 5


def chunk(value, rng=None):
    """A chunk around `value`; the network's own actions say which chunk and place they are."""
    actions = np.full((HORIZON, DIMS), value, np.float32)
    if rng is not None:
        actions += rng.normal(0, 0.5, actions.shape).astype(np.float32)
    return actions


def runner(**options):
    r = Runner(**{"dims": DIMS, "horizon": HORIZON, "join": "swap", **options})
    r.start([0.0] * DIMS, 0.0)
    return r


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), join=st.sampled_from(["swap", "blend", "prefix", "future"]), worst=st.integers(0, 30), loss=st.floats(0, 0.6), deadline=st.sampled_from([0.0, 0.1, 0.4]))
def test_no_jump_exceeds_the_bound(seed, join, worst, loss, deadline):
    rng = np.random.default_rng(seed)
    bound = np.float32([0.05, 0.2, 1.0])
    max_action_age, watchdog = 0.7, 1.0
    r = Runner(dims=DIMS, horizon=HORIZON, network_dims=NETWORK, join=join, max_step=bound, max_action_age=max_action_age, watchdog=watchdog, deadline=deadline)
    now, last, on_the_way, fed = 0.0, np.zeros(DIMS, np.float32), [], 0.0
    r.start(last, now)
    for tick in range(200):
        now += rng.uniform(0.2, 2.0) / HZ  # jitter of the robot's own loop
        if rng.random() < 0.01:            # restart somewhere else: the bound holds from there on
            last = rng.normal(0, 1, DIMS).astype(np.float32)
            r.start(last, now)
            fed = now
        if r.needs_inference(now):
            request, action_prefix = r.start_request(now)
            assert action_prefix is None or (join == "prefix" and 1 <= len(action_prefix) < HORIZON) or (join == "future" and 1 <= len(action_prefix) <= HORIZON)
            on_the_way.append((tick + int(rng.integers(0, worst + 1)), request))
        for item in [x for x in on_the_way if x[0] <= tick]:
            on_the_way.remove(item)
            if rng.random() < loss:
                if rng.random() < 0.5:
                    r.cancel(item[1])        # else nobody ever hears of it: the watchdog asks again
            else:
                r.complete(item[1], chunk(rng.normal(0, 3), rng), np.zeros((HORIZON, NETWORK)) if join == "prefix" else ())
        t = r.next(now)
        assert np.isfinite(t.action).all()
        assert (np.abs(t.action.astype(np.float64) - last) <= bound * (1 + 1e-6)).all()
        if t.source in ("chunk", "blend"):
            assert t.age <= max_action_age and 0 <= t.chunk_index < HORIZON
        else:
            assert (t.action == last).all() and t.chunk_index == -1
        last = t.action


def test_an_answer_counts_from_its_observation():
    """Latency-aware: what was meant for ticks that are over is skipped."""
    r = runner()
    request, _ = r.start_request(0.0)
    ramp = np.arange(HORIZON, dtype=np.float32)[:, None].repeat(DIMS, 1)
    assert [r.next(i / HZ).source for i in range(4)] == ["hold"] * 4
    r.complete(request, ramp)
    got = [r.next(i / HZ) for i in range(4, 22)]
    assert [t.chunk_index for t in got[:16]] == list(range(4, 20)) and [t.action[0] for t in got[:16]] == list(range(4, 20))
    assert [t.source for t in got[16:]] == ["hold", "hold"] and got[17].action[0] == 19
    assert r.delay == 4


def test_blend_goes_over_evenly():
    r = runner(join="blend", blend=3)
    first, _ = r.start_request(0.0)
    r.complete(first, chunk(0.0))
    for i in range(10):
        r.next(i / HZ)
    second, _ = r.start_request(10 / HZ)
    r.complete(second, chunk(4.0))
    assert [(t.source, t.action[0]) for t in (r.next(i / HZ) for i in range(10, 15))] == [("blend", 1), ("blend", 2), ("blend", 3), ("chunk", 4), ("chunk", 4)]


def test_a_prefix_is_what_will_have_been_executed():
    r = runner(join="prefix", network_dims=NETWORK)
    request, action_prefix = r.start_request(0.0)
    assert action_prefix is None
    own = np.arange(HORIZON * NETWORK, dtype=np.float32).reshape(HORIZON, NETWORK)
    for i in range(3):
        r.next(i / HZ)
    r.complete(request, chunk(1.0), own)
    for i in range(3, 10):
        r.next(i / HZ)
    assert r.needs_inference(10 / HZ)
    request, action_prefix = r.start_request(10 / HZ)
    assert (action_prefix == own[10:14]).all()  # the wait was 3 ticks: those, and one more
    with pytest.raises(vivace.InvalidShapeError, match="normalized"):
        r.complete(request, chunk(1.0), own[:5])
    assert r.needs_inference(10 / HZ)  # an answer that cannot be used is no answer


@pytest.mark.parametrize("waits", [0, 1, 3, 4, 6])
def test_a_chunk_for_the_future_begins_behind_what_was_executed(waits):
    """The actions that lead to it are those that next() gives, clamped as they are; it begins where they end, also where it is there before, and where it is late its first ones are past."""
    r = runner(join="future", max_step=[0.4, 10.0, 10.0])
    request, actions = r.start_request(0.0)
    assert actions is None and request.ahead == 0 and request.tick == 0
    for i in range(3):
        r.next(i / HZ)
    ramp = np.arange(HORIZON, dtype=np.float32)[:, None] * np.ones(DIMS, np.float32)
    r.complete(request, ramp)
    for i in range(3, 10):
        r.next(i / HZ)
    assert r.needs_inference(10 / HZ) and r.delay == 3
    request, actions = r.start_request(10 / HZ)
    assert request.ahead == 4 and request.tick == 14 and actions.shape == (4, DIMS) and (actions[:, 1] == [10, 11, 12, 13]).all()
    got = []
    for i in range(10, 20):
        if i == 10 + waits:
            r.complete(request, 100 + ramp)
        got.append(r.next(i / HZ))
    for want, tick in zip(actions, got):  # until then the chunk before it
        assert (tick.action == want).all() and tick.clamped
    first = max(4, waits)
    assert [t.action[1] for t in got[4:]] == [t if i < first else min(t + 10.0, 100 + i - 4) for i, t in [(i, got[i - 1].action[1] if i >= first else 10 + i) for i in range(4, 10)]]
    assert [t.chunk_index for t in got] == [i + 10 if i < first else i - 4 for i in range(10)]
    assert r.delay == max(3, waits)


def test_a_chunk_that_never_began_leaves_the_one_before_it():
    """Two answers before the first of them begins: the arm goes on with what it has."""
    r = runner(join="future")
    request, _ = r.start_request(0.0)
    r.next(0.0)
    r.next(1 / HZ)
    r.complete(request, chunk(1.0))
    r.next(2 / HZ)
    second, _ = r.start_request(3 / HZ)
    assert second.ahead == 3
    r.complete(second, chunk(2.0))
    assert r.next(3 / HZ).action[0] == 1
    third, actions = r.start_request(4 / HZ)  # a new prompt, say
    assert third.ahead == 3 and actions[:, 0].tolist() == [1, 1, 2]
    r.complete(third, chunk(3.0))
    assert [r.next(i / HZ).action[0] for i in range(4, 9)] == [1, 1, 1, 3, 3]


def test_old_lost_and_overtaken_answers():
    r = runner(max_action_age=0.5, watchdog=1.0)
    lost, _ = r.start_request(0.0)
    assert not r.needs_inference(0.9) and r.needs_inference(1.1)
    newer, _ = r.start_request(1.1)
    r.complete(newer, chunk(2.0))
    r.complete(lost, chunk(1.0))
    assert r.next(1.2).action[0] == 2
    assert r.next(1.55).source == "chunk" and r.next(1.7).source == "hold"  # 0.6 s old
    assert r.next(2.3).source == "stopped"
    r.start([5.0] * DIMS, 3.0)
    r.complete(newer, chunk(7.0))  # of before the restart
    assert r.next(3.0).action[0] == 5
    again, _ = r.start_request(3.0)
    r.complete(again, chunk(6.0))
    assert r.next(3.1).action[0] == 6


def test_a_question_that_misses_its_deadline_is_put_anew():
    r = runner(watchdog=5.0, deadline=0.2)
    late, _ = r.start_request(0.0)
    assert not r.needs_inference(0.19) and r.needs_inference(0.21)
    again, _ = r.start_request(0.21)
    assert r.next(0.3).source == "hold"
    r.complete(late, chunk(1.0))   # late, but newer than nothing
    assert r.next(0.31).action[0] == 1 and not r.needs_inference(0.32)
    r.complete(again, chunk(2.0))
    assert r.next(0.33).action[0] == 2


class Simulated:
    """Time that the robot's thread moves on by sleeping, up to where the policy's thread ends its thinking or has nothing to do:
    two threads, and one order of events."""

    class Questions(Questions):
        def __init__(self, time):
            super().__init__()
            self.time = time

        def put(self, question):
            with self.time.changed:
                super().put(question)
                self.time.open = True
                self.time.closed |= question is None
                self.time.changed.notify_all()

        def get(self):
            with self.time.changed:
                self.time.open = not self.empty()  # the one before is done with
                self.time.changed.notify_all()
            return super().get()

    def __init__(self):
        self.now, self.wakes, self.open, self.closed, self.changed = 0.0, None, False, False, threading.Condition()

    def questions(self):
        return self.Questions(self)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        with self.changed:
            until = self.now + seconds
            while True:
                assert self.changed.wait_for(lambda: not self.open or self.wakes is not None, 60)
                if self.wakes is None or self.wakes > until:
                    break
                self.now, self.wakes = self.wakes, None
                self.changed.notify_all()
            self.now = until

    def think(self, seconds):
        with self.changed:
            self.wakes = self.now + seconds
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.wakes is None or self.closed)


def test_a_policy_that_hangs_is_asked_the_newest_question_alone():
    asked, seen, clock = [], [], Simulated()

    def ask(observation, action_prefix):
        asked.append(observation)
        clock.think(0.255 if len(asked) == 1 else 0.012)
        return chunk(float(len(asked))), ()

    report = Loop(ask, hz=100, clock=clock, dims=DIMS, horizon=HORIZON, deadline=0.045, max_action_age=0.2, max_step=[0.5] * DIMS).run([0.0] * DIMS, lambda: len(seen), seen.append, seconds=0.6)
    # Put anew at ticks 5, 10, 15, 20 and 25; when the policy comes back at tick 25.5, the last of them is the one it is asked.
    assert asked[:2] == [0, 25] and report.asked - len(asked) == 4 and report.late == 0
    assert [t.source for t in seen[:27]] == ["hold"] * 27 and {t.source for t in seen[27:]} == {"chunk"}
    assert np.abs(np.diff([t.action[0] for t in seen])).max() <= 0.5


def test_bad_values_and_options():
    r = runner()
    request, _ = r.start_request(0.0)
    bad = chunk(1.0)
    bad[3, 1] = np.nan
    with pytest.raises(vivace.InvalidArgumentError, match="not finite"):
        r.complete(request, bad)
    with pytest.raises(vivace.InvalidShapeError, match=r"actions: wanted \[20, 3\], got \[19, 3\]"):
        r.complete(request, chunk(1.0)[:-1])
    assert r.next(0.0).source == "hold"
    other = runner()
    theirs, _ = other.start_request(0.0)
    for call, use in (("complete", lambda: r.complete(theirs, chunk(1.0))), ("cancel", lambda: r.cancel(theirs))):
        with pytest.raises(vivace.InvalidArgumentError, match=rf"^{call}: the request is not one that this runner's start_request\(\) gave; use each with its own runner"):
            use()
    fresh = Runner(dims=DIMS)
    for call in (lambda: fresh.next(0.0), lambda: fresh.start_request(0.0)):
        with pytest.raises(vivace.FailedPreconditionError, match="start"):
            call()
    assert not fresh.needs_inference(0.0)
    with pytest.raises(vivace.InvalidArgumentError, match="position is not finite"):
        fresh.start([0.0, np.inf, 0.0], 0.0)
    for option in ({"dims": 0}, {"horizon": 0}, {"join": "jump"}, {"join": "prefix"}, {"max_step": [0.1, 0.0, 0.1]}, {"max_action_age": 0.0}, {"watchdog": -1.0}, {"deadline": -1.0}, {"deadline": float("nan")}, {"ask_after": 99}, {"blend": 99}):
        with pytest.raises(vivace.InvalidArgumentError):
            Runner(**{"dims": DIMS, "horizon": HORIZON, **option})
    with pytest.raises(vivace.InvalidShapeError, match="max_step"):
        Runner(dims=DIMS, max_step=[0.1])


def test_a_short_horizon_takes_the_usual_blend():
    for join in ("swap", "blend"):
        r = Runner(dims=DIMS, horizon=4, join=join)
        r.start([0.0] * DIMS, 0.0)
        request, _ = r.start_request(0.0)
        r.complete(request, np.ones((4, DIMS)))
        assert r.next(0.0).source == "chunk"


def test_the_loop_keeps_its_pace_while_the_policy_thinks():
    import time

    calls, seen = [], []

    def ask(observation, action_prefix):
        calls.append(observation)
        if len(calls) == 2:
            raise vivace.InternalError("planted")
        time.sleep(0.06)
        return chunk(float(len(calls))), ()

    report = Loop(ask, hz=100, dims=DIMS, horizon=HORIZON, join="blend", max_step=[0.5] * DIMS).run([0.0] * DIMS, lambda: len(seen), seen.append, seconds=1.0)
    assert report.ticks == 100 == len(seen) and len(report.failures) == 1
    assert report.sources.get("chunk", 0) + report.sources.get("blend", 0) > 50
    steps = np.diff([t.action[0] for t in seen])
    assert np.abs(steps).max() <= 0.5 and seen[-1].action[0] > 1


@pytest.mark.parametrize("max_step", [(), [1.0] * DIMS, [3e38] * DIMS])
def test_chunks_at_the_ends_of_f32(max_step):
    """The difference of two numbers that f32 holds is infinite: what comes out never is."""
    top = float(np.finfo(np.float32).max)
    r = runner(join="blend", blend=8, max_step=max_step)
    for i, value in enumerate([top, -top, top]):
        request, _ = r.start_request(i * 5 / HZ)
        r.complete(request, chunk(value))
        ticks = [r.next((i * 5 + k) / HZ) for k in range(5)]
        assert all(np.isfinite(t.action).all() for t in ticks)
    assert {t.source for t in ticks} == {"blend"}
