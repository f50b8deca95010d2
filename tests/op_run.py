"""Runs one case of an op with everything around it watched."""
import numpy as np

import vivace
from tests.op_data import NAN_FILL, Slot, by_row, contents, ports, shape_of, valid_rows
from tests.ref.common import FLOATS
from vivace import ops


class Run:
    """The slots of one call. `call()` issues it; `written` maps port -> bytes of its valid rows."""

    def __init__(self, op, case, data, layout="dense", fill=NAN_FILL, inplace=None, rows=None):
        self.op, self.case, self.data, self.fill = op, case, data, fill
        self.inplace = inplace or {}      # out port -> the input port it shares memory with
        self.rows = case.rows if rows is None else rows
        self.n = valid_rows(case) if rows is None else min(max(rows, 0), case.dims["T"])
        self.slots = {p: Slot(d, shape_of(op, p, case), layout) for p, d in case.dtypes.items() if p not in self.inplace}
        if self.rows is not None and "rows" not in self.slots:
            self.slots["rows"] = Slot("i32", (1,), layout)
        self.reset()

    def reset(self):
        """Inputs back in place, outputs poisoned, rows beyond the valid ones made unusable."""
        for port, slot in self.slots.items():
            slot.bytes[...] = self.data[port] if port in self.data else self.fill
            if port == "rows":
                slot.array[0] = self.rows
            elif self.rows is not None and by_row(self.op, port) and port in self.data:
                slot.bytes[self.n:] = 0xFF  # NaN, or -1: reading it would show
        self.before = {p: s.bytes.copy() for p, s in self.slots.items()}
        self.around = {p: s.surroundings() for p, s in self.slots.items()}

    def arguments(self):
        arrays = {p: s.array for p, s in self.slots.items()}
        arrays |= {p: self.slots[q].array for p, q in self.inplace.items()}
        return arrays | self.case.attrs

    def call(self):
        getattr(ops, self.op)(**self.arguments())
        return self.check_memory()

    def check_memory(self):
        """Nothing but the valid rows of the written ports has changed."""
        spec, shared = ports(self.op), set(self.inplace.values())
        for port, slot in self.slots.items():
            assert np.array_equal(slot.surroundings(), self.around[port]), f"port {port}: memory around it was written"
            untouched = slot.bytes
            before = self.before[port]
            if spec[port]["io"] != "in" or port in shared:
                if not by_row(self.op, port):
                    continue
                untouched, before = untouched[self.n:], before[self.n:]
            assert np.array_equal(untouched, before), f"port {port}: rows or inputs that are not written have changed"
        return self

    @property
    def written(self):
        spec, out = ports(self.op), {}
        for port in self.case.dtypes:
            if spec[port]["io"] == "in":
                continue
            slot = self.slots[self.inplace.get(port, port)]
            out[port] = slot.bytes[: self.n].copy() if by_row(self.op, port) else slot.bytes.copy()
        return out

    def capture(self):
        """The call captured, with proof that capturing ran nothing."""
        with vivace.Capture() as c:
            getattr(ops, self.op)(**self.arguments())
        for port, slot in self.slots.items():
            assert np.array_equal(slot.bytes, self.before[port]), f"port {port} changed while capturing"
        assert c.launches > 0
        return c


def run(op, case, distribution="normal", **options):
    return Run(op, case, contents(op, case, distribution), **options)


def close(got, want, allowed, dtype):
    """Elementwise: equal, both NaN, within the bound, or on the two sides of an overflow within it."""
    with np.errstate(all="ignore"):
        ok = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= allowed)
        if dtype in FLOATS:
            biggest = FLOATS[dtype][2]
            over = np.minimum(np.abs(got), np.abs(want)) + allowed >= biggest
            ok |= over & (np.isinf(got) | np.isinf(want)) & (np.sign(got) == np.sign(want))
    return ok
