"""What ask() raises and returns, and when: the loop goes on, counts it, and ends in time. Rows of docs/control.md, one by one."""
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vivace
from tests.test_control import DIMS, HORIZON, NETWORK, Simulated, chunk
from vivace.control import MOST_TEXTS, Loop

HZ = 200.0


def run(ask, seconds=0.3, position=(0.0,) * DIMS, act=lambda tick: None, clock=None, **options):
    """A run on simulated time, where an ask() takes 12 ms."""
    clock = clock or Simulated()

    def timed(observation, action_prefix):
        clock.think(0.012)
        return ask(observation, action_prefix)

    return Loop(timed, hz=HZ, clock=clock, **{"dims": DIMS, "horizon": HORIZON, **options}).run(position, lambda: None, act, seconds=seconds)


class Sly:
    """No array: its conversion raises what nobody expects."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("planted conversion")


class Unspeakable(Exception):
    def __str__(self):
        raise SystemExit("planted text")


RAISED = [TimeoutError, ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, MemoryError, vivace.InternalError, vivace.CudaError, AssertionError, OSError]
RETURNED = {
    "nothing": (None, "wanted a tuple"), "an array": (chunk(1.0), "wanted a tuple.*ndarray \\(20, 3\\)"), "a list": ([chunk(1.0), ()], "wanted a tuple"), "text": ("go", "wanted a tuple"),
    "one": ((chunk(1.0),), "wanted a tuple"), "three": ((chunk(1.0), (), ()), "wanted a tuple"), "a generator": ((x for x in ()), "generator"),
    "rows short": ((chunk(1.0)[:-1], ()), "actions: wanted \\[20, 3\\], got \\[19, 3\\]"), "transposed": ((chunk(1.0).T, ()), "got \\[3, 20\\]"), "flat": ((chunk(1.0).ravel(), ()), "got \\[60\\]"),
    "a batch": ((chunk(1.0)[None], ()), "got \\[1, 20, 3\\]"), "empty": ((np.zeros((0, 3), np.float32), ()), "got \\[0, 3\\]"),
    "NaN": ((np.full((20, 3), np.nan, np.float32), ()), "not finite"), "infinite": ((np.full((20, 3), -np.inf), ()), "not finite"), "beyond f32": ((np.full((20, 3), 1e300), ()), "not finite"),
    "one NaN": ((np.where(np.arange(60).reshape(20, 3) == 59, np.nan, 0.0), ()), "not finite"),
    "none inside": (([[None] * 3] * 20, ()), "actions: wanted numbers"), "words inside": (([["a"] * 3] * 20, ()), "wanted numbers"), "ragged": (([[1.0], [1.0, 2.0]], ()), "wanted numbers"),
    "complex": ((np.ones((20, 3), complex), ()), "wanted numbers"), "no array": ((Sly(), ()), "planted conversion"), "none twice": ((None, None), "wanted numbers"),
}


def goes_on(ask_wrong, match, **options):
    """The third answer is wrong: it is counted with its text, the ones before and after count."""
    asked, seen = [], []

    def ask(observation, action_prefix):
        asked.append(action_prefix)
        if len(asked) == 3:
            return ask_wrong()
        return chunk(float(len(asked))), np.zeros((HORIZON, NETWORK), np.float32)

    report = run(ask, act=seen.append, **options)
    assert report.failed == 1 and len(report.failures) == 1 and re.search(match, report.failures[0]), report.failures
    assert report.ticks == 60 == sum(report.sources.values()) and len(asked) > 4 and report.asked >= len(asked)
    values = {float(t.action[0]) for t in seen}
    assert 3.0 not in values and {2.0, 4.0} <= values
    assert all(np.isfinite(t.action).all() for t in seen)


@pytest.mark.parametrize("error", RAISED)
def test_whatever_ask_raises_is_a_counted_failure(error):
    def wrong():
        raise error("the camera is late")

    goes_on(wrong, f"^{error.__name__}: the camera is late$")


def test_an_exception_whose_text_cannot_be_made():
    def wrong():
        raise Unspeakable

    goes_on(wrong, "^Unspeakable$")


@pytest.mark.parametrize("what", RETURNED)
def test_whatever_ask_returns_is_a_counted_failure(what):
    value, match = RETURNED[what]
    goes_on(lambda: value, match)


@pytest.mark.parametrize("own", [(), None, np.zeros((HORIZON, NETWORK + 1)), np.zeros((HORIZON - 1, NETWORK)), np.full((HORIZON, NETWORK), np.nan)], ids=["left out", "None", "wide", "short", "NaN"])
def test_prefix_checks_the_networks_own_actions(own):
    goes_on(lambda: (chunk(3.0), own), "normalized|not finite", join="prefix", network_dims=NETWORK)


def test_texts_of_failures_are_bounded():
    """A policy that fails at every question of a long run: all are counted, the first are kept."""
    def ask(observation, action_prefix):
        raise ValueError("x" * 10000)

    report = run(ask, seconds=3.0)
    assert report.failed > MOST_TEXTS == len(report.failures) and max(map(len, report.failures)) <= 1000
    assert set(report.sources) == {"hold", "stopped"}


@pytest.mark.parametrize("what", ["raises", "returns"])
def test_observe_and_act_are_the_robots_own(what):
    """Their errors end the run, and no thread stays behind."""
    before = set(threading.enumerate())

    def broken(*args):
        raise TimeoutError("the camera is late")

    loop = Loop(lambda o, f: (chunk(1.0), ()), hz=HZ, dims=DIMS, horizon=HORIZON)
    with pytest.raises(TimeoutError, match="camera"):
        loop.run([0.0] * DIMS, broken if what == "raises" else lambda: None, (lambda t: None) if what == "raises" else broken, seconds=1.0)
    assert settled(before)


def settled(before):
    until = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    return not set(threading.enumerate()) - before


STARTS = {
    "join": (dict(join="foo"), {}, vivace.InvalidArgumentError, "join: wanted swap, blend, prefix or future, got 'foo'"),
    "join type": (dict(join=3), {}, vivace.InvalidArgumentError, "join: wanted a text, got 3"),
    "dims": (dict(dims=0), {}, vivace.InvalidArgumentError, "dims: wanted 1 to"),
    "dims type": (dict(dims=2.5), {}, vivace.InvalidArgumentError, "dims: wanted a whole number"),
    "horizon type": (dict(horizon="4"), {}, vivace.InvalidArgumentError, "horizon: wanted a whole number"),
    "large": (dict(dims=1 << 40), {}, vivace.InvalidArgumentError, "dims: wanted a whole number"),
    "memory": (dict(dims=65536, horizon=65536), {}, vivace.InvalidArgumentError, "horizon x dims: wanted at most 1048576"),
    "network": (dict(network_dims=65536, horizon=65536), {}, vivace.InvalidArgumentError, "horizon x network_dims"),
    "prefix": (dict(join="prefix"), {}, vivace.InvalidArgumentError, "network_dims"),
    "blend": (dict(blend=HORIZON + 1), {}, vivace.InvalidArgumentError, "blend: wanted 0 to 20"),
    "max_step": (dict(max_step=[0.1]), {}, vivace.InvalidShapeError, "max_step"),
    "max_step type": (dict(max_step="abc"), {}, vivace.InvalidArgumentError, "max_step: wanted numbers"),
    "max_step NaN": (dict(max_step=[0.1, float("nan"), 0.1]), {}, vivace.InvalidArgumentError, "max_step: wanted positive"),
    "stale type": (dict(max_action_age="soon"), {}, vivace.InvalidArgumentError, "max_action_age: wanted a number"),
    "max_action_age": (dict(max_action_age=float("nan")), {}, vivace.InvalidArgumentError, "max_action_age: wanted a positive time"),
    "unknown": (dict(max_stop=[0.1] * DIMS), {}, vivace.InvalidArgumentError, "no option 'max_stop', did you mean max_step"),
    "hz": (dict(hz=0), {}, vivace.InvalidArgumentError, "hz: wanted a positive number, got 0"),
    "hz NaN": (dict(hz=float("nan")), {}, vivace.InvalidArgumentError, "hz"),
    "hz type": (dict(hz="30"), {}, vivace.InvalidArgumentError, "hz"),
    "ask": (dict(ask=None), {}, vivace.InvalidArgumentError, "ask: wanted a function"),
    "observe": ({}, dict(observe=None), vivace.InvalidArgumentError, "observe: wanted a function"),
    "act": ({}, dict(act=3), vivace.InvalidArgumentError, "act: wanted a function"),
    "seconds": ({}, dict(seconds=float("inf")), vivace.InvalidArgumentError, "seconds"),
    "seconds none": ({}, dict(seconds=-1), vivace.InvalidArgumentError, "seconds"),
    "seconds many": ({}, dict(seconds=1e300), vivace.InvalidArgumentError, "seconds"),
    "position": ({}, dict(position=[0.0] * (DIMS + 1)), vivace.InvalidShapeError, "position: wanted \\[3\\], got \\[4\\]"),
    "position scalar": ({}, dict(position=0.0), vivace.InvalidShapeError, "position: wanted \\[3\\]"),
    "position type": ({}, dict(position="abc"), vivace.InvalidArgumentError, "position: wanted numbers"),
    "position none": ({}, dict(position=None), vivace.InvalidArgumentError, "position: wanted numbers"),
    "position NaN": ({}, dict(position=[0.0, float("nan"), 0.0]), vivace.InvalidArgumentError, "position is not finite"),
    "position beyond f32": ({}, dict(position=[1e300, 0.0, 0.0]), vivace.InvalidArgumentError, "position is not finite"),
}


@pytest.mark.parametrize("what", STARTS)
def test_mistakes_at_the_start_raise_before_a_thread_exists(what, monkeypatch):
    made, called, error, match = STARTS[what]
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread was started"))
    made = {"ask": lambda o, f: (chunk(1.0), ()), "hz": HZ, "dims": DIMS, "horizon": HORIZON, **made}
    with pytest.raises(error, match=match):  # an option's error comes before run()
        loop = Loop(made.pop("ask"), **made)
        assert called
        loop.run(**{"position": [0.0] * DIMS, "observe": lambda: None, "act": lambda t: None, "seconds": 0.1, **called})


@pytest.mark.parametrize("hangs", ["sleep", "never"])
def test_a_run_ends_in_time_though_ask_does_not(hangs):
    """... its thread is no obstacle, its late answer reaches nobody, and the next run asks when it is back."""
    released, asked = threading.Event(), []

    def ask(observation, action_prefix):
        asked.append(observation)
        if len(asked) == 1:
            released.wait(30)
        return (chunk(float(len(asked))), ()) if len(asked) > 1 or hangs == "sleep" else None

    loop, before = Loop(ask, hz=50, dims=DIMS, horizon=HORIZON, watchdog=0.1, deadline=0.05), set(threading.enumerate())
    begun = time.monotonic()
    report = loop.run([0.0] * DIMS, lambda: "first", lambda t: None, seconds=0.3)
    assert time.monotonic() - begun < 0.3 + 0.02 + 2  # a tick, and what a busy machine takes; who waited for ask() would not be back at all
    assert report.ticks == 15 and report.asked > 2 and report.failed == 0 and asked == ["first"]
    assert set(report.sources) == {"hold", "stopped"}
    # The ask() of the first run is still there: the second holds, and asks nothing.
    second = loop.run([0.0] * DIMS, lambda: "second", lambda t: None, seconds=0.2)
    assert asked == ["first"] and set(second.sources) <= {"hold", "stopped"}
    released.set()
    assert settled(before)
    third = loop.run([0.0] * DIMS, lambda: "third", lambda t: None, seconds=0.4)
    assert set(asked[1:]) == {"third"} and third.sources.get("chunk", 0) > 0
    assert report.failures == [] and second.failures == [] and report.ticks == 15  # nobody writes a report that was handed over


def test_questions_nobody_takes_do_not_pile_up():
    """Frames are large: of those that wait for a policy that hangs, the newest alone is kept."""
    import gc
    import weakref

    class Frame:
        pass

    alive, released = weakref.WeakSet(), threading.Event()
    most = []

    def observe():
        frame = Frame()
        alive.add(frame)
        most.append(len(alive))
        return frame

    Loop(lambda o, f: released.wait(30), hz=500, dims=DIMS, horizon=HORIZON, deadline=0.002, watchdog=1.0).run([0.0] * DIMS, observe, lambda t: None, seconds=0.3)
    released.set()
    gc.collect()
    assert len(most) > 30 and max(most) <= 4


def test_a_process_ends_though_ask_does_not():
    """At exit nothing waits for the thread and nothing aborts, be it in Python or in the core."""
    root = Path(__file__).resolve().parent.parent
    program = textwrap.dedent("""
        import sys, threading, time
        import numpy as np
        from tests.test_policy import load, observation
        from vivace.control import Loop

        where = sys.argv[1]
        policy = load("pi05", "pi05_tiny", "a", num_steps=1, threads=1) if where == "core" else None
        given = observation("pi05_tiny", "a") | dict(noise=None)

        def ask(o, f):
            if where == "python":
                threading.Event().wait()
            while True:
                policy.predict(**given)

        report = Loop(ask, hz=100, dims=3, horizon=20).run([0.0] * 3, lambda: None, lambda t: None, seconds=0.2)
        print("ended", report.ticks, flush=True)
    """)
    for where in ("python", "core"):
        done = subprocess.run([sys.executable, "-c", program, where], capture_output=True, text=True, timeout=120, cwd=root)
        assert done.returncode == 0 and done.stdout == "ended 20\n" and "leaked" not in done.stderr, (where, done.returncode, done.stderr)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_answer_however_wrong_leaves_the_bounds(data):
    """A whole run on simulated time; each answer is good, late, or wrong in one of the ways above."""
    clock, count, good, raised = Simulated(), [0], [], [0]
    bound = np.float32([0.05, 0.5, 5.0])
    answers = data.draw(st.lists(st.tuples(st.sampled_from(["good", "raise", *RETURNED]), st.floats(0.001, 0.2), st.floats(-2.0**120, 2.0**120, width=32)), min_size=1, max_size=12))
    ticks = []

    def ask(observation, action_prefix):
        what, takes, value = answers[min(count[0], len(answers) - 1)]
        count[0] += 1
        clock.think(takes)
        if what == "raise":
            raised[0] += 1
            raise RAISED[count[0] % len(RAISED)]("planted")
        if what != "good":
            raised[0] += 1
            return RETURNED[what][0]
        good.append(value)
        return chunk(value), np.full((HORIZON, NETWORK), value, np.float32)

    join = data.draw(st.sampled_from(["swap", "blend", "prefix"]))
    report = Loop(ask, hz=HZ, clock=clock, dims=DIMS, horizon=HORIZON, network_dims=NETWORK, join=join, max_step=bound, max_action_age=0.15, watchdog=0.2, deadline=data.draw(st.sampled_from([0.0, 0.03]))).run(
        [0.0] * DIMS, lambda: None, ticks.append, seconds=0.5)
    assert report.ticks == 100 == len(ticks) and report.failed <= raised[0] <= report.failed + 1  # the last may end after the run
    last = np.zeros(DIMS, np.float32)
    for tick in ticks:
        assert tick.action.shape == (DIMS,) and np.isfinite(tick.action).all()
        assert (np.abs(tick.action - last) <= bound).all()
        assert tick.age <= 0.15 + 1e-9 if tick.source in ("chunk", "blend") else (tick.action == last).all()
        last = tick.action
    if not good:
        assert set(report.sources) <= {"hold", "stopped"} and (last == 0).all()
