"""One model for many callers: threads, asyncio tasks, iterators that are left, callbacks that ask again, close, fork, exit."""
import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import vivace
from tests.test_model import IDS, PATH
from vivace import _core

TINY = Path(__file__).parent / "fixtures" / "tiny"
PROMPTS = [IDS[:n] for n in (1, 9, 30, 4, 17, 37, 2, 25)]


def load(path=PATH, **options):
    return vivace.load_model(path, device="cpu", **options)


@pytest.fixture(scope="module")
def alone():
    """What each prompt is answered with when nothing else runs."""
    with load() as model:
        return [model.generate_ids(p, max_tokens=20, temperature=0.8, seed=5).tokens for p in PROMPTS]


def ask(model, i, **options):
    return model._stream(PROMPTS[i], None, **{"max_tokens": 20, "temperature": 0.8, "seed": 5, **options})


def tokens(stream):
    return [c.token for c in stream]


@pytest.mark.parametrize("options", [dict(max_batch=1), dict(max_batch=3), dict(max_batch=3, num_kv_blocks=4), dict(max_batch=3, max_in_flight_steps=4)])
def test_interleaved_streams_of_one_thread(alone, options):
    """A2, S1-1: no stream shows what another one said."""
    with load(context=64, **options) as model:
        streams = [ask(model, i) for i in range(len(PROMPTS))]
        got = [[] for _ in PROMPTS]
        for _ in range(20):
            for i, s in enumerate(streams):
                got[i].append(next(s).token)
        assert got == alone
        assert all(list(s) == [] for s in streams) and model._live.pending() == 0


@pytest.mark.parametrize("options", [dict(max_batch=1), dict(max_batch=4, num_kv_blocks=4)])
def test_threads(alone, options):
    with load(context=64, **options) as model:
        wrong = []

        def work(k):
            for n in range(6):
                i = (k + n) % len(PROMPTS)
                if tokens(ask(model, i)) != alone[i]:
                    wrong.append((k, i))

        run_all(work, 32)
        assert not wrong and model._live.pending() == 0


def test_news_comes_at_once():
    """Readers poll five times a second besides: a wake-up that is lost costs 0.2 s."""
    with load(context=64, max_batch=2, logit_bias=True) as model:
        start = time.monotonic()
        for _ in range(20):
            tokens(ask(model, 0, mask=lambda so_far: None))
        assert time.monotonic() - start < 20


def run_all(work, count):
    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads), "a thread hangs"


def leave_by_close(model):
    s = ask(model, 5)
    next(s)
    s.close()


def leave_by_break(model):
    for _ in ask(model, 5):
        break


def leave_unread(model):
    ask(model, 5)


def leave_to_the_collector(model):
    s = ask(model, 5)
    next(s)
    cycle = [s]
    cycle.append(cycle)


def leave_a_mask_unasked(model):
    """The engine waits for its bias: nothing but the iterator's end ends it."""
    next(ask(model, 5, mask=lambda so_far: None))


def leave_by_mask(model):
    def mask(so_far):
        if so_far:
            raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        list(ask(model, 5, mask=mask))


def leave_by_bad_mask(model):
    with pytest.raises(vivace.InvalidArgumentError, match="wanted 192 booleans, one a token, got 1"):
        list(ask(model, 5, mask=lambda so_far: [True] if so_far else None))


def leave_by_interrupt(model):
    def work():
        time.sleep(0.05)
        os.kill(os.getpid(), 2)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore the signal
    try:
        threading.Thread(target=work).start()
        with pytest.raises(KeyboardInterrupt):
            while True:
                model.generate_ids(IDS, max_tokens=28)
    finally:
        signal.signal(signal.SIGINT, before)


def leave_by_task(model):
    async def main():
        s = await model.astream(PROMPTS[5], max_tokens=20)
        await s.__anext__()
        task = asyncio.create_task(model.agenerate(PROMPTS[5], max_tokens=20))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    model._text = Words()
    asyncio.run(main())


class Words:
    """A tokenizer's place for models that have none."""

    eos, template, notes = [], None, []
    prompt_ids = staticmethod(list)

    def stream(self):
        return lambda token: f"{token} "


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_break, leave_unread, leave_to_the_collector, leave_a_mask_unasked, leave_by_mask, leave_by_bad_mask, leave_by_interrupt, leave_by_task])
@pytest.mark.parametrize("pages", [0, 1])
def test_slot_and_pages_come_back(alone, leave, pages):
    """A1: with one page for one answer, whatever does not give it back stops every later request."""
    with load(context=64, num_kv_blocks=pages, logit_bias=True) as model:
        for _ in range(4):
            leave(model)
        gc.collect()
        assert tokens(ask(model, 0)) == alone[0]
        model.profile()  # the model is nobody's


