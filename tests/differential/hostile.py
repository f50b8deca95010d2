"""Contents outside of what a call may hold: indices that name nothing, NaN, infinities, subnormal numbers, scales of zero. The call
must come to an answer or a typed error, and nothing beside what it writes may change; where the documents say what any index
gives (Domain.indices) that is compared."""
import numpy as np

from tests.op_data import DTYPES, encode, is_block, ports, reference, shape_of
from tests.ref.common import FLOATS

INDICES = (-1, -2, 2**31 - 1, -(2**31), 2**30, -(2**30), 65536, 1 << 20)
NUMBERS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38)
KINDS = ("index", "number")


def integers(op, case):
    """Integer ports that a call reads, but for those that hold no index."""
    return [p for p, t in case.dtypes.items() if t in ("i32", "i64") and p != "rows" and ports(op)[p]["io"] != "out" and p not in getattr(reference(op), "SCRATCH", ())]


def spoiled(op, case, kind, values):
    """The values of integer ports, some of them out of all limits; and the ports that were spoiled."""
    rng = np.random.default_rng([case.seed, 13])
    out, ports_ = dict(values), set()
    for port in integers(op, case) if kind == "index" else ():
        if rng.random() < 0.3:
            continue
        shape = shape_of(op, port, case)
        value = np.array(out[port] if port in out else rng.integers(0, 9, shape)).reshape(shape).copy()
        if not value.size:
            continue
        at = rng.random(shape) < rng.choice([0.05, 0.3, 1.0])
        at.reshape(-1)[rng.integers(0, value.size)] = True
        near = [int(v) for v in case.dims.values()]
        value[at] = rng.choice([*INDICES, *near, *(v + 1 for v in near)], int(at.sum()))
        out[port] = value
        ports_.add(port)
    return out, ports_


def spoil_bytes(op, case, kind, data):
    """Numbers in float ports that are none, in place."""
    rng = np.random.default_rng([case.seed, 14])
    for port, raw in data.items() if kind == "number" else ():
        dtype = case.dtypes[port]
        if rng.random() < 0.4 or not raw.size:
            continue
        if is_block(dtype) or dtype in ("u8", "i8"):
            if is_block(dtype):
                raw[rng.random(raw.shape) < 0.02] = rng.choice([0, 0x7C, 0xFC, 0xFF])
        elif dtype in FLOATS:
            unit = DTYPES[dtype]["bytes"]
            flat = raw.reshape(-1).view(f"<u{unit}")
            odd = encode(np.array(NUMBERS)[:, None], dtype).reshape(-1).view(f"<u{unit}")
            at = rng.random(flat.size) < rng.choice([0.01, 0.2, 1.0])
            at[rng.integers(0, flat.size)] = True
            flat[at] = rng.choice(odd, int(at.sum()))
    return data


def has_answer(call, spoiled_ports):
    """Whether the documents say what these contents give."""
    return call.hostile == "index" and spoiled_ports <= set(reference(call.op).DOMAIN.indices)
