"""Calls on a GPU: many in one piece of memory, so that a batch costs one copy there and one back."""
import os
import time
import traceback

import torch

import vivace
from tests.differential import chains
from tests.differential.draw import draw, turned_hostile
from tests.differential.kernels import CANDIDATES, Kernels, scale_of
from tests.differential.memory import Memory
from tests.differential.run import Lost, Result, compare, issue, prepare, refused
from tests.differential.work import Worker
from tests.gpu.memory import TORCH, Capture
from tests.op_data import DTYPES, is_block, valid_rows

NAME = os.environ["VIVACE_TEST_DEVICE"].removeprefix("torch-")
ROOM = 96 << 20   # bytes of a batch's memory
MOST_CALLS = 48   # of a batch
LONGEST_BATCH = 5.0  # seconds, by the batch before, the first has four calls: a process can end only between batches
LOST = 3          # exit status of a process whose GPU does not answer any more
COMPILING = 0.15  # of a process's time, at most: kernels beyond the table are compiled at their first call
LAST = 0.75       # of a run after which nothing new is compiled


def arrays(there, memory):
    """What the op takes, over the memory there."""
    out = {}
    for port in memory.call.case.dtypes:
        span = memory.span(port)
        if is_block(span.dtype):
            rows = there.as_strided((span.count, span.row), (span.pitch, 1), span.start)
            out[port] = vivace.view(rows, dtype=span.dtype, shape=span.shape)
        else:
            whole = torch.empty(0, dtype=TORCH[span.dtype], device=NAME).set_(there.untyped_storage())
            out[port] = whole.as_strided(span.shape, span.strides(), span.start // DTYPES[span.dtype]["bytes"])
    return out


class Place:
    """Where a chain runs: GPU memory."""

    Capture = Capture

    AT_ONCE = 10  # replays before the host looks

    def __init__(self, size):
        self.there = torch.empty(size, dtype=torch.uint8, device=NAME)

    def replays(self, graph, sets, wanted, end):
        """As chains.Host's; the memory is compared here, so that replays follow one another without the host."""
        sets, wanted = (torch.stack([torch.from_numpy(image) for image in images]).to(NAME) for images in (sets, wanted))
        held = torch.empty((self.AT_ONCE, *self.there.shape), dtype=torch.uint8, device=NAME)
        for first in range(0, chains.REPLAYS, self.AT_ONCE):
            if time.monotonic() > end:
                break
            for i in range(self.AT_ONCE):
                self.there.copy_(sets[(first + i) % chains.SETS])
                graph.replay()
                held[i].copy_(self.there)
            which = torch.arange(first, first + self.AT_ONCE, device=NAME) % chains.SETS
            try:
                odd = (held != wanted[which]).any(1).cpu().numpy()
            except RuntimeError as e:
                raise Lost(str(e).splitlines()[0]) from None
            if odd.any():
                i = int(odd.argmax())
                return first + i, held[i].cpu().numpy()
        return None

    def put(self, image):
        self.there.copy_(torch.from_numpy(image))

    def get(self):
        try:
            return self.there.cpu().numpy().copy()
        except RuntimeError as e:
            raise Lost(str(e).splitlines()[0]) from None

    def arrays(self, memory):
        return arrays(self.there, memory)

    def wait(self):
        if NAME != "cpu":
            torch.cuda.synchronize()


class Batch:
    """Memory here and there, and the calls that lie in it."""

    def __init__(self, room=ROOM):
        pin = NAME != "cpu"
        self.there = torch.empty(room, dtype=torch.uint8, device=NAME)
        self.sent, self.back = (torch.empty(room, dtype=torch.uint8, pin_memory=pin) for _ in range(2))
        self.before, self.after = self.sent.numpy(), self.back.numpy()
        self.room, self.used, self.entries = room, 0, []
        self.issuing = 0.0  # seconds: what is compiled, is compiled there

    def reset(self):
        self.used, self.entries = 0, []

    def take(self, call):
        """Lays out a call and its contents; False if there is no room for it."""
        call, data = prepare(call)
        memory = Memory(call, self.used)
        if memory.base + memory.size > self.room:
            return False
        memory.fill(self.before, data, valid_rows(call.case))
        self.used += memory.size
        self.entries.append((call, data, memory))
        return True

    def run(self):
        """Results of the calls taken, in their order."""
        n, said = self.used, []
        try:
            self.there[:n].copy_(self.sent[:n], non_blocking=True)
            begin = time.monotonic()
            for call, _, memory in self.entries:
                said.append(issue(call, arrays(self.there, memory)))
            self.issuing += time.monotonic() - begin
            self.back[:n].copy_(self.there[:n], non_blocking=True)
            if NAME != "cpu":
                torch.cuda.synchronize()
        except vivace.Error:  # of a view that no call can have: nothing was launched
            raise
        except RuntimeError as e:  # torch's word for an error of the driver
            raise Lost(str(e).splitlines()[0]) from None
        return [self.judged(call, data, memory, error) for (call, data, memory), error in zip(self.entries, said)]

    def judged(self, call, data, memory, error):
        there = slice(memory.base, memory.base + memory.size)
        before, after = self.before[there], self.after[there]
        if error:
            return refused(call, error, Memory(call), before, after)
        try:
            return Result(call, wrong=compare(call, Memory(call), before, after, data))
        except Exception:
            return Result(call, wrong="not judged: " + traceback.format_exc(limit=-4))


def single(batch, call):
    """One call by itself."""
    batch.reset()
    if not batch.take(call):
        return Result(call, refused="larger than a batch's memory")
    return batch.run()[0]


class DeviceWorker(Worker):
    """A Worker whose calls wait for a batch."""

    def __init__(self, args, share, file):
        super().__init__(args, share, file)
        major, minor = torch.cuda.get_device_capability() if NAME != "cpu" else (9, 0)
        self.batch, self.waiting, self.kernels = Batch(), [], Kernels(args.seed, 10 * major + minor, share, args.jobs, args.only)
        self.place, self.each = Place, LONGEST_BATCH / 4  # seconds a call, judged too
        self.fails = lambda call: bool(single(self.batch, call).wrong)


    def spare(self):
        """Whether there is time to compile."""
        seconds, gone = self.args.seconds, time.monotonic() - (self.args.begun or 0)
        return not seconds or gone < LAST * seconds and self.batch.issuing < COMPILING * max(gone, 30)

    def serves(self, call):
        return self.args.at is not None or self.kernels.serves(call, self.spare())

    def one(self, op, number):
        """A turn of an op: one of several draws; with --at the one of that number."""
        tally = self.tally(op)
        numbers = [number] if self.args.at is not None else range(CANDIDATES * number, CANDIDATES * (number + 1))
        chosen = self.kernels.choose(op, numbers, self.args.seed, self.spare()) if self.args.at is None else (number, draw(op, f"{self.args.seed}.{number}", scale_of(number)))
        if chosen is None:
            return
        number, call = chosen
        seed = f"{self.args.seed}.{number}"
        if self.mode == "hostile":
            call = turned_hostile(call, seed)
        if not self.batch.take(call):
            self.flush()
            if not self.batch.take(call):
                tally.drawn += 1
                tally.refused["larger than a batch's memory"] += 1
                return
        self.waiting.append((op, seed, call))
        if len(self.waiting) >= MOST_CALLS or (len(self.waiting) + 1) * self.each > LONGEST_BATCH:
            self.flush()

    def flush(self):
        if not self.waiting:
            return
        self.note(*((op, seed, call.line()) for op, seed, call in self.waiting))
        begin = time.monotonic()
        results = self.batch.run()
        self.each = (time.monotonic() - begin) / len(results)
        waiting, self.waiting = self.waiting, []
        for (op, seed, call), result in zip(waiting, results):
            self.tally(op).add(seed, result, self.each)
            if result.wrong:
                self.wrong(op, seed, call, result, self.tally(op))
        self.batch.reset()


def main(args, share, file):
    """A process of a run on a GPU."""
    worker = DeviceWorker(args, share, file)
    try:
        worker.all()
    except Lost as e:
        print(f"LOST the GPU: {e}", flush=True)
        os._exit(LOST)
    return 0
