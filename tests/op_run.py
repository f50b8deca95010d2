"""Runs one case of an op with everything around it watched."""
import numpy as np
import pytest

import vivace
from tests.op_data import NAN_FILL, Slot, by_column, by_row, contents, decode, device, expected, pitched, ports, reference, shape_of, valid_rows
from tests.ref.common import FLOATS
from vivace import ops


class Run:
    """The slots of one call. `call()` issues it; `written` maps port -> bytes of its valid rows."""

    def __init__(self, op, case, data, layout="dense", fill=NAN_FILL, inplace=None, rows=None):
        self.op, self.case, self.data, self.fill = op, case, data, fill
        self.inplace = inplace or {}      # out port -> the input port it shares memory with
        self.rows = case.rows if rows is None else rows
        self.n = valid_rows(case) if rows is None else min(max(rows, 0), case.dims["T"])
        # Each port has a row gap of its own: a stride taken from another port shows.
        self.slots = {p: Slot(d, shape_of(op, p, case), layout, gap=3 + i, pitched=pitched(op, p, case), columns=by_column(op, p, case))
                      for i, (p, d) in enumerate(case.dtypes.items()) if p not in self.inplace}
        if self.rows is not None and "rows" not in self.slots:
            self.slots["rows"] = Slot("i32", (1,), layout)
        self.reset()

    def reset(self):
        """Inputs back in place, outputs poisoned, rows beyond the valid ones made unusable."""
        for port, slot in self.slots.items():
            slot.bytes[...] = self.data[port].reshape(slot.bytes.shape) if port in self.data else self.fill
            if port == "rows":
                slot.bytes[...] = np.array([self.rows], np.int32).view(np.uint8)
            elif self.rows is not None and by_row(self.op, port) and port in self.data:
                slot.bytes[self.n:] = 0xFF  # NaN, or -1: reading it would show
            slot.push()
        self.before = {p: s.bytes.copy() for p, s in self.slots.items()}
        self.around = {p: s.surroundings() for p, s in self.slots.items()}

    def arguments(self):
        arrays = {p: s.array for p, s in self.slots.items()}
        arrays |= {p: self.slots[q].array for p, q in self.inplace.items()}
        return arrays | self.case.attrs

    def call(self):
        self.skip_unserved()
        getattr(ops, self.op)(**self.arguments())
        return self.check_memory()

    def skip_unserved(self):
        """A reference may say that no CUDA kernel serves a case yet: `unserved_on_gpu(case)` -> reason. Then the
        call must answer Unsupported and write nothing."""
        reason = device is not None and device.ON_GPU and getattr(reference(self.op), "unserved_on_gpu", lambda case: None)(self.case)
        if not reason:
            return
        with pytest.raises(vivace.UnsupportedError, match=self.op):
            getattr(ops, self.op)(**self.arguments())
        for port, slot in self.slots.items():
            slot.pull()
            assert np.array_equal(slot.bytes, self.before[port]), f"port {port} was written by a call that failed"
        pytest.skip(reason)

    def check_memory(self):
        """Nothing but the valid rows of the written ports has changed."""
        spec, shared = ports(self.op), set(self.inplace.values())
        for port, slot in self.slots.items():
            slot.pull()
            assert np.array_equal(slot.surroundings(), self.around[port]), f"port {port}: memory around it was written"
            untouched = slot.bytes
            before = self.before[port]
            left = self.left_alone(port)
            assert left is None or np.array_equal(untouched[left], before[left]), f"port {port}: rows that the call leaves alone have changed"
            if spec[port]["io"] != "in" or port in shared:
                if not by_row(self.op, port):
                    continue
                untouched, before = untouched[self.n:], before[self.n:]
            assert np.array_equal(untouched, before), f"port {port}: rows or inputs that are not written have changed"
        return self

    def left_alone(self, port):
        """A mask of a written port's rows that the call must not write, of the reference's `left_alone(port, case)`; or None."""
        return getattr(reference(self.op), "left_alone", lambda port, case: None)(port, self.case)

    @property
    def written(self):
        spec, out = ports(self.op), {}
        for port in self.case.dtypes:
            if spec[port]["io"] == "in":
                continue
            slot = self.slots[self.inplace.get(port, port)]
            out[port] = slot.bytes[: self.n].copy() if by_row(self.op, port) else slot.bytes.copy()
            if (left := self.left_alone(port)) is not None:
                out[port][left[: len(out[port])]] = NAN_FILL
        return out

    def capture(self):
        """The call captured, with proof that capturing ran nothing."""
        with (device.Capture if device else vivace.Capture)() as c:
            getattr(ops, self.op)(**self.arguments())
        for port, slot in self.slots.items():
            slot.pull()
            assert np.array_equal(slot.bytes, self.before[port]), f"port {port} changed while capturing"
        assert device or c.launches > 0  # a CUDA capture of no rows is empty
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


class Wrong(AssertionError):
    """A result outside of the reference's bound."""


def verify(op, case, r):
    """Compares a finished run with the reference; Wrong says where. Returns (error, allowed) of the
    element that came nearest to its bound, (0.0, 0.0) where everything is exact."""
    inputs, want = expected(op, case, r.data)
    scratch = getattr(reference(op), "SCRATCH", ())
    written = {p: raw for p, raw in r.written.items() if p not in scratch}
    assert set(want) >= set(written), f"the reference does not say what {set(written) - set(want)} holds"
    worst = (0.0, 0.0)
    judged = getattr(reference(op), "JUDGED", ())
    judged = judged if set(judged) <= set(written) else ()
    if judged:  # ports that only together say what they hold
        got = {p: decode(written[p], case.dtypes[p], (len(written[p]), *shape_of(op, p, case)[1:])) for p in judged}
        excess = reference(op).judged(got, inputs)
        if not excess <= 0:
            raise Wrong(f"{' and '.join(judged)}: {excess!r} beyond what is allowed")
    for port, raw in written.items():
        if port in judged:
            continue
        dtype, value = case.dtypes[port], np.asarray(want[port])
        got = decode(raw, dtype, (len(raw), *shape_of(op, port, case)[1:]))
        assert got.shape == value.shape, f"reference's {port} has shape {value.shape}, the op's {got.shape}"
        if not value.size:
            continue
        if (chosen := getattr(reference(op), "chosen", None)) is not None:
            value = chosen(port, got, value, inputs)
        with np.errstate(all="ignore"):
            allowed = reference(op).bound(port, value, dtype, inputs) if dtype in FLOATS else 0.0
            allowed = np.broadcast_to(np.asarray(allowed, np.float64), value.shape)
            ok, error = close(got, value, allowed, dtype), np.abs(got - value)
        if not ok.all():
            at = tuple(np.argwhere(~ok)[0])
            raise Wrong(f"{port}{list(map(int, at))}: got {got[at]!r}, reference {value[at]!r}, allowed {allowed[at]!r}; "
                        f"{np.count_nonzero(~ok)} of {ok.size} differ")
        share = np.where(np.isfinite(error) & (error > 0), error / np.maximum(allowed, np.finfo(np.float64).tiny), 0.0)
        at = np.unravel_index(np.argmax(share), share.shape)
        if share[at] > (worst[0] / worst[1] if worst[1] else 0.0):
            worst = (float(error[at]), float(allowed[at]))
    return worst
