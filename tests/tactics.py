"""Calls that reach the tactics of an op: searched, for which kernel a call picks is known without a GPU.

    python -m tests.tactics [--capability 90] [op ...]     what the search finds, and what it does not
"""
import math
import mmap
import random
import sys

import numpy as np

import vivace
from tests.op_data import COLUMN_GAP, COLUMNS, DTYPES, NUMPY, OPS, by_column, is_block, ports, reference, row_bytes, shape_of
from tests.ref.common import FLOATS, Case
from vivace import _core, ops

SIZES = (1, 2, 3, 4, 5, 8, 16, 24, 33, 40, 48, 64, 72, 96, 100, 128, 160, 200, 256, 260, 264, 300, 512, 520, 576, 700, 1000, 1024, 1032, 1500, 1999, 2048, 2056,
         3000, 4096, 4104, 6000, 8192, 8200, 12000, 16384, 20001, 24008, 32768, 65536, 131072, 151936, 262144, 600000)
TOKENS = (1, 2, 3, 5, 8, 12, 16, 17, 24, 32, 33, 40, 64, 65, 100, 128, 200, 256, 300, 520, 1100)
LADDERS = {"T": TOKENS, "D": (16, 33, 40, 64, 64, 72, 80, 96, 128, 128, 192, 256, 256, 300, 512), "Hq": (1, 2, 4, 8, 16, 32), "Hkv": (1, 2, 4, 8)}  # the project's index letters; any other: SIZES
MOST_BYTES, MOST_FLOPS = 1 << 28, 3e9  # of a call: the reference runs it in float64
DRAWS, PATIENCE = 12000, 4000          # of dims and types for a case; draws without a new kernel
FLOATS3 = ("f32", "bf16", "f16")
SWITCHES = ("stable",)  # attributes that choose a kernel and no bit
_memory = mmap.mmap(-1, MOST_BYTES + (1 << 20), mmap.MAP_PRIVATE)  # never touched: shapes and addresses are all that counts


