"""One model under many callers who come, read, leave, fail and are thrown away.

    python -m tests.stress --seconds 20 --scope threads [--model PATH] [--device cuda] [--pages 24] [--rows FILE]

64 threads, 64 asyncio tasks, or both ask one model at random: whole answers, streams that are left, dropped or closed from
another thread, masks that raise or ask again, drafts, batches with a bad prompt, direct steps. Each request may only draw
from words of its own (its canaries), or must say what its prompt is answered with alone; whatever was read is held to that
word by word. Afterwards nothing is pending, every page is free, memory has not grown. One JSON line a metric, also to --rows;
the storm itself runs in a process of its own, whose crash is one of them.
"""
import argparse
import asyncio
import faulthandler
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import vivace

TINY = Path(__file__).parent / "fixtures" / "tiny_gguf" / "llama_q4_1.gguf"
CALLERS, CASES, LONGEST = 64, 40, 24
PATIENCE = 60  # seconds a caller may take for one thing before it counts as hanging


class Case:
    """A request and its answer alone."""

    def __init__(self, model, number, vocab):
        draw = random.Random(number)
        self.ids = [draw.randrange(3, vocab) for _ in range(draw.choice((1, 5, 17, 40)))]
        self.options = dict(max_tokens=draw.randrange(4, LONGEST))
        if number % 3:
            self.options |= dict(temperature=0.9, top_p=0.95, seed=number)
        self.canaries = None
        if number % 2:  # no other request may draw these
            self.canaries = set(range(3 + number * 2, 5 + number * 2))
            self.options["logit_bias"] = {t: float("-inf") for t in range(vocab) if t not in self.canaries}
        self.tokens = model.generate_ids(self.ids, **self.options, reuse=False).tokens
        self.longer = self.ids + self.tokens  # what a turn after it would begin with
        self.after = model.generate_ids(self.longer, **self.options, reuse=False).tokens