def test_batcher_gives_back_what_it_held():
    with load(context=64, num_kv_blocks=1) as model:
        for _ in range(3):
            b = _core.Batcher(model._live)
            b.submit(prompt=IDS, max_tokens=20, temperature=0, top_k=0, top_p=1, min_p=0, repetition=1, presence=0, frequency=0, seed=0, stop=[])
            b.step()
            with pytest.raises(vivace.FailedPreconditionError, match="the model is used directly"):
                ask(model, 0)
            del b
        assert len(tokens(ask(model, 0))) == 20


def test_too_many_wait():
    with load(context=64, max_batch=1, max_waiting=2) as model:
        streams = [ask(model, 5, mask=None) for _ in range(3)]
        with pytest.raises(vivace.LimitExceededError, match=r"3 requests answer or wait already, 1 at once and 2 waiting are the most"):
            for _ in range(1000):  # until they are over
                streams.append(ask(model, 5))
        assert len({tuple(tokens(s)) for s in streams}) == 1
        assert len(tokens(ask(model, 5))) == 20
    with pytest.raises(vivace.InvalidArgumentError, match="max_waiting: wanted 0 to 65536, got -1"):
        load(max_waiting=-1)


def test_nobody_waits_for_ever():
    """Callers that ask again at once, and one of the class behind theirs: its turn comes, and only where ages count."""
    with load(context=64, max_batch=1, num_kv_blocks="full", priority_ageing=0.3) as model:
        stop = threading.Event()

        def busy(k):  # several at a time, so that one always waits
            waiting = [ask(model, k) for _ in range(8)]
            while not stop.is_set():
                waiting.append(ask(model, k))
                tokens(waiting.pop(0))

        callers = [threading.Thread(target=busy, args=(k,)) for k in range(4)]
        for t in callers:
            t.start()
        try:
            while model._live.pending() < 4:
                time.sleep(0.01)
            got = []
            for _ in range(2):
                one = threading.Thread(target=lambda: got.append(tokens(ask(model, 5, priority="batch"))))
                one.start()
                one.join(20)
                assert not one.is_alive(), "it waits for ever"
        finally:
            stop.set()
            for t in callers:
                t.join()
        assert got == [tokens(ask(model, 5))] * 2
    for wrong in (-1, float("nan"), float("inf"), 1e7):
        with pytest.raises(vivace.InvalidArgumentError, match=r"priority_ageing: wanted 0 to 1e\+06 seconds, got"):
            load(priority_ageing=wrong)
    with pytest.raises(vivace.InvalidArgumentError, match="priority_ageing: wanted a number"):
        load(priority_ageing="soon")


# ---- masks that ask the same model ---------------------------------------------------------------

def test_a_mask_may_ask_the_model(alone):
    with load(context=64, max_batch=2, logit_bias=True) as model:
        inner = []

        def mask(so_far):
            if len(so_far) % 5 == 1:
                inner.append(tokens(ask(model, 2)))

        assert tokens(ask(model, 1, mask=mask)) == alone[1]
        assert inner == [alone[2]] * 4


@pytest.mark.parametrize("options", [dict(max_batch=1), dict(max_batch=3), dict(max_batch=3, num_kv_blocks=1)])
def test_masks_that_wait_for_each_other(alone, options):
    """Every slot's mask asks for a slot: an error, not a hang."""
    with load(context=64, logit_bias=True, **options) as model:
        errors, right = [], []

        def work(k):
            def mask(so_far):
                if len(so_far) == 3:
                    try:
                        right.append(tokens(ask(model, 2)) == alone[2])
                    except vivace.FailedPreconditionError as e:
                        errors.append(str(e))

            right.append(tokens(ask(model, 1, mask=mask)) == alone[1])

        run_all(work, 4)
        assert all(right) and (errors or options.get("max_batch") == 3)
        assert all("called from a mask of this model" in e for e in errors)


def test_others_go_on_while_a_mask_thinks(alone):
    with load(context=64, max_batch=2, logit_bias=True) as model:
        go = threading.Event()

        def mask(so_far):
            if len(so_far) == 2:
                assert go.wait(30)

        got = []
        t = threading.Thread(target=lambda: got.append(tokens(ask(model, 1, mask=mask))))
        t.start()
        assert [tokens(ask(model, i)) for i in range(4)] == alone[:4]
        assert not got
        go.set()
        t.join(30)
        assert got == [alone[1]]


