"""Chains: two to five drawn calls on one stream, each reading what one before it wrote. Issued at once, captured and replayed with
contents that change, they must give, bit for bit, what the same calls give one by one."""
import os
import random
import time
from dataclasses import replace

import numpy as np

import vivace
from tests.differential.draw import CPU, Call, Unfit, as_draft, case_of, draft, draw, fitted, settle
from tests.differential.memory import Memory
from tests.differential.run import aligned, issue, prepare
from tests.op_data import OPS, reference, shape_of, valid_rows
from tests.ref.common import FLOATS

LENGTHS, SETS, REPLAYS = (2, 2, 3, 3, 4, 5), 3, 100
TRIES = 60  # drafts of a link


def outputs(call):
    """(port, dtype, shape) of the plain matrices that a call writes whole."""
    for p in OPS[call.op]["ports"]:
        port, case = p["name"], call.case
        if p["io"] == "out" and port in case.dtypes and port not in call.inplace and case.dtypes[port] in FLOATS and port not in call.layout:
            shape = shape_of(call.op, port, case)
            if len(shape) == 2 and call.case.rows is None:
                yield port, case.dtypes[port], shape


def reader(rng, dtype, shape, seed):
    """(call, port): one whose port is a matrix of this dtype and shape."""
    names = [op for op in OPS if any(p["io"] == "in" and p["shape"].count(",") == 1 for p in OPS[op]["ports"])]
    for _ in range(TRIES):
        op = rng.choice(names)
        domain, d = reference(op).DOMAIN, draft(op, rng, reference(op).DOMAIN)
        takes = [p for p in OPS[op]["ports"] if p["io"] == "in" and p["shape"].count(",") == 1 and p["shape"].replace(",", "").isalnum() and dtype in p["dtypes"].split("|")]
        if not takes:
            continue
        port = rng.choice(takes)["name"]
        d.add(port)
        d.drop("rows")
        d.dtypes[port] = dtype
        settle(d)
        try:
            fitted(d, domain, CPU)
        except Unfit:
            continue
        if shape[0] > 0 and shape[1] == 0 and "V" in d.spec[port]["shape"]:
            continue  # a token drawn of no vocabulary
        d.dims.update(zip(d.spec[port]["shape"].split(","), shape))
        d.shapes = {}
        domain.fit(d)
        settle(d)
        d.drop("rows")
        case = case_of(d, seed)
        call = Call(op, case, fill=0x7F)
        if case.dtypes.get(port) == dtype and port not in domain.contents(as_draft(op, case), np.random.default_rng(0)) and shape_of(op, port, case) == shape and port not in domain.positive \
                and sum(np.prod(shape_of(op, p, case), dtype=float) for p in case.dtypes) < 2e6:
            return call, port
    raise Unfit("nothing reads this")


def drawn(seed, begin):
    """Calls, and of each but the first (its port, the call whose out it is, that call's port). They begin with
    the op `begin`, if something reads what it writes."""
    rng = random.Random(f"chain {begin} {seed}")
    for attempt in range(TRIES):
        op = begin if attempt < 5 else rng.choice(list(OPS))
        try:
            first = draw(op, f"{seed}.{rng.randrange(1 << 30)}", CPU)
            first = replace(first, case=replace(first.case, rows=None, dtypes={p: t for p, t in first.case.dtypes.items() if p != "rows"}), inplace={}, layout={})
            calls, links = [first], [None]
            for _ in range(rng.choice(LENGTHS) - 1):
                sources = [(i, *o) for i, c in enumerate(calls) for o in outputs(c)]
                if not sources:
                    raise Unfit("nothing to read")
                at, out, dtype, shape = rng.choice(sources[-3:])
                call, port = reader(rng, dtype, shape, rng.randrange(1 << 31))
                calls.append(call)
                links.append((port, at, out))
            return calls, links
        except Unfit:
            continue
    raise Unfit("no chain")