class Storm:
    def __init__(self, model, seed, drafts):
        self.model, self.seed, self.drafts = model, seed, drafts
        self.vocab = model.report()["vocab"]
        self.cases = [Case(model, n, self.vocab) for n in range(CASES)]
        self.requests, self.mixups, self.refused = 0, [], 0
        self.busy: dict = {}  # caller -> when it began what it does
        self.stop = False
        self.lock = threading.Lock()

    def hold(self, case, tokens, whole=False):
        """What was read is what the case says alone, and of its own words."""
        foreign = case.canaries is not None and not set(tokens) <= case.canaries
        if foreign or (tokens != case.tokens if whole else tokens != case.tokens[:len(tokens)]):
            with self.lock:
                self.mixups.append((case.ids, tokens, case.tokens))

    def begin(self, caller):
        with self.lock:
            self.requests += 1
        self.busy[caller] = time.monotonic()

    def over(self):
        return self.stop

    # ---- what a thread does ----

    def thread(self, caller):
        draw = random.Random(self.seed * 1000 + caller)
        kinds = [self.whole, self.next_turn, self.forked, self.left, self.dropped, self.cancelled_aside, self.failing_mask, self.asking_mask, self.batch, self.direct, *([self.drafted] if self.drafts else [])]
        while not self.over():
            self.begin(caller)
            try:
                draw.choice(kinds)(draw, draw.choice(self.cases))
            except (vivace.LimitExceededError, vivace.FailedPreconditionError):  # the queue is full; masks wait for each other
                with self.lock:
                    self.refused += 1
                time.sleep(0.001)
            self.busy.pop(caller, None)

    def whole(self, draw, case):
        self.hold(case, self.model.generate_ids(case.ids, **case.options).tokens, whole=True)

    def next_turn(self, draw, case):
        """What was said before may be found computed, by whoever has the same salt."""
        how = dict(salt=draw.choice("abc"), deterministic=draw.random() < 0.5, priority=draw.choice(("robot", "interactive", "batch")))
        stream = self.model._stream(case.longer, None, **case.options, **how)
        got = [c.token for c in stream if c.token is not None]
        foreign = case.canaries is not None and not set(got) <= case.canaries
        if foreign or got != case.after:
            with self.lock:
                self.mixups.append((case.longer, got, case.after))

    def forked(self, draw, case):
        for i, stream in enumerate(self.model._streams(case.ids, None, 3, **case.options)):
            got = [c.token for c in stream]
            if i == 0 or "seed" not in case.options:
                self.hold(case, got, whole=True)

    def left(self, draw, case):
        stream = self.model._stream(case.ids, None, **case.options)
        self.hold(case, [c.token for c, _ in zip(stream, range(draw.randrange(len(case.tokens))))])
        stream.close()

    def dropped(self, draw, case):
        stream = self.model._stream(case.ids, None, **case.options)
        if draw.random() < 0.5:
            self.hold(case, [next(stream).token])
        cycle = [stream]
        cycle.append(cycle)
        del stream, cycle
        if draw.random() < 0.05:
            gc.collect()

    def cancelled_aside(self, draw, case):
        stream = self.model._stream(case.ids, None, **case.options)
        timer = threading.Timer(draw.random() * 0.02, stream._request.cancel)
        timer.start()
        got = [c for c in stream if c.token is not None]
        timer.join()
        self.hold(case, [c.token for c in got])

    def failing_mask(self, draw, case):
        at = draw.randrange(len(case.tokens))

        def mask(so_far):
            if len(so_far) == at:
                raise ZeroDivisionError

        try:
            self.model.generate_ids(case.ids, **case.options, mask=mask)
            self.hold(case, [-1])
        except ZeroDivisionError:
            pass

    def asking_mask(self, draw, case):
        other, at = draw.choice(self.cases), draw.randrange(len(case.tokens))

        def mask(so_far):
            if len(so_far) == at:
                self.whole(draw, other)

        self.hold(case, self.model.generate_ids(case.ids, **case.options, mask=mask).tokens, whole=True)

    def batch(self, draw, case):
        plain = [c for c in self.cases if c.options.get("logit_bias") == case.options.get("logit_bias")][:6]
        options = case.options | dict(max_tokens=4)
        same = [c for c in plain if c.options.get("seed") == case.options.get("seed")]
        answers = self.model.generate_batch([case.ids, [10**6], *(c.ids for c in same)], **options)
        self.hold(case, answers[0].tokens)
        if answers[1].finish != "error":
            self.hold(case, [-1])
        for c, a in zip(same, answers[2:]):
            self.hold(c, a.tokens)

    def direct(self, draw, case):
        self.model._live.step([(5, 0, 0, True)])  # refused while anybody answers, or over slots that answers have used

    def drafted(self, draw, case):
        plain = next(c for c in self.cases if set(c.options) == {"max_tokens"})
        got = self.model.generate_ids(plain.ids, **plain.options, draft="lookup", num_speculative_tokens=1 + draw.randrange(self.drafts)).tokens
        self.hold(plain, got, whole=True)

    # ---- what a task does ----

    async def task(self, caller):
        draw = random.Random(self.seed * 1000 + 500 + caller)
        while not self.over():
            case, kind = draw.choice(self.cases), draw.randrange(4)
            self.begin(~caller)
            try:
                if kind == 0:
                    answer = await self.model.agenerate(case.ids, **case.options)
                    self.hold(case, answer.tokens, whole=True)
                elif kind == 1:
                    got, most = [], draw.randrange(len(case.tokens))
                    async for c in await self.model.astream(case.ids, **case.options):
                        if len(got) == most:
                            break
                        got.append(c.token)
                    self.hold(case, got)
                elif kind == 2:
                    job = asyncio.create_task(self.model.agenerate(case.ids, **case.options))
                    await asyncio.sleep(draw.random() * 0.05)
                    job.cancel()
                    try:
                        self.hold(case, (await job).tokens, whole=True)
                    except asyncio.CancelledError:
                        pass
                else:
                    many = await asyncio.gather(*(self.model.agenerate(c.ids, **c.options) for c in (case, self.cases[0])))
                    self.hold(case, many[0].tokens, whole=True)
                    self.hold(self.cases[0], many[1].tokens, whole=True)
            except vivace.LimitExceededError:
                self.refused += 1
                await asyncio.sleep(0.001)
            self.busy.pop(~caller, None)

    def tasks(self):
        async def all_of_them():
            await asyncio.gather(*(self.task(k) for k in range(CALLERS)))

        asyncio.run(all_of_them())


class NoWords:
    """A tokenizer's place: the ids are the prompt, and no text is wanted."""

    eos, template, notes, replies = [], None, [], None
    prompt_ids = staticmethod(list)

    def stream(self):
        return lambda token: ""


