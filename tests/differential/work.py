"""One process of a run: its share of the calls, one after the other."""
import faulthandler
import json
import signal
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

from tests.differential import MODES, chains
from tests.differential.draw import CPU, draw, turned_hostile
from tests.differential.run import Result, run
from tests.differential.shrink import SECONDS, shrink
from tests.differential.tally import Tally
from tests.op_data import OPS, reference
from tests.differential.domain import Unfit

MOST_WRONG = 3  # of an op that are made small and kept; more are counted
SHRINKING = 0.15  # of a process's time, at most
SPARE = 3  # seconds before the end in which nothing new begins: what has begun, and the results, take them


def turns(names):
    """Names in the order of a round, ops of more weight more often."""
    return [op for op in names for _ in range(max(1, round(reference(op).DOMAIN.weight)))]


class Worker:
    """Draws, runs and counts."""

    def __init__(self, args, share, file):
        self.args, self.share, self.jobs = args, share, args.jobs
        self.mode, self.end, self.shrinking = "values", float("inf"), 0.0
        self.of_mode = {}
        self.file = Path(file)
        self.at = open(self.file.with_suffix(".at"), "wb", buffering=0)
        self.place = chains.Host
        self.run, self.scale, self.fails = run, CPU, lambda call: bool(run(call).wrong)

    @property
    def tallies(self):
        return self.of_mode.setdefault(self.mode, {})

    def note(self, *calls):
        """What is about to run, (op, seed, line) each: said of a process that ends here."""
        self.at.seek(0)
        self.at.write("\n".join(f"{self.mode} {seed.replace('.', f' {op} ')} {line}" for op, seed, line in calls).encode() + b"\0")

    def tally(self, op):
        return self.tallies.setdefault(op, Tally())

    def chain(self, op, number):
        """A chain that begins with this op, if something reads what it writes."""
        seed, begin = f"{self.args.seed}.{number}", time.monotonic()
        self.note((op, seed, chains.line(op, seed, self.args.device)))
        try:
            calls, wrong, refused = chains.run(op, seed, self.place, self.serves, self.end)
        except Unfit:
            return
        for call in calls:
            self.tally(call.op).add(seed, Result(call, refused=refused), (time.monotonic() - begin) / len(calls))
        if wrong:
            self.tally(calls[0].op).wrong.append((seed, f"{wrong} (of {', '.join(c.op for c in calls)})", chains.line(op, seed, self.args.device)))

    def serves(self, call):
        """Whether a chain may have this call."""
        return True

    def one(self, op, number):
        seed, tally, begin = f"{self.args.seed}.{number}", self.tally(op), time.monotonic()
        try:
            call = draw(op, seed, self.scale)
        except Unfit:
            tally.drawn += 1
            tally.refused["no draft fits"] += 1
            return
        if self.mode == "hostile":
            call = turned_hostile(call, seed)
        self.note((op, seed, call.line()))
        try:
            result = self.run(call)
        except Exception:  # a reference or a domain that is wrong: as bad as an op that is
            result = Result(call, wrong="not judged: " + traceback.format_exc(limit=-4))
        tally.add(seed, result, time.monotonic() - begin)
        if result.wrong:
            self.wrong(op, seed, call, result, tally)

    def wrong(self, op, seed, call, result, tally):
        small, begin = call, time.monotonic()
        left = self.end - begin if self.shrinking <= SHRINKING * (self.args.seconds or float("inf")) else 0
        if len(tally.wrong) < MOST_WRONG and left > 0 and not result.wrong.startswith("not judged"):
            small = shrink(call, self.fails, min(SECONDS, left))
            self.shrinking += time.monotonic() - begin
        if len(tally.wrong) < MOST_WRONG:
            print(f"WRONG {op}, seed {seed}: {result.wrong}\n    {small.line()}", flush=True)
        tally.wrong.append((seed, result.wrong, small.line()))

    def rounds(self, mode="values", end=float("inf")):
        """The rounds of a mode, until `end`."""
        self.mode, self.end = mode, end
        order, number = turns(self.args.ops or list(OPS)), 0
        while not self.args.rounds or number < self.args.rounds:
            for i, op in enumerate(order):
                at = number * order.count(op) + order[:i].count(op)
                if (number + i) % self.jobs == self.share:
                    self.turn(op, at)
                if time.monotonic() > end:
                    return
            number += 1

    def turn(self, op, number):
        (self.chain if self.mode == "chains" else self.one)(op, number)

    def flush(self):
        """Runs what waits."""

    def all(self):
        """All modes, each in its part of the time; or the one call that is wanted."""
        args = self.args
        if args.at is not None:
            self.mode = args.mode[0]
            self.turn(args.ops[0], args.at)
            self.flush()
            return self.write()
        for i, mode in enumerate(args.mode):
            part = sum(MODES[m] for m in args.mode[: i + 1]) / sum(MODES[m] for m in args.mode)
            self.rounds(mode, args.begun + part * (args.seconds - SPARE) if args.seconds else float("inf"))
            self.flush()
            self.write()

    def write(self):
        """What is done so far, whole or not at all."""
        from vivace import _core

        result = {"modes": {mode: {op: t.to_json() for op, t in tallies.items()} for mode, tallies in self.of_mode.items()}, "kernels": list(_core.loaded_kernels()) if self.args.device != "cpu" else []}
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(result))
        new.rename(self.file.with_suffix(".json"))


def work(args):
    import vivace

    faulthandler.register(signal.SIGUSR1, all_threads=True)  # a process that is late is asked where it stands
    share, file = args.worker.split(":", 1)
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    if args.device != "cpu":
        from tests.differential.device import main

        return main(args, int(share), file)
    vivace.set_threads(1)
    Worker(args, int(share), file).all()
    return 0
