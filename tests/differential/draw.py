"""Valid calls from the op table and the op's Domain: draw(op, seed) is one, the same each time."""
import functools
import math
import os
import random
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from tests.op_data import DTYPES, OPS, by_column, is_block, pitched, reference, row_bytes, shape_of
from tests.ref.common import Case
from tests.differential.domain import EDGES, GROUPS, HEAD_SIZES, HEADS, PAGES, Draft, Unfit

NAMED = {"Hq": GROUPS, "Hkv": HEADS, "Hk": HEADS, "Hv": GROUPS, "D": HEAD_SIZES, "Dv": HEAD_SIZES, "L": PAGES, "S": (1, 1, 2, 3, 4, 5, 8, 16, 40), "B": (1, 2, 3, 5, 9, 33), "P": (1, 2, 3, 5, 8, 13),
         "E": (1, 2, 3, 4, 8, 12, 33, 40, 64, 128), "W": (1, 2, 3, 5), "R": (1, 2, 3, 7)}
LAYOUTS = ("dense", "dense", "dense", "aligned", "aligned", "odd")  # of a port: see memory.py
FEW = (1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 50, 63, 64, 65)  # tokens of steps that decode
WIDTHS = (576, 768, 896, 1000, 1024, 1152, 1280, 1536, 2048, 2304, 2560, 3072, 4096, 4304)
TYPICAL = 0.45  # of the calls have types, sizes and layouts as models have them
TRIES = 40  # drafts until one fits
ANY_GAP = 0.05  # of ports in Domain.whole lie as a device refuses and the CPU takes


@dataclass(frozen=True)
class Scale:
    """How large calls may be: bytes of all ports and multiply-adds of the reference; of a `share` of calls so many times more."""

    bytes: float
    work: float
    share: float = 0.0
    more: float = 1.0


CPU = Scale(3e5, 3e6)
DEVICE = Scale(4e5, 4e6, share=0.03, more=16)
WIDE = Scale(3e7, 4e8, share=1.0)  # for kernels of the table that smaller calls do not reach


@dataclass(frozen=True)
class Call:
    """One call, complete: what the ports are (a Case), what they hold (by the case's seed) and how they lie."""

    op: str
    case: Case
    distribution: str = "normal"
    layout: dict = field(default_factory=dict)   # port -> (elements off 64 bytes, between rows and, where they may lie apart, between entries of the second axis; or 1: column after column); absent: none
    inplace: dict = field(default_factory=dict)  # out port -> the input whose memory it is
    fill: int = 0xFF                             # poison of what is written
    hostile: str = ""                            # "index" or "number": contents of that kind outside of all limits (hostile.py)
    checked: bool = False                        # within ops.checked()

    def line(self):
        """One line of Python that runs this call."""
        c = self.case
        given = {"dims": c.dims, "dtypes": c.dtypes, "attrs": c.attrs, "rows": c.rows, "shapes": c.shapes, "seed": c.seed, "distribution": self.distribution, "layout": self.layout,
                 "inplace": self.inplace, "fill": self.fill, "hostile": self.hostile or None, "checked": self.checked or None, "device": device if (device := os.environ.get("VIVACE_TEST_DEVICE", "cpu")) != "cpu" else None}
        words = ", ".join(f"{k}={v!r}" for k, v in given.items() if v not in ({}, None))
        return f"from tests.differential.run import again; again({self.op!r}, {words})"


@functools.cache
def symbols_of(shape):
    return tuple(re.findall(r"[A-Za-z]\w*", shape))


def symbols(row):
    return dict.fromkeys(s for p in row["ports"] for s in symbols_of(p["shape"]))


def size(rng, ladder, most):
    """A size up to `most`, each power of two as likely as any other."""
    if ladder is not None:
        return rng.choice([v for v in ladder if v <= most] or [min(ladder)])
    if rng.random() < 0.2:
        return max(1, int(math.exp(rng.uniform(0, math.log(max(most, 1) + 1)))))
    top = math.log2(max(most, 1)) + 0.01
    at = 2 ** rng.uniform(0, top)
    near = [v for v in EDGES if at / 1.6 <= v <= min(at * 1.6, most)]
    return rng.choice(near) if near else max(1, int(at))


def usual(rng, symbol, ladder):
    """A size as models have it."""
    if symbol in ("D", "Dv"):
        return rng.choice((64, 128, 128, 128, 256))
    if symbol == "T" and ladder is None:
        return rng.choice(FEW) if rng.random() < 0.5 else int(2 ** rng.uniform(6, 11.2))
    if ladder or symbol in NAMED:
        return size(rng, ladder or NAMED[symbol], 1 << 18)
    return rng.choice(WIDTHS) if rng.random() < 0.5 else 8 * int(2 ** rng.uniform(3, 9.2))


def attribute(d, domain, a):
    """A value of an attribute, None for its default."""
    if a["kind"] == "choice":
        return d.pick(a["choices"])
    if a["kind"] == "boolean":
        return not a["default"] if d.chance(0.3) else None
    return d.pick(domain.attrs[a["name"]]) if d.chance(0.4) else None


