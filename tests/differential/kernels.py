"""Which kernel a call picks, known without a GPU: calls of kernels that have not run yet go first, and few are compiled anew."""
import mmap
import re
import zlib
from collections import Counter

import numpy as np

import vivace
from tests.differential.draw import DEVICE, WIDE, draw
from tests.differential.domain import Unfit
from tests.differential.memory import Memory
from tests.op_data import OPS
from vivace import _core

KEPT = 16        # of kernels beyond the table one in so many is compiled in a run, others by runs of other seeds
WIDER = 24       # one draw in so many may be wide without being new
CANDIDATES = 8   # draws of which one runs
DRY = 8          # turns without a new kernel after which an op's first draw runs, and all are looked at in every DRYth turn
_nowhere = np.frombuffer(mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE), np.uint8)  # never touched: shapes and addresses are all that counts
_nowhere = _nowhere[-_nowhere.ctypes.data % 64 :]


def scale_of(number):
    """Every second draw is wide: it runs if it reaches a kernel that has not run, and now and then."""
    return WIDE if number % 2 else DEVICE


class Kernels:
    """The kernels that a process has run, and those of the table."""

    def __init__(self, seed, capability=90, share=0, jobs=1, only=""):
        self.seed, self.capability, self.ran = seed, capability, set()
        self.dry, self.turns = Counter(), Counter()  # of an op: turns since the last new kernel, turns
        self.share, self.jobs, self.only = share, jobs, only
        self.table = {e for op, row in OPS.items() if row["gpu"] for _, e in _core.gpu_instances(op, capability)}

    def of(self, call):
        """The kernel's expression; of a composite whose parts run one after the other what it says of types; None if the call is refused."""
        try:
            return _core.picked_kernel(call.op, self.capability, **Memory(call).arrays(_nowhere), **call.case.attrs)
        except vivace.UnsupportedError:
            if not OPS[call.op]["composite"]:
                return None
            choices = {a["name"] for a in OPS[call.op]["attrs"] if a["kind"] in ("choice", "boolean")}
            return f"{call.op} {sorted(call.case.dtypes.items())} {sorted((k, str(v)) for k, v in call.case.attrs.items() if k in choices)}"
        except vivace.Error:
            return None

    def compiled(self, op, kernel):
        """Whether runs of this seed use it: of products, which have thousands, a part."""
        products = any("q4_0" in p["dtypes"] for p in OPS[op]["ports"]) or "attention" in op
        return kernel is None or not products or kernel in self.table or zlib.crc32(kernel.encode()) % KEPT == self.seed % KEPT

    def mine(self, kernel):
        """Kernels are divided among the processes of a run: large calls for them are not made by each."""
        return zlib.crc32(kernel.encode()) % self.jobs == self.share

    def fresh(self, op, kernel, spare):
        """None if a run has no use of this kernel, else whether it is new. Those beyond the table are compiled when they first
        run, each by one of the processes: with `spare` time for it."""
        if kernel is None or kernel in self.ran:
            return False
        if kernel in self.table:
            return True
        whole = kernel.startswith("vivace::")  # else several kernels, and what it says is of types
        return True if spare and self.compiled(op, kernel) and (not whole or self.mine(kernel)) else None

    def serves(self, call, spare):
        """Whether a call needs no compiler, or has time for it."""
        kernel = self.of(call)
        new = self.fresh(call.op, kernel, spare)
        if new:
            self.ran.add(kernel)
        return new is not None

    def choose(self, op, numbers, seed, spare=True):
        """(number, call) of the first draw whose kernel has not run, or of the first; None if none fits. Draws that are refused run in every
        DRYth turn at most: they need no compiler, and would be all that runs where there is no time for one."""
        first = refused = None
        self.turns[op] += 1
        thorough = self.only or self.dry[op] < DRY or self.turns[op] % DRY == 0
        for number in numbers:
            if not thorough and first is not None:
                break
            if not thorough and scale_of(number) is WIDE and number % WIDER != 1:
                continue  # would run for a new kernel alone
            try:
                call = draw(op, f"{seed}.{number}", scale_of(number))
            except Unfit:
                continue
            kernel = self.of(call)
            if self.only:
                if kernel is not None and re.search(self.only, kernel):
                    return number, call
                continue
            if kernel is None:
                refused = refused or (number, call)
                continue
            new = self.fresh(op, kernel, spare)
            if new is None:
                continue
            if new and (scale_of(number) is DEVICE or self.mine(kernel)):
                self.ran.add(kernel)
                self.dry[op] = 0
                return number, call
            if scale_of(number) is DEVICE or number % WIDER == 1:
                first = first or (number, call)
        self.dry[op] += 1
        return first or (refused if self.turns[op] % DRY == 0 else None)
