"""Holds a finished call to its reference: whole, or, where it is large and tokens do not depend on one another, by a part of
its tokens and by the poison that no element may still show."""
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from tests.differential.draw import as_draft, bytes_of
from tests.op_data import DTYPES, NAN_FILL, by_row, ports, reference, shape_of, valid_rows
from tests.op_run import Wrong, verify
from tests.ref.common import FLOATS

WHOLE_BYTES, WHOLE_WORK = 6e5, 6e6  # calls up to here are compared whole
TOKENS = 40                         # of the others


def written(call, memory, host):
    """port -> bytes of what the call wrote, valid rows only."""
    spec, out, n = ports(call.op), {}, valid_rows(call.case)
    left_alone = getattr(reference(call.op), "left_alone", lambda port, case: None)
    for port in call.case.dtypes:
        if spec[port]["io"] == "in":
            continue
        rows = memory.span(port).bytes(host)
        out[port] = np.array(rows[:n] if by_row(call.op, port) else rows)
        if (left := left_alone(port, call.case)) is not None:
            out[port][left[: len(out[port])]] = NAN_FILL
    return out


def is_large(call):
    d = as_draft(call.op, call.case)
    return valid_rows(call.case) > 2 * TOKENS and (bytes_of(call.op, call.case) > WHOLE_BYTES or reference(call.op).DOMAIN.work(d) > WHOLE_WORK)


def judge(call, memory, host, data):
    """Wrong where the call is."""
    got, domain = written(call, memory, host), reference(call.op).DOMAIN
    if domain.tokens is None or not is_large(call):
        verify(call.op, call.case, SimpleNamespace(data=data, written=got))
        return
    still_poisoned(call, got)
    n = valid_rows(call.case)
    edges = [0, 1, n // 2, n - 2, n - 1, *(t for p in (8, 16, 32, 64, 128, 256, 512) for t in (p - 1, p) if t < n)]
    rest = np.random.default_rng(call.case.seed).integers(0, n, TOKENS - len(set(edges)))
    of_tokens(call, got, data, np.array(sorted({*edges, *map(int, rest)})))


def still_poisoned(call, got):
    """No float that was written holds the poison still."""
    spec, scratch = ports(call.op), getattr(reference(call.op), "SCRATCH", ())
    for port, rows in got.items():
        dtype = call.case.dtypes[port]
        if spec[port]["io"] != "out" or port in scratch or port in call.inplace or dtype not in FLOATS or DTYPES[dtype]["bytes"] == 1:  # of eight bits, where the poison may be an answer: NaN
            continue
        unit = DTYPES[dtype]["bytes"]
        pattern = int.from_bytes(bytes([call.fill]) * unit, "little")
        left = np.ascontiguousarray(rows).view(f"<u{unit}") == pattern
        if left.any():
            raise Wrong(f"{port}: {np.count_nonzero(left)} of {left.size} elements hold what was there before, first {list(map(int, np.argwhere(left)[0]))}")


def of_tokens(call, got, data, tokens):
    """The same, of these tokens as if they were all."""
    case, hooks, by_place = call.case, reference(call.op).DOMAIN.tokens, getattr(reference(call.op), "BY_PLACE", ())
    dtypes = {p: t for p, t in case.dtypes.items() if p != "rows"}
    shapes, values, picked = {}, dict(case.values), {}
    for port in dtypes:
        shape = shape_of(call.op, port, case)
        rows = tokens if by_row(call.op, port) else None
        if port in hooks and not by_row(call.op, port) and (port in by_place or "ada_row" not in dtypes) and shape[0] > 1:
            rows = hooks[port](tokens, shape[0])
        shapes[port] = shape if rows is None else (len(tokens), *shape[1:])
        if port in data:
            picked[port] = data[port] if rows is None else np.asarray(data[port]).reshape(shape[0], -1)[rows]
        if port in values and rows is not None and np.ndim(values[port]):
            values[port] = np.asarray(values[port])[rows]
    for port, rows in hooks.items():
        if port not in dtypes and by_row(call.op, port):  # an index that is absent means the token itself
            dtypes[port], shapes[port], values[port] = "i32", (len(tokens),), rows(tokens, None)
            picked[port] = values[port].astype(np.int32).view(np.uint8).reshape(len(tokens), -1)
    part = replace(case, dims=case.dims | {"T": len(tokens), "whole_T": case.dims["T"]}, dtypes=dtypes, rows=None, shapes=shapes, values=values)
    rows_got = {p: b[tokens] if by_row(call.op, p) else b for p, b in got.items()}
    verify(call.op, part, SimpleNamespace(data=picked, written=rows_got))