def rss_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(scope, seconds, *, model=TINY, device="cpu", pages=0, precision="auto", seed=0):
    """The metrics of one storm."""
    drafts = 3
    with vivace.load_model(model, device=device, precision=precision, context=128, max_batch=6, num_kv_blocks=pages, logit_bias=True, max_waiting=100) as m:
        m._text = NoWords()
        storm = Storm(m, seed, drafts)
        callers = [threading.Thread(target=storm.thread, args=(k,), daemon=True) for k in range(CALLERS) if scope != "asyncio"]
        callers += [threading.Thread(target=storm.tasks, daemon=True)] if scope != "threads" else []
        failed = []
        threading.excepthook = lambda a: (failed.append(repr(a.exc_value)), sys.__excepthook__(a.exc_type, a.exc_value, a.exc_traceback))
        for t in callers:
            t.start()
        start, first, hangs = time.monotonic(), None, 0
        while not hangs and (time.monotonic() < start + seconds or any(t.is_alive() for t in callers)):
            time.sleep(0.1)
            storm.stop = time.monotonic() >= start + seconds
            first = rss_mb() if first is None and time.monotonic() > start + seconds / 4 else first
            now = time.monotonic()
            hangs = sum(now - began > PATIENCE for began in list(storm.busy.values()))
        metrics = {"requests": storm.requests, "refused": storm.refused, "mixups": len(storm.mixups), "hangs": hangs, "failed_callers": len(failed)}
        if hangs:
            faulthandler.dump_traceback(all_threads=True)
            return metrics | {"leaks": -1, "rss_growth_mb": -1}
        gc.collect()
        growth = rss_mb() - (first or rss_mb())
        until = time.monotonic() + 10
        while m._live.pending() and time.monotonic() < until:
            time.sleep(0.01)
        left = m._live.pending()
        if not left:  # every page at once, and every slot
            lost = [s for s in [m._stream([5] * 120, None, max_tokens=8) for _ in range(max(1, pages // 2) if pages else 6)] if len(list(s)) != 8]
            left = len(lost)
        for ids, got, want in storm.mixups[:5]:
            print(f"mixup: prompt {ids} gave {got}, alone {want}", file=sys.stderr)
        return metrics | {"leaks": left, "rss_growth_mb": round(growth, 1)}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--scope", choices=("threads", "asyncio", "mixed"), default="mixed")
    p.add_argument("--model", default=str(TINY))
    p.add_argument("--device", default="cpu")
    p.add_argument("--precision", default="auto")
    p.add_argument("--pages", type=int, default=0, help="pages of 64 positions that sequences share; 0: none")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--rows", help="a file to add one JSON line a metric to")
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child:
        faulthandler.enable()
        print(json.dumps(run(a.scope, a.seconds, model=a.model, device=a.device, pages=a.pages, precision=a.precision, seed=a.seed)), flush=True)
        os._exit(0)  # callers that hang must not hold up the end
    rows = list(storm_of(a))
    for row in rows:
        print(json.dumps(row), flush=True)
        if a.rows:
            with open(a.rows, "a") as f:
                f.write(json.dumps(row) + "\n")
    return 0 if all(row["pass"] for row in rows) else 1


def storm_of(a):
    """The rows of one storm in a process of its own."""
    command = [sys.executable, "-m", "tests.stress", "--child", *sys.argv[1:]]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=a.seconds + 3 * PATIENCE, cwd=Path(__file__).parent.parent)
        said, crashed = done.stdout.strip().splitlines(), done.returncode != 0
        metrics = {"crashes": int(crashed), **(json.loads(said[-1]) if said and not crashed else {"hangs": 0})}
    except subprocess.TimeoutExpired:
        metrics = {"crashes": 0, "hangs": CALLERS}
    for metric, value in metrics.items():
        # Of memory: what a run of this length allocates once (arenas of threads) and no more.
        right = value > 0 if metric == "requests" else value <= 40 if metric == "rss_growth_mb" else True if metric == "refused" else value == 0
        yield {"op": "stress", "case": f"scope={a.scope},caches={'paged' if a.pages else 'dense'},seconds={a.seconds:g},metric={metric}", "tool": "stress", "n": value, "pass": right}


if __name__ == "__main__":
    sys.exit(main())
