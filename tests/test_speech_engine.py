"""The loop that runs a speech model for many threads: each lane is told what it is alone, whoever it stands beside, fails, leaves or is interrupted."""
import random
import threading
import time

import numpy as np
import pytest

import vivace
from tests import speech_data
from tests.test_speech_batch import wide
from vivace import audio
from vivace.speech.engine import LANGUAGES, Align, Engine, Lane, Window

ROWS = 4


class Core:
    """Answers are functions of the window's samples and the request; one call at a time."""

    def __init__(self, windows):
        self.windows, self.held, self.calls, self.busy = windows, [], [], threading.Lock()

    def limits(self):
        return {"windows": self.windows, "rows": ROWS}

    def encode(self, windows):
        assert self.busy.acquire(blocking=False), "two threads drive"
        assert 1 <= len(windows) <= self.windows
        self.held = [w[0] for w in windows]
        self.calls.append(len(windows))
        time.sleep(0.001)
        self.busy.release()
        if "broken" in self.held:
            raise vivace.CorruptDataError("broken")

    def decode(self, requests):
        assert sum(r.get("candidates", 1) for r in requests) <= ROWS or len(requests) == 1
        if any(r.get("bad") for r in requests):
            raise vivace.InvalidArgumentError("bad")
        return [(self.held[r["window"]], r["n"]) for r in requests]

    def align(self, window, *what):
        return self.held[window], what

    def languages(self, window):
        return self.held[window]


def steps(seed, seen):
    """A drawn lane; every answer is checked."""
    rng = random.Random(seed)
    for n in range(rng.randint(0, 4)):
        name = f"{seed} {n}"
        assert (yield Window(name, 0, 1, 0.0)) is None
        for k in range(rng.randint(0, 4)):
            if (kind := rng.randrange(4)) == 0:
                assert (yield LANGUAGES) == name
            elif kind == 1:
                assert (yield Align([1], [k], 2, [])) == (name, ([1], [k], 2, []))
            else:
                assert (yield {"n": k, "candidates": rng.randint(1, ROWS)}) == (name, k)
        seen.append(name)
    return seed


@pytest.mark.parametrize("windows", [1, 3])
def test_many_threads(windows):
    """Eight threads of drawn lanes: each is told of its own windows alone, in order, and several go together where the model has windows for them."""
    core, wrong, seen = Core(windows), [], {}
    engine = Engine(lambda: core)

    def work(thread):
        rng = random.Random(thread)
        try:
            for turn in range(12):
                seeds = [1000 * thread + 10 * turn + i for i in range(rng.randint(1, 3))]
                lists = [seen.setdefault(s, []) for s in seeds]
                assert engine.run([Lane(steps(s, own)) for s, own in zip(seeds, lists)]) == seeds
                assert all(own == [f"{s} {n}" for n in range(len(own))] for s, own in zip(seeds, lists))
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong and not any(t.is_alive() for t in threads), wrong
    assert sum(core.calls) == sum(len(own) for own in seen.values()) and max(core.calls) == windows
    assert engine._driver is None and not engine._jobs and not engine._waiting


def one(name, *requests):
    yield Window(name, 0, 1, 0.0)
    for request in requests:
        yield request
    return name


def test_faults_are_their_own():
    """A request or a window that is refused fails its lane; those beside it are told what they are alone."""
    core = Core(3)
    engine = Engine(lambda: core)
    with pytest.raises(vivace.InvalidArgumentError, match="bad"):
        engine.run([Lane(one("a", {"n": 1, "bad": True})), Lane(one("b", {"n": 1}))])
    good = [Lane(one("b", {"n": 1}, {"n": 2})), Lane(one("c", {"n": 3}))]
    results, faults = [], []

    def run(lanes):
        try:
            results.append(engine.run(lanes))
        except vivace.Error as e:
            faults.append(str(e))

    broken = [Lane(one("broken", {"n": 1}))]
    bad = [Lane(one("a", {"n": 1, "bad": True}))]
    held = threading.Event()

    def first():  # holds the loop until all wait
        yield Window("first", 0, 1, 0.0)
        held.wait(10)

    threads = [threading.Thread(target=run, args=([Lane(first())],))]
    threads[0].start()
    while not core.calls or engine._waiting:
        time.sleep(0.001)
    for lanes in (good, broken, bad):
        threads.append(threading.Thread(target=run, args=(lanes,)))
        threads[-1].start()
    while len(engine._waiting) < 4:
        time.sleep(0.001)
    held.set()
    for t in threads:
        t.join(30)
    assert sorted(map(str, results)) == ["['b', 'c']", "[None]"] and sorted(faults) == ["bad", "broken"] and 3 in core.calls


