"""Every op of the table, every case of its reference: values, bits, memory. No code for any one op."""
import numpy as np
import pytest

import vivace
from tests.op_data import BIG_FILL, COLUMNS, LAYOUTS, NAN_FILL, PITCHED, TABLE, by_column, by_row, contents, device, distributions, pitched, ports, reference, shape_of
from tests.op_run import Run, run, verify
from vivace import _core, ops


def all_cases(each_distribution):
    """Parameters (op, case, distribution), id "norm-T=1,H=64,...-large"."""
    out = []
    for op in TABLE:
        module = reference(op)
        for case in module.CASES if module else []:
            for d in distributions(op, case) if each_distribution else case.distributions[:1]:
                out.append(pytest.param(op, case, d, id=f"{op}-{case.id}" + (f"-{d}" if each_distribution else "")))
    return out


@pytest.fixture(autouse=True)
def two_threads():
    if vivace.threads() != 2:
        vivace.set_threads(2)


@pytest.mark.parametrize("op", TABLE)
def test_row_is_complete(op):
    """A row has a reference with at least three cases that together use every port and choice."""
    module = reference(op)
    assert module is not None, f"tests/ref/{op}.py is missing"
    assert callable(module.ref) and callable(module.bound) and module.__doc__
    assert len(module.CASES) >= 3, f"{len(module.CASES)} cases, wanted 3"
    ids = [c.id for c in module.CASES]
    assert len(set(ids)) == len(ids), f"cases that say the same: {sorted({i for i in ids if ids.count(i) > 1})}"
    unused = set(ports(op)) - {p for c in module.CASES for p in c.dtypes}
    assert not unused, f"ports that no case uses: {sorted(unused)}"
    for attr in TABLE[op]["attrs"]:
        used = {c.attrs.get(attr["name"], attr["default"]) for c in module.CASES}
        if attr["kind"] == "choice":
            assert used == set(attr["choices"]), f"choices of {attr['name']} that no case uses: {sorted(set(attr['choices']) - used)}"
        else:
            assert len(used) > 1, f"no case changes {attr['name']} from {attr['default']}"


@pytest.mark.parametrize("op", TABLE)
def test_dtypes_are_covered(op):
    """Every dtype that a port takes is used by some case."""
    module = reference(op)
    for name, port in ports(op).items():
        if not port["dtypes"].startswith("="):
            missing = set(port["dtypes"].split("|")) - {c.dtypes.get(name) for c in module.CASES}
            assert not missing, f"port {name}: no case with {sorted(missing)}"


@pytest.mark.parametrize("op", [o for o in TABLE if not TABLE[o]["composite"]])
def test_cost(op):
    """Bytes are positive and no more than all ports hold, twice over for updated ones."""
    for case in reference(op).CASES:
        if 0 in case.dims.values() or case.rows is not None:
            continue
        r = run(op, case)
        held = sum(s.bytes.size * (2 if ports(op)[p]["io"] == "inout" else 1) for p, s in r.slots.items())
        moved, flops = ops.cost(op, **r.arguments())
        assert 0 < moved <= 2 * held, f"{case.id}: {moved} bytes of {held}"
        assert flops >= 0


@pytest.mark.parametrize("op, case, distribution", all_cases(True))
def test_result(op, case, distribution, record_property):
    """The result is within the reference's bound; only what should be written is written."""
    r = run(op, case, distribution).call()
    error, allowed = verify(op, case, r)
    record_property("max_err", error)
    record_property("bound", allowed)


def same(a, b, what):
    for port in a:
        n = min(len(a[port]), len(b[port]))
        assert np.array_equal(a[port][:n], b[port][:n]), f"port {port}: {what} gives other bits"