class Host:
    """Where a chain runs: here in host memory."""

    Capture = vivace.Capture

    def __init__(self, size):
        self.memory = aligned(size)

    def put(self, image):
        self.memory[...] = image

    def get(self):
        return self.memory.copy()

    def arrays(self, memory):
        return memory.arrays(self.memory)

    def wait(self):
        pass

    def replays(self, graph, sets, wanted, end):
        """(number, what the memory holds) of the first of REPLAYS that is not as wanted; None if there is none until `end`."""
        for r in range(REPLAYS):
            if time.monotonic() > end:
                break
            self.put(sets[r % SETS])
            graph.replay()
            if not np.array_equal(got := self.get(), wanted[r % SETS]):
                return r, got
        return None


def laid_out(calls, links):
    """Memories of the calls in one piece, linked ports where they were written; and its size."""
    memories, at = [], 0
    for call, link in zip(calls, links):
        m = Memory(call, at)
        if link:
            port, source, out = link
            m.spans[port] = memories[source].span(out)
        memories.append(m)
        at += m.size
    return memories, at


def images(calls, links, memories, size):
    """Contents of the whole memory, each set of other seeds."""
    out = []
    for k in range(SETS):
        image = np.full(size, 0xFF, np.uint8)
        for call, link, m in zip(calls, links, memories):
            given, data = prepare(replace(call, case=replace(call.case, seed=call.case.seed + k)))
            linked = {} if link is None else {link[0]: m.spans.pop(link[0])}
            m.fill(image, {p: b for p, b in data.items() if p not in linked}, valid_rows(given.case))
            m.spans |= linked
        out.append(image)
    return out


def run(begin, seed, place=Host, serves=lambda call: True, end=float("inf")):
    """(calls, what is wrong or None, the refusal or None). Unfit where a call is none that `serves`; after `end` no further replay begins."""
    calls, links = drawn(seed, begin)
    if not all(map(serves, calls)):
        raise Unfit("no time to compile it")
    memories, size = laid_out(calls, links)
    sets, where = images(calls, links, memories, size), place(size)

    def issue_all(apart):
        for call, m in zip(calls, memories):
            if said := issue(call, where.arrays(m)):
                return said
            if apart:
                where.wait()
        return None

    one_by_one = []
    for image in sets:
        where.put(image)
        if said := issue_all(True):
            return calls, None, said
        one_by_one.append(where.get())
    for k, image in enumerate(sets):
        where.put(image)
        issue_all(False)
        if (what := differ(one_by_one[k], where.get(), memories)) is not None:
            return calls, f"issued at once: {what}", None
    where.put(sets[0])
    with where.Capture() as graph:
        issue_all(False)
    if (odd := where.replays(graph, sets, one_by_one, end)) is not None:
        return calls, f"replay {odd[0]}: {differ(one_by_one[odd[0] % SETS], odd[1], memories)}", None
    return calls, None, None


def differ(want, got, memories):
    if np.array_equal(want, got):
        return None
    byte = int(np.flatnonzero(want != got)[0])
    m = next(m for m in memories if m.base <= byte < m.base + m.size)
    return f"{np.count_nonzero(want != got)} bytes are not those of the calls one by one, first: {m.call.op}, {m.where(byte)}"


def line(begin, seed, device):
    given = "" if device == "cpu" else f", {device!r}"
    return f"from tests.differential.chains import again; again({begin!r}, {seed!r}{given})"


def again(begin, seed, device="cpu"):
    """Runs one chain as a failure's line says it."""
    place = Host
    if device != "cpu":
        os.environ["VIVACE_TEST_DEVICE"] = device
        from tests.differential.device import Place as place  # noqa: N813
    calls, wrong, refused = run(begin, seed, place)
    print(*(c.line() for c in calls), sep="\n")
    assert not wrong, wrong
    print("refused, " + refused if refused else "right")