def listed(spec, name):
    """Dtypes that a port takes, through the ports that it follows."""
    words = spec[name]["dtypes"]
    return listed(spec, words[1:]) if words[0] == "=" else words.split("|")


def settle(d):
    """Ports take the dtype of those that they follow."""
    for p in d.spec.values():
        words = p["dtypes"]
        if words[0] == "=" and words[1:] in d.ports:
            d.dtypes[p["name"]] = d.dtypes[words[1:]]


def draft(op, rng, domain):
    """Ports, dtypes and attributes at random; sizes come later."""
    row = OPS[op]
    d = Draft(op, row, rng)
    d.typical = rng.random() < TYPICAL
    share = rng.choice([0.05, 0.2, 0.5] if d.typical else [0.15, 0.5, 0.85])
    one, plain = rng.choice(("bf16", "bf16", "bf16", "f16") if d.typical else ("f32", "bf16", "bf16", "f16", None)), d.typical or rng.random() < 0.5  # most calls are of one float type
    for p in row["ports"]:
        if not p["optional"] or rng.random() < (min(share, 0.3) if p["name"] == "rows" else share):
            d.ports.add(p["name"])
        takes = listed(d.spec, p["name"])
        d.dtypes[p["name"]] = one if one in takes and (plain or rng.random() < 0.7) and not (len(takes) > 5 and rng.random() < (0.3 if d.typical else 0.7)) else rng.choice(takes)
    for a in row["attrs"]:
        value = None if d.typical and rng.random() < 0.7 else attribute(d, domain, a)
        if value is not None and value != a["default"]:
            d.attrs[a["name"]] = value
    settle(d)
    return d


def case_of(d, seed):
    """The draft's Case, without contents of integers."""
    order = [p["name"] for p in d.row["ports"] if p["name"] in d.ports]
    used = {s for p in order if p not in d.shapes for s in symbols_of(d.spec[p]["shape"])}
    dims = {s: n for s, n in d.dims.items() if s in used}
    attrs = {k: v for k, v in d.attrs.items() if v != next(a["default"] for a in d.row["attrs"] if a["name"] == k)}
    return Case(dims, {p: d.dtypes[p] for p in order}, attrs, rows=d.rows if d.has("rows") else None, shapes={p: s for p, s in d.shapes.items() if p in d.ports}, seed=seed)


def bytes_of(op, case):
    total = 0
    for port, dtype in case.dtypes.items():
        shape = shape_of(op, port, case)
        total += max(shape[0] if shape else 1, 0) * row_bytes(dtype, shape)
    return total