def test_an_exception_of_a_callback_ends_its_lanes():
    import queue

    core, events, called = Core(1), queue.SimpleQueue(), []

    def told():
        for n in range(5):
            yield Window(str(n), 0, 1, 0.0)
            events.put((heard, (n,)))

    def heard(n):
        called.append(n)
        if n == 2:
            raise KeyError(n)

    engine = Engine(lambda: core)
    with pytest.raises(KeyError):
        engine.run([Lane(told())], events)
    assert called == [0, 1, 2] and len(core.calls) == 3 and engine.run([Lane(one("a"))]) == ["a"]


def test_an_interrupted_driver_hands_over():
    """Ctrl-C in the thread that drives, with others' lanes in the middle of their windows: what they wait for goes on."""
    core, began, done = Core(3), threading.Event(), []
    engine = Engine(lambda: core)

    def interrupted():
        yield Window("x", 0, 1, 0.0)
        began.set()
        while not engine._waiting:
            time.sleep(0.001)
        yield Window("y", 0, 1, 0.0)  # behind the other's, beside them
        raise KeyboardInterrupt

    def other():
        began.wait(10)
        done.extend(engine.run([Lane(one("a", {"n": 1})), Lane(one("b", {"n": 2}))]))

    t = threading.Thread(target=other)
    t.start()
    with pytest.raises(KeyboardInterrupt):
        engine.run([Lane(interrupted())])
    t.join(30)
    assert done == ["a", "b"] and engine._driver is None and core.calls == [1, 3, 2]


def test_streams_side_by_side():
    """Two streams and a file from three threads: each what it is alone, to the bit, with windows that were encoded together."""
    sounds = [audio.read(speech_data.librivox()[n][0])[0] for n in ("0930", "0880")]
    m, out = wide(), {}

    def hear(i):
        with m.stream_audio(step=1.5) as s:
            out[i] = s.push(sounds[i]) + s.finish()

    def read():
        out["file"] = [(x.text, x.tokens, x.avg_logprob) for x in m.transcribe(sounds[0], temperature=0.0).segments]

    work = [lambda: hear(0), lambda: hear(1), read]
    for f in work:
        f()
    alone, together = dict(out), []
    out.clear()

    class Spy:
        def __getattr__(self, name):
            return getattr(core, name)

        def encode(self, windows):
            until = time.monotonic() + 60
            while not together and len(m._engine._waiting) < 2 and time.monotonic() < until:
                time.sleep(0.01)  # the first window is encoded when the two others are there: the next are two at least
            together.append(len(windows))
            return core.encode(windows)

    core, m._core = m._core, Spy()
    try:
        threads = [threading.Thread(target=f) for f in work]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
    finally:
        m._core = core
    assert out == alone and max(together) > 1, together


def test_followed_side_by_side():
    """Requests that follow the sound, prompts of several steps among them: places, tokens and ends of each alone."""
    m = wide()
    core, t = m._live, m._special
    sounds = [audio.read(speech_data.librivox()[n][0])[0] for n in ("0930", "0880", "0890")]
    core.encode([(x, 0, 3000, core.peak(x)) for x in sounds])
    requests = [{"window": i, "prompt": [t["sot_prev"], *range(1000, 1000 + n), t["sot"], t["no_timestamps"]], "timestamps": False, "most": 12, "heads": m.alignment_heads, "content": len(x) // 320, "margin": i * 10}
                for i, (x, n) in enumerate(zip(sounds, (70, 3, 130)))]
    plain = {"window": 1, "prompt": [t["sot"]], "most": 9, "logprobs": True}
    assert np.diff([len(r["prompt"]) for r in requests]).any()
    assert core.decode([*requests, plain]) == [*(core.follow(r) for r in requests), core.decode([plain])[0]]
