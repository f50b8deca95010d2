"""Makes a failing call small: ports dropped, attributes to their defaults, plain layouts, smaller sizes, while it fails."""
import random
import time
from dataclasses import replace

from tests.differential.draw import as_draft, case_of, settle
from tests.differential.run import Lost
from tests.op_data import OPS, reference

SECONDS = 8.0


def with_case(call, **changes):
    return replace(call, case=replace(call.case, **changes))


def bare(call):
    """Without contents: these are drawn again by the case's seed."""
    return with_case(call, values={}, positive=(), ranges={})


def without(call, port):
    keep = {p: t for p, t in call.case.dtypes.items() if p != port}
    return replace(with_case(call, dtypes=keep, shapes={p: s for p, s in call.case.shapes.items() if p != port}, rows=None if port == "rows" else call.case.rows),
                   inplace={a: b for a, b in call.inplace.items() if port not in (a, b)}, layout={p: x for p, x in call.layout.items() if p != port})


def refitted(call, dims):
    """The call of other sizes, with what its domain makes of them."""
    d = as_draft(call.op, call.case)
    d.dims.update(dims)
    d.rng = random.Random(0)
    for p in OPS[call.op]["ports"]:
        d.dtypes.setdefault(p["name"], p["dtypes"].split("|")[0])
    settle(d)
    kept = dict(d.dims)
    reference(call.op).DOMAIN.fit(d)
    settle(d)
    case = case_of(d, call.case.seed)
    return replace(call, case=case, layout={p: x for p, x in call.layout.items() if p in case.dtypes}, inplace={a: b for a, b in call.inplace.items() if a in case.dtypes and b in case.dtypes}) if kept else call


def simpler(call):
    """Calls that say less, boldest first."""
    case, optional = call.case, [p["name"] for p in OPS[call.op]["ports"] if p["optional"]]
    if call.layout:
        yield replace(call, layout={})
        yield from (replace(call, layout={p: x for p, x in call.layout.items() if p != q}) for q in call.layout)
    if call.inplace:
        yield replace(call, inplace={})
    yield from (without(call, p) for p in optional if p in case.dtypes)
    yield from (with_case(call, attrs={k: v for k, v in case.attrs.items() if k != a}) for a in case.attrs)
    if call.distribution != "normal":
        yield replace(call, distribution="normal")
    sizes = sorted(set(case.dims.values()) - {0, 1}, reverse=True)
    for n in sizes:
        group = [s for s, v in case.dims.items() if v == n]
        for less in (1, n // 4, n // 2, n - 8, n - 1):
            if not 0 < less < n:
                continue
            for some in [group] + ([[s] for s in group] if len(group) > 1 else []):
                dims = dict(case.dims) | dict.fromkeys(some, less)
                yield with_case(call, dims=dims)
                yield call, dims  # refitted
    if case.seed:
        yield with_case(call, seed=0)


def shrink(call, fails, seconds=SECONDS):
    """The smallest call found for which fails(call) is true."""
    call, end = bare(call), time.monotonic() + seconds
    found = True
    while found and time.monotonic() < end:
        found = False
        for candidate in simpler(call):
            if time.monotonic() > end:
                break
            try:
                if isinstance(candidate, tuple):
                    candidate = refitted(*candidate)
                    if weight(candidate) >= weight(call):
                        continue
                if not fails(candidate):
                    continue
            except Lost:
                raise
            except Exception:  # no call at all, which a domain or a reference says in any way
                continue
            call, found = candidate, True
            break
    return call


def weight(call):
    total = len(call.case.dtypes) * 4 + len(call.case.attrs) * 4
    for n in call.case.dims.values():
        total += n
    return total