def test_close_in_a_mask():
    with load(context=64, logit_bias=True) as model:
        with pytest.raises(vivace.ClosedError):
            list(ask(model, 1, mask=lambda so_far: model.close() if so_far else None))


# ---- close, fork, exit ---------------------------------------------------------------------------

def test_close_while_others_wait():
    model = load(context=64, max_batch=2)
    ends = []

    def work(k):
        try:
            while True:
                tokens(ask(model, k % len(PROMPTS)))
        except vivace.ClosedError:
            ends.append(k)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(8)]
    for t in threads:
        t.start()
    time.sleep(0.1)
    model.close()
    for t in threads:
        t.join(10)
    assert sorted(ends) == list(range(8))


def python(code, **options):
    return subprocess.run([sys.executable, "-c", f"import vivace, os, sys, threading, time\nPATH={str(PATH)!r}\n" + code], capture_output=True, text=True, timeout=60, **options)


def test_a_forked_child_gets_an_error():
    done = python("""
model = vivace.load_model(PATH, device="cpu", threads=2, max_batch=2, logit_bias=True)
left = model._stream([5], None, max_tokens=40, mask=lambda so_far: None)
next(left)
pid = os.fork()
if pid == 0:
    import faulthandler; faulthandler.dump_traceback_later(20, exit=True)
    said = []
    for call in (lambda: model.generate_ids([5], max_tokens=2), lambda: model.profile(), lambda: list(left)):
        try: call()
        except vivace.FailedPreconditionError as e: said.append("loaded before fork()" in str(e))
    with vivace.load_model(PATH, device="cpu") as own: said.append(len(own.generate_ids([5], max_tokens=2).tokens) == 2)
    print(said, flush=True)
    model.close()
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(model.generate_ids([5], max_tokens=2).tokens))
""")
    assert done.stdout == "[True, True, True, True]\n0 2\n", (done.stdout, done.stderr)


def test_the_end_of_the_interpreter_meets_daemon_threads():
    """C1: it used to abort, one run in fifteen."""
    for _ in range(8):
        done = python("""
model = vivace.load_model(PATH, device="cpu", max_batch=2)
def work():
    try:
        while True: model.generate_ids([5, 6], max_tokens=60)
    except vivace.ClosedError: pass
for _ in range(8): threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
""")
        assert (done.returncode, done.stderr) == (0, ""), done


# ---- asyncio -------------------------------------------------------------------------------------

def test_many_tasks(alone):
    async def one(model, i):
        if i % 2:
            return (await model.agenerate(PROMPTS[i % 8], max_tokens=20, temperature=0.8, seed=5)).tokens
        return [c.token async for c in await model.astream(PROMPTS[i % 8], max_tokens=20, temperature=0.8, seed=5)]

    async def main(model):
        return await asyncio.gather(*(one(model, i) for i in range(64)))

    with load(context=64, max_batch=3) as model:
        model._text = Words()
        for _ in range(2):  # two loops, one after the other
            assert asyncio.run(main(model)) == [alone[i % 8] for i in range(64)]
        assert model._live.pending() == 0


def test_tasks_hold_no_threads():
    async def main(model):
        streams = [await model.astream(PROMPTS[1], max_tokens=20) for _ in range(40)]
        before = threading.active_count()
        tasks = [asyncio.create_task(anext(s)) for s in streams]
        await asyncio.sleep(0)
        assert threading.active_count() <= before
        await asyncio.gather(*tasks)

    with load(context=64) as model:
        model._text = Words()
        asyncio.run(main(model))


# ---- what an answer says -------------------------------------------------------------------------

def test_one_bad_prompt_fails_alone(alone):
    """B8."""
    with load(context=64, max_batch=2) as model:
        model._text = Words()
        good, options = PROMPTS[1], dict(max_tokens=20, temperature=0.8, seed=5)
        answers = model.generate_batch([good, [], [5, 10**6], IDS + IDS, good], **options)
        assert [a.tokens for a in answers] == [alone[1], [], [], [], alone[1]]
        assert [a.finish for a in answers] == ["length", "error", "error", "error", "length"]
        assert [getattr(a.error, "code", None) for a in answers] == [None, "InvalidArgument", "InvalidArgument", "LimitExceeded", None]
        assert answers[0].text == "".join(f"{t} " for t in alone[1]) and answers[3].prompt_tokens == 74
        assert [a.tokens for a in model.generate_batch([PROMPTS[i % 8] for i in range(50)], **options)] == [alone[i % 8] for i in range(50)]
        for wrong in (dict(temperature=-1), dict(max_tokens=0), dict(nonsense=1)):
            with pytest.raises((vivace.InvalidArgumentError, TypeError)):
                model.generate_batch([good], **{**options, **wrong})


