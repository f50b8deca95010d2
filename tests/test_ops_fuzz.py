"""Calls with several things wrong at once: each is refused with a typed error or runs, and in both cases
no byte outside of the written ports changes."""
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vivace
from tests.op_data import DTYPES, NUMPY, TABLE, is_block, ports, reference, shape_of
from tests.op_run import run
from vivace import ops

ODD_VALUES = [None, True, 0, -1, 3, 0.5, 1e300, float("inf"), float("nan"), "x", "", [], {}, object()]


def zeros(dtype, shape):
    """An array that no slot guards; block formats as a view."""
    if is_block(dtype):
        shape = (*shape[:-1], max(shape[-1] // DTYPES[dtype]["block"], 1) * DTYPES[dtype]["block"])
        size = int(np.prod(shape)) // DTYPES[dtype]["block"] * DTYPES[dtype]["bytes"]
        return vivace.view(np.zeros(size, np.uint8), dtype=dtype, shape=shape)
    return np.zeros(shape, NUMPY[dtype])


@st.composite
def change(draw, op, case, arguments):
    """One argument name and what to pass instead."""
    name = draw(st.sampled_from([*ports(op), *(a["name"] for a in TABLE[op]["attrs"])]))
    if name not in case.dtypes:
        other = st.sampled_from(list(case.dtypes.values())).map(lambda d: zeros(d, (2, 32)))
        return name, draw(st.one_of(st.sampled_from(ODD_VALUES), other))
    shape, own = shape_of(op, name, case), arguments[name]
    kind = draw(st.sampled_from(["drop", "odd", "dtype", "shape", "slice", "step", "transpose", "other"]))
    if kind == "odd":
        return name, draw(st.sampled_from(ODD_VALUES))
    if kind == "dtype":
        return name, zeros(draw(st.sampled_from([*NUMPY, "q4_0", "q8_0"])), shape)
    if kind == "shape":
        return name, zeros(case.dtypes[name], tuple(draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))))
    if kind in ("slice", "step", "transpose") and isinstance(own, np.ndarray):
        axis = draw(st.integers(0, own.ndim - 1))
        at = [slice(None)] * own.ndim
        at[axis] = slice(draw(st.integers(0, 2)), None) if kind == "slice" else slice(None, None, draw(st.sampled_from([-1, 2, 3])))
        return name, own.T if kind == "transpose" else own[tuple(at)]
    # Another port's array of the same dtype: an alias, or a wrong shape.
    same = [p for p, d in case.dtypes.items() if d == case.dtypes[name] and p != name and d not in ("i32", "i64")]
    return name, arguments[draw(st.sampled_from(same))] if kind == "other" and same else None


@pytest.mark.parametrize("op", TABLE)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mixed_up_calls(op, data):
    case = data.draw(st.sampled_from([c for c in reference(op).CASES if 0 not in c.dims.values()]))
    r = run(op, case)
    arguments = r.arguments()
    for _ in range(data.draw(st.integers(1, 4))):
        name, value = data.draw(change(op, case, arguments))
        arguments[name] = value
    try:
        getattr(ops, op)(**arguments)
        ran = True
    except vivace.Error as e:
        ran = False
        assert str(e).startswith(f"{op}: ")
    for port, slot in r.slots.items():
        assert np.array_equal(slot.surroundings(), r.around[port]), f"memory around {port} was written"
        written = ran and any(ports(op)[p]["io"] != "in" and isinstance(arguments.get(p), np.ndarray)
                              and np.shares_memory(arguments[p], slot.array) for p in ports(op) if not is_block(slot.dtype))
        assert written or np.array_equal(slot.bytes, r.before[port]), f"port {port} changed"