def fitted(d, domain, scale):
    """Sizes drawn and made valid, small enough for the scale."""
    rng, names = d.rng, symbols(d.row)
    most = dict.fromkeys(names, 1 << 18)
    if rng.random() < scale.share:
        room = scale.bytes * scale.more * 2 ** -rng.uniform(0, 4), scale.work * scale.more * 2 ** -rng.uniform(0, 4)
    else:
        room = scale.bytes * 2 ** -rng.uniform(0, 7), scale.work * 2 ** -rng.uniform(0, 7)
    if d.typical:
        d.dims = {s: usual(rng, s, domain.sizes.get(s)) for s in names}
        if scale is WIDE and "T" in names and rng.random() < 0.6:
            d.dims["T"] = int(2 ** rng.uniform(9, 11.2))  # prompts
    elif rng.random() < 0.5:
        d.dims = {s: size(rng, domain.sizes.get(s, NAMED.get(s)), 2200) for s in names}
    else:
        d.dims = {s: size(rng, domain.sizes.get(s, NAMED.get(s)), most[s]) for s in names}
    if "T" in d.dims and not d.typical and rng.random() < 0.4:
        d.dims["T"] = rng.choice(FEW)
    whole = 8 if d.typical else rng.choice((1, 1, 8, 8, 16, 64))  # in half of the calls rows are of whole 16 bytes and more
    drawn = {s: n if s in domain.sizes or s in NAMED or s == "T" else -(-n // whole) * whole for s, n in d.dims.items()}
    kept = set(d.ports), dict(d.dtypes), dict(d.attrs)
    for _ in range(200):
        d.dims, d.shapes = dict(drawn), {}
        d.ports, d.dtypes, d.attrs = set(kept[0]), dict(kept[1]), dict(kept[2])
        state = rng.getstate()
        domain.fit(d)
        settle(d)
        case = case_of(d, 0)
        total = bytes_of(d.op, case)
        over = max(total / room[0], judged_work(d, domain) / room[1])
        if over <= 1:
            return
        rng.setstate(state)  # the same choices, of smaller sizes
        free = [s for s, n in drawn.items() if n > 1 and s in case.dims]
        if not free:
            raise Unfit("nothing to make smaller")
        at = rng.choices(free, [math.log2(drawn[s]) ** 2 for s in free])[0]
        less = size(rng, domain.sizes.get(at, NAMED.get(at)), int(drawn[at] / max(2, min(over, 1e6) ** 0.5)))
        drawn[at] = -(-less // whole) * whole if less >= whole and drawn[at] % whole == 0 and at not in domain.sizes and at not in NAMED and at != "T" else less
    raise Unfit("too large")


def judged_work(d, domain):
    """Multiply-adds of the reference: of large calls a part of the tokens is compared (judge.py)."""
    T = d.dims.get("T", 0)
    if domain.tokens is None or T <= 100:
        return domain.work(d)
    d.dims["T"] = 100
    work = domain.work(d)
    d.dims["T"] = T
    return work


def placed(d, case, rng, domain):
    """Layouts, aliases and poison."""
    kind, mixed = (rng.choice(("dense", "aligned")), False) if d.typical or domain.aligned else (rng.choice(LAYOUTS), rng.random() < 0.4)
    layout = {}
    for port, dtype in case.dtypes.items():
        mine = rng.choice((kind, kind, "dense", "odd")) if mixed else kind
        wide = 8 if is_block(dtype) else 16 // DTYPES[dtype]["bytes"]  # 16 bytes
        if mine == "odd":
            off = (rng.choice((0, 1, 2, 3)), rng.choice((0, 1, 3, 5)))
        elif mine == "aligned":
            off = (rng.choice((0, 1, 2)) * wide, rng.choice((0, 1, 2, 4)) * wide)
        else:
            off = (0, 0)
        if off[1] and port in domain.whole and rng.random() >= ANY_GAP:
            off = (off[0], off[1] // wide * math.prod(d.dims[s] for s in domain.whole[port]))
        if pitched(d.op, port, case) and mine != "dense":
            off = (*off, rng.choice((0, 1, 2, 4)) * (1 if mine == "odd" else wide))
        if by_column(d.op, port, case) and rng.random() < 0.25:
            off = (*off, 1)
        if any(off):
            layout[port] = (off[0], off[1] if len(shape_of(d.op, port, case)) > 1 else 0, *off[2:])
    inplace = {}
    for p in d.row["ports"]:
        out, other = p["name"], p["inplace"]
        if other and out in case.dtypes and other in case.dtypes and case.dtypes[out] == case.dtypes[other] and shape_of(d.op, out, case) == shape_of(d.op, other, case) and rng.random() < 0.3:
            inplace[out] = other
    return {"layout": layout, "inplace": inplace, "fill": rng.choice((0xFF, 0x7F))}


def row_count(d, rng):
    T = d.dims.get("T", 0)
    return rng.choice((0, 1, T, T - 1, T // 2, -3, T + 7, rng.randint(0, max(T, 1))))


def filled(op, call):
    """The same call with the contents that its domain draws by the case's seed."""
    domain, case = reference(op).DOMAIN, call.case
    d = as_draft(op, case)
    rng = np.random.default_rng([case.seed, 7])
    scratch = {p: np.full(shape_of(op, p, case), -1) for p in getattr(reference(op), "SCRATCH", ()) if p in case.dtypes and case.dtypes[p] in ("i32", "i64")}
    values = scratch | {p: v for p, v in domain.contents(d, rng).items() if p in case.dtypes}
    positive = tuple(p for p in domain.positive if p in case.dtypes)
    ranges = {p: r for p, r in domain.ranges.items() if p in case.dtypes}
    return replace(call, case=replace(case, values=values, positive=positive, ranges=ranges))


def turned_hostile(call, seed):
    """The same call with contents that no call should have."""
    rng = random.Random(f"hostile {seed}")
    rows = call.case.rows
    if rows is not None and rng.random() < 0.3:
        rows = rng.choice((2**31 - 1, -(2**31), 1 << 20))
    return replace(call, case=replace(call.case, rows=rows), hostile=rng.choice(("index", "index", "number")), checked=rng.random() < 0.4)


def as_draft(op, case):
    """A Draft that says what the case says."""
    d = Draft(op, OPS[op], random.Random(case.seed))
    d.ports, d.dtypes, d.attrs, d.shapes, d.rows = set(case.dtypes), dict(case.dtypes), dict(case.attrs), dict(case.shapes), case.rows
    d.dims = defaultdict(lambda: 1, case.dims)  # those of ports that are absent do not matter
    return d


def draw(op, seed, scale=CPU):
    """The call of this seed, its contents to come (filled()); Unfit if there is none."""
    rng, domain = random.Random(f"{op} {seed}"), reference(op).DOMAIN
    for attempt in range(TRIES):
        d = draft(op, rng, domain)
        try:
            fitted(d, domain, scale)
        except Unfit:
            continue
        d.rows = row_count(d, rng)
        case = case_of(d, rng.randrange(1 << 31))
        return Call(op, case, rng.choice(domain.distributions), **placed(d, case, rng, domain))
    raise Unfit(f"{op}: no draft of seed {seed} fits")


def poisoned(call, data):
    """Contents, with 0xFF over what a call of these contents may not read: NaN, or -1."""
    domain, case = reference(call.op).DOMAIN, call.case
    for port, mask in domain.unread(as_draft(call.op, case), case.values).items():
        if port not in data or not mask.any():
            continue
        shape = shape_of(call.op, port, case)
        lead = int(np.prod(shape[: mask.ndim]))
        raw = data[port].reshape(lead, -1)
        raw[mask.reshape(lead)] = 0xFF
    return data

