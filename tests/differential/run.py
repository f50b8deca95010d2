"""Runs a call in guarded memory and compares it with its reference; `again` runs the one that a line says."""
import os
from dataclasses import dataclass, replace

import numpy as np

import vivace
from tests.differential import hostile
from tests.differential.draw import Call, filled, poisoned
from tests.differential.judge import judge
from tests.differential.memory import Memory
from tests.op_data import OPS, contents, valid_rows
from tests.op_run import Wrong
from tests.ref.common import Case
from vivace import ops

MOST_DRAWN = 1 << 17  # random elements of a port: those of larger ones repeat


def aligned(size):
    raw = np.empty(size + 64, np.uint8)
    at = -raw.ctypes.data % 64
    return raw[at : at + size]


class Lost(Exception):
    """The GPU reported an error that no later call survives."""


@dataclass
class Result:
    """What a call came to. `wrong`: what is wrong with it, or None; `refused`: the error's type and text, or None."""

    call: Call
    wrong: str | None = None
    refused: str | None = None


def compare(call, memory, before, after, data):
    """None, or what is wrong with memory that was `before` and is `after`."""
    answered = True
    if call.hostile:
        plain = filled(call.op, call)
        answered = hostile.has_answer(call, hostile.spoiled(call.op, plain.case, call.hostile, plain.case.values)[1])
    changed = (before ^ after) & memory.may_change(valid_rows(call.case), answered)
    if changed.any():
        byte = memory.base + int(np.flatnonzero(changed)[0])
        return f"{np.count_nonzero(changed)} bytes that the call leaves alone have changed, first: {memory.where(byte)}"
    if not answered:
        return None
    try:
        judge(call, memory, after, data)
    except Wrong as e:
        return str(e)
    return None


def prepare(call):
    """The call with its contents, and their bytes."""
    call = filled(call.op, call)
    if call.hostile:
        values, _ = hostile.spoiled(call.op, call.case, call.hostile, call.case.values)
        call = replace(call, case=replace(call.case, values=values))
        return call, hostile.spoil_bytes(call.op, call.case, call.hostile, contents(call.op, call.case, call.distribution, MOST_DRAWN))
    return call, poisoned(call, contents(call.op, call.case, call.distribution, MOST_DRAWN))


def issue(call, arrays):
    """Issues the call; the error's type and text where it is refused."""
    try:
        with ops.checked(call.checked):
            getattr(ops, call.op)(**arrays, **call.case.attrs)
    except vivace.Error as e:
        return f"{type(e).__name__}: {e}"
    return None


def refused(call, said, memory, before, after):
    """What is wrong with a refusal, if anything: it names the op and nothing has changed. Of a composite in checked mode each part is
    looked at before it is launched, so that what earlier parts write may have changed."""
    parts = call.checked and OPS[call.op]["composite"]
    changed = (before ^ after) & memory.may_change(valid_rows(call.case), False) if parts else before ^ after
    if changed.any():
        return Result(call, wrong=f"refused ({said}), but memory has changed")
    if not said.split(": ", 1)[1].startswith(f"{call.op}: "):
        return Result(call, wrong=f"an error that does not name the op: {said}")
    return Result(call, refused=said)


def run(call):
    """One call on the CPU."""
    call, data = prepare(call)
    memory = Memory(call)
    before, after = aligned(memory.size), aligned(memory.size)
    memory.fill(after, data, valid_rows(call.case))
    before[...] = after
    if said := issue(call, memory.arrays(after)):
        return refused(call, said, memory, before, after)
    return Result(call, wrong=compare(call, memory, before, after, data))


def again(op, *, dims, dtypes, attrs=None, rows=None, shapes=None, seed=0, distribution="normal", layout=None, inplace=None, fill=0xFF, hostile="", checked=False, device="cpu"):
    """Runs one call as a failure's line says it, where it failed; raises Wrong, or prints what it came to."""
    call = Call(op, Case(dims, dtypes, attrs or {}, rows=rows, shapes=shapes or {}, seed=seed), distribution, layout or {}, inplace or {}, fill, hostile, checked)
    if device == "cpu":
        result = run(call)
    else:
        os.environ["VIVACE_TEST_DEVICE"] = device
        from tests.differential.device import Batch, single

        result = single(Batch(), call)
    if result.wrong:
        raise Wrong(f"{op}: {result.wrong}")
    print(f"{op}: refused, {result.refused}" if result.refused else f"{op}: right")