def test_prompt_tokens():
    """S2-10."""
    with load() as model:
        assert model.generate_ids(IDS, max_tokens=2).prompt_tokens == len(IDS)


def test_nan_is_not_a_mask(tmp_path):
    """B7, S3-14: whose mistake it was."""
    import shutil

    import numpy as np
    from safetensors.numpy import load_file, save_file

    with load(logit_bias=True) as model:
        with pytest.raises(vivace.InvalidArgumentError, match="allows no token after 2 of them"):
            model.generate_ids(IDS, max_tokens=4, mask=lambda so_far: None if len(so_far) < 2 else [False] * 192)
        with pytest.raises(vivace.InvalidArgumentError, match="forbids every token"):
            model.generate_ids(IDS, max_tokens=4, logit_bias={t: float("-inf") for t in range(192)})
        with pytest.raises(vivace.InvalidArgumentError, match="token 0: wanted a finite value or -inf"):  # C6
            model.generate_ids(IDS, max_tokens=4, logit_bias={0: 1e300})
    shutil.copytree(TINY / "llama", tmp_path / "m")
    file = next((tmp_path / "m").glob("model*.safetensors"))
    weights = load_file(file)
    save_file({k: np.full_like(v, np.nan) if "norm" in k else v for k, v in weights.items()}, file, metadata={"format": "pt"})
    with load(tmp_path / "m") as model:
        model._text = Words()
        with pytest.raises(vivace.CorruptDataError, match="logits are NaN"):
            model.generate_ids(IDS, max_tokens=4)
        assert [a.error.code for a in model.generate_batch([IDS], max_tokens=4)] == ["CorruptData"]


def test_direct_calls_and_answers_exclude_each_other(alone):
    with load(context=64, logit_bias=True) as model:
        refused = []

        def mask(so_far):
            if so_far:
                with pytest.raises(vivace.FailedPreconditionError, match=r"the model is answering \(1 requests\)"):
                    model.profile()
                refused.append(len(so_far))

        assert tokens(ask(model, 1, mask=mask, max_tokens=3)) == alone[1][:3] and refused == [1, 2]
        assert model.profile()["step_us"] > 0


def test_drafts_beside_others(alone):
    """Answers with drafts share steps with other answers; a draft model is one engine's at a time."""
    with load(TINY / "llama_untied", context=100, precision="bf16", max_batch=8) as model, load(TINY / "llama", context=100, precision="bf16") as small:  # of other weights: most guesses are wrong
        plain = [model.generate_ids(p, max_tokens=30).tokens for p in PROMPTS]
        wrong = []

        def work(k):
            for n in range(4):
                i = (k + n) % len(PROMPTS)
                draft = (dict(), dict(draft="lookup"), dict(draft=small, num_speculative_tokens=3))[(k + n) % 3]
                got = model.generate_ids(PROMPTS[i], max_tokens=30, **draft).tokens
                if got != plain[i]:
                    wrong.append((k, i, draft))

        run_all(work, 12)
        assert not wrong
        assert len(small.generate_ids(PROMPTS[1], max_tokens=5).tokens) == 5  # its own again
        stream = model._stream(PROMPTS[1], None, draft=small, max_tokens=30)
        with pytest.raises(vivace.FailedPreconditionError, match="used directly"):
            for _ in range(2000):
                small.generate_ids([5], max_tokens=1)
                stream = model._stream(PROMPTS[1], None, draft=small, max_tokens=30)
        del stream
        with pytest.raises(vivace.InvalidArgumentError, match="cannot draft for itself"):
            model.generate_ids(IDS, max_tokens=2, draft=model)


def test_the_tokenizer_is_built_once(monkeypatch):
    """Sixteen threads ask for it at the same moment; a slow build lets each of them see that there is none yet."""
    built, begin = [], threading.Barrier(16)
    with vivace.load_model(PATH) as model:
        def build():
            built.append(object())
            time.sleep(0.05)
            return built[-1]
        monkeypatch.setattr(model, "_make_text", build)
        seen = []

        def ask():
            begin.wait(30)
            seen.append(model.text)
        threads = [threading.Thread(target=ask) for _ in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(30)
    assert len(built) == 1 and len(seen) == 16 and all(t is built[0] for t in seen)