def arguments(op, case, layout):
    """The case's ports as Run would lay them out, without contents; None if they are too large."""
    at, given = 64, dict(case.attrs)
    for port, dtype in case.dtypes.items():
        shape = shape_of(op, port, case)
        rows, row = shape[0], row_bytes(dtype, shape)
        start = -(-at // 64) * 64 + (0 if layout in ("dense", COLUMNS) else 2 if is_block(dtype) else DTYPES[dtype]["bytes"])
        turned = layout == COLUMNS and by_column(op, port, case)
        at = start + rows * row + (COLUMN_GAP * shape[1] if turned else 0) + 64
        if at > MOST_BYTES:
            return None
        if is_block(dtype):
            given[port] = vivace.view(np.ndarray((rows, row), np.uint8, _memory, start), dtype=dtype, shape=shape)
        else:
            wide = (shape[1], rows + COLUMN_GAP // DTYPES[dtype]["bytes"]) if turned else shape
            array = np.ndarray(wide, NUMPY[dtype], _memory, start)
            given[port] = array[:, :rows].T if turned else array
    return given


def has_contents(op, case):
    """Whether what the case fixes of its contents fits these sizes, and integers that are read have a range."""
    for port, dtype in case.dtypes.items():
        known = dtype in FLOATS or is_block(dtype) or port in case.values or port in case.ranges or ports(op)[port]["io"] == "out"
        if not known and 0 not in shape_of(op, port, case):
            return False
    for port, given in case.values.items():
        shape = shape_of(op, port, case)
        try:
            value = given(np.random.default_rng(0), shape) if callable(given) else given
        except (IndexError, ValueError):  # it sets elements that these sizes lack, or is of other sizes
            return False
        if np.size(value) != math.prod(shape):
            return False
    return True


def takes(op, port, t):
    listed = ports(op)[port]["dtypes"]
    return listed[0] == "=" and takes(op, listed[1:], t) or t in listed.split("|")


def seen_dtypes(op):
    """port -> dtypes that the op's cases give it, and the plain floats that it takes."""
    seen = {}
    for case in reference(op).CASES:
        for port, dtype in case.dtypes.items():
            seen.setdefault(port, set()).update([dtype, *(t for t in FLOATS3 if dtype in FLOATS3 and takes(op, port, t))])
    return {p: sorted(d) for p, d in seen.items()}


def draws(op, case, rng):
    """(dims, dtypes, layout), the case's own first: sizes from the ladders, ports of other types that they may have."""
    yield case.dims, case.dtypes, "dense"
    choices, tables = seen_dtypes(op), any(case.dtypes[p] not in FLOATS for p in case.values if p in case.dtypes)
    for _ in range(DRAWS):
        fixed = ("S", "B", "E", "T", "A") if tables else ("S", "B", "E")  # what slots, offsets and tables point into
        dims = {k: v if k in fixed or rng.random() < 0.3 else rng.choice(LADDERS.get(k, SIZES)) for k, v in case.dims.items()}
        dims = getattr(reference(op), "derived_dims", lambda dims, case: dims)(dims, case)  # what follows from other dims
        if {"D", "Dv"} <= set(dims) and rng.random() < 0.7:
            dims["Dv"] = dims["D"]
        dtypes, kind, one = dict(case.dtypes), rng.random(), rng.choice(FLOATS3)
        for port, dtype in dtypes.items():
            follows = ports(op)[port]["dtypes"]
            if follows[0] == "=" and follows[1:] in dtypes:
                dtypes[port] = dtypes[follows[1:]]
            elif kind < 0.4 and dtype in FLOATS3 and one in choices[port]:
                dtypes[port] = one  # all of one type
            elif kind > 0.7:
                dtypes[port] = rng.choice(choices[port])
        layout = "unaligned" if rng.random() < 0.3 else "dense"
        yield dims, dtypes, COLUMNS if any(p["columns"] for p in ports(op).values()) and rng.random() < 0.15 else layout


def search(op, capability):
    """{kernel expression: (case, layout)}: for each instance of the op's table the cheapest call found that picks it."""
    wanted = {e for _, e in _core.gpu_instances(op, capability)}
    found, rng = {}, random.Random(op)
    switches = [a["name"] for a in OPS[op]["attrs"] if a["name"] in SWITCHES]
    for case in reference(op).CASES:
        if 0 in case.dims.values() or case.rows is not None or wanted <= set(found):
            continue
        stale = 0
        for dims, dtypes, layout in draws(op, case, rng):
            stale += 1
            if stale > PATIENCE:
                break
            attrs = case.attrs | {s: True for s in switches if rng.random() < 0.5}
            tried = Case(dims, dtypes, attrs, case.ranges, case.positive, None, case.values, case.shapes)
            try:
                given = arguments(op, tried, layout)
                if given is None:
                    continue
                kernel = _core.picked_kernel(op, capability, **given)
                bytes_, flops = ops.cost(op, **given)
            except (vivace.Error, ValueError):
                continue  # these make no call
            free = () if hasattr(reference(op), "derived_dims") else dims.values()  # dims that follow from others would count twice
            if kernel not in wanted or flops > MOST_FLOPS or math.prod(free) > 1 << 34:
                continue
            cost = bytes_ + flops / 16
            if kernel in found and cost >= found[kernel][0] or not has_contents(op, tried):
                continue
            if kernel not in found:
                stale = 0
            found[kernel] = (cost, tried, layout)
    return {k: (case, layout) for k, (_, case, layout) in found.items()}


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    capability = 90
    if "--capability" in sys.argv:
        capability = int(names.pop(0))
    for op in names or [r["name"] for r in ops.ops_table()["ops"] if r["gpu"]]:
        found = search(op, capability)
        wanted = sorted({e for _, e in _core.gpu_instances(op, capability)})
        missing = [e.replace("vivace::kernels::", "") for e in wanted if e not in found]
        print(f"{op}: {len(wanted) - len(missing)} of {len(wanted)}", *missing[:4], sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