@pytest.mark.parametrize("op, case, distribution", all_cases(False))
def test_same_bits(op, case, distribution):
    """Layout, poison, thread count, capture and aliasing do not change a single bit; a layout that the op declares to be
    another invariance class is held to the reference."""
    scratch = set(getattr(reference(op), "SCRATCH", ()))
    results = lambda r: {p: b for p, b in r.written.items() if p not in scratch}  # noqa: E731
    kind = lambda r: device and _core.row_class(op, **r.arguments())  # noqa: E731
    first = run(op, case, distribution).call()
    base, data = results(first), first.data
    more = [layout for layout, may in ((PITCHED, pitched), (COLUMNS, by_column)) if any(may(op, port, case) for port in case.dtypes)]
    for layout in (*(LAYOUTS if not reference(op).DOMAIN.aligned else ["dense"]), *more):
        for fill in (NAN_FILL, BIG_FILL):
            other = Run(op, case, data, layout=layout, fill=fill).call()
            if kind(other) == kind(first):
                same(base, results(other), f"a {layout} layout over poison {fill:#x}")
            else:
                verify(op, case, other)
    if not device:
        vivace.set_threads(1)
        same(base, results(Run(op, case, data).call()), "one thread")
        vivace.set_threads(2)

    captured = Run(op, case, data, fill=BIG_FILL)
    graph = captured.capture()
    for turn in ("first", "second"):
        captured.reset()
        graph.replay()
        same(base, results(captured.check_memory()), f"the {turn} replay")

    for port, spec in ports(op).items():
        other = spec["inplace"]
        if port in case.dtypes and other in case.dtypes and case.dtypes[port] == case.dtypes[other]:
            if shape_of(op, port, case) == shape_of(op, other, case):
                same(base, results(Run(op, case, data, inplace={port: other}).call()), f"{port} in place of {other}")


@pytest.mark.parametrize("op, case, distribution", [p for p in all_cases(False) if "rows" in ports(p.values[0]) and p.values[1].rows is None
                                                    and p.values[1].dims.get("T", 0) > 0])
def test_row_count(op, case, distribution):
    """With a device-side count the rows before it have the same bits, those beyond are not touched."""
    data = contents(op, case, distribution)
    base, T = Run(op, case, data).call().written, case.dims["T"]
    whole = {*getattr(reference(op), "SCRATCH", ()), *getattr(reference(op), "WHOLE", ())}  # rows that depend on how many there are
    for count in {T - 1, T // 2, 0, -3, T, T + 7}:
        r = Run(op, case, data, rows=count).call()  # call() checks the rows beyond
        assert r.n == min(max(count, 0), T)
        same({p: b for p, b in r.written.items() if by_row(op, p) and p not in whole}, base, f"rows={count}")


ALIASES = [a for a in ops.ops_table()["aliases"] if a["op"] in TABLE]  # --device cuda: some ops have no kernel yet
CASES_OF_AN_ALIAS = 8


@pytest.mark.parametrize("alias", ALIASES, ids=[a["name"] for a in ALIASES])
def test_alias_is_its_op(alias):
    """An alias gives what its op gives with the attributes that it fixes, in the smallest cases that have them, and refuses to have them set."""
    op, fixed = alias["op"], dict(s.split("=") for s in alias["attrs"].split(",") if s)
    kinds = {a["name"]: a for a in TABLE[op]["attrs"]}
    cases = [c for c in reference(op).CASES if all(str(c.attrs.get(k, kinds[k]["default"])) == v for k, v in fixed.items())]
    assert cases, f"no case of {op} has {alias['attrs']}"
    size = {c.id: sum(int(np.prod(shape_of(op, port, c))) for port in c.dtypes) for c in cases}
    for case in sorted(cases, key=lambda c: size[c.id])[:CASES_OF_AN_ALIAS]:
        data = contents(op, case, case.distributions[0])
        direct, named = Run(op, case, data).call(), Run(op, case, data)
        getattr(ops, alias["name"])(**{k: v for k, v in named.arguments().items() if k not in fixed})
        same(direct.written, named.check_memory().written, alias["name"])
    for name in fixed:
        with pytest.raises(vivace.NotFoundError, match=f"{alias['name']}: attribute {name} is fixed"):
            getattr(ops, alias["name"])(**{name: kinds[name]["default"]})
