"""The memory of one call: every port between guards in one run of bytes, strided and off its alignment as the call says."""
import numpy as np

import vivace
from tests.op_data import DTYPES, GUARD, NUMPY, by_row, is_block, ports, reference, row_bytes, shape_of

ALIGN = 64


class Span:
    """Where a port's rows lie: `gap` bytes between them, `inner` between entries of the second axis. `columns`: a matrix's columns lie so."""

    def __init__(self, dtype, shape, start, gap, inner=0, columns=False):
        self.dtype, self.shape, self.start, self.inner, self.columns = dtype, tuple(shape), start, inner, columns
        self.count, self.row = (shape[0] if shape else 1), row_bytes(dtype, shape)
        if inner:
            self.row += inner * shape[1]
        self.pitch = (shape[0] * DTYPES[dtype]["bytes"] if columns else self.row) + gap

    @property
    def end(self):
        if self.columns:
            return self.start + self.shape[1] * self.pitch
        return self.start + max(self.count - 1, 0) * self.pitch + self.row

    def bytes(self, memory):
        if self.columns:
            unit = DTYPES[self.dtype]["bytes"]
            return np.ndarray((*self.shape, unit), np.uint8, memory, self.start, (unit, self.pitch, 1))
        if self.inner:
            entry = row_bytes(self.dtype, self.shape[1:])
            return np.ndarray((self.count, self.shape[1], entry), np.uint8, memory, self.start, (self.pitch, entry + self.inner, 1))
        return np.ndarray((self.count, self.row), np.uint8, memory, self.start, (self.pitch, 1))

    def strides(self):
        """In elements, of a plain dtype."""
        unit, strides, n = DTYPES[self.dtype]["bytes"], [], 1
        if self.columns:
            return [1, self.pitch // unit]
        for dim in reversed(self.shape[1:]):
            strides.insert(0, n)
            n *= dim
        strides.insert(0, self.pitch // unit if len(self.shape) > 1 else 1)
        if self.inner:
            strides[1] += self.inner // unit
        return strides


class Memory:
    """Spans of a call's ports from byte `base` on, a multiple of ALIGN; `size` bytes in all."""

    def __init__(self, call, base=0):
        self.call, self.spans, at = call, {}, base
        for port, dtype in call.case.dtypes.items():
            if port in call.inplace:
                continue
            off, gap, *inner = call.layout.get(port, (0, 0))
            columns = ports(call.op)[port]["columns"] and inner == [1]
            unit = 2 if is_block(dtype) else DTYPES[dtype]["bytes"]
            shape = shape_of(call.op, port, call.case)
            start = -(-(at + GUARD) // ALIGN) * ALIGN + off * unit
            self.spans[port] = Span(dtype, shape, start, *(n * DTYPES[dtype]["bytes"] for n in ((gap,) if columns else (gap, *inner))), columns=columns)
            at = self.spans[port].end + GUARD
        self.base, self.size = base, -(-(at - base) // ALIGN) * ALIGN

    def span(self, port):
        return self.spans[self.call.inplace.get(port, port)]

    def fill(self, memory, data, n):
        """Guards, poison and contents; rows from `n` on of what is read are made unusable."""
        call = self.call
        memory[self.base : self.base + self.size] = 0xFF
        for port, span in self.spans.items():
            rows = span.bytes(memory)
            if port in data:
                rows[...] = data[port].reshape(rows.shape)
                if call.case.rows is not None and by_row(call.op, port):
                    rows[n:] = 0xFF
            else:
                rows[...] = call.fill

    def may_change(self, n, answered=True):
        """A byte each: 0 where the call may write, 0xFF elsewhere. `answered`: its contents say which rows stay."""
        keep = np.full(self.size, 0xFF, np.uint8)
        spec, left_alone = ports(self.call.op), getattr(reference(self.call.op), "left_alone", lambda port, case: None)
        for port in self.call.case.dtypes:
            if spec[port]["io"] == "in":
                continue
            span = self.span(port)
            rows = np.ndarray((span.count, span.row), np.uint8, keep, span.start - self.base, (span.pitch, 1))
            rows[: n if by_row(self.call.op, port) else span.count] = 0
            if answered and (left := left_alone(port, self.call.case)) is not None:
                rows[left] = 0xFF
        return keep

    def arrays(self, memory):
        """What the op takes, over host memory."""
        out = {}
        for port in self.call.case.dtypes:
            span = self.span(port)
            if is_block(span.dtype):
                out[port] = vivace.view(span.bytes(memory), dtype=span.dtype, shape=span.shape)
            else:
                unit = DTYPES[span.dtype]["bytes"]
                out[port] = np.ndarray(span.shape, NUMPY[span.dtype], memory, span.start, [s * unit for s in span.strides()])
        return out

    def where(self, byte):
        """Which port's surroundings a byte belongs to."""
        for port, span in self.spans.items():
            if span.start - GUARD <= byte < span.end + GUARD:
                at = byte - span.start
                return f"port {port}" + (f", {-at} bytes before it" if at < 0 else f", {byte - span.end + 1} bytes behind it" if byte >= span.end
                                         else f", row {at // max(span.pitch, 1)}, byte {at % max(span.pitch, 1)} of rows of {span.row}")
        return f"byte {byte}"
