"""What only a GPU can get wrong: tactics, dependent launches, replays, devices. Needs --device cuda."""
import os
import re
import time

import numpy as np
import pytest

from tests.op_data import DTYPES, TABLE, by_row, contents, device, ports, reference, shape_of
from tests.op_run import Run, verify
from tests.ref.common import Case

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import vivace  # noqa: E402
from tests.gpu.kernels import delayed_copy  # noqa: E402
from vivace import _core, ops  # noqa: E402

CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
DELAY = 200_000  # cycles, some 0.1 ms: a kernel that does not wait has long finished


def full(op):
    """Cases with rows, one for each set of ports and dtypes."""
    return [c for c in reference(op).CASES if 0 not in c.dims.values() and c.rows is None]


def given_bytes(op, case):
    """Of a case's arrays, about: block formats counted in full blocks."""
    return sum(int(np.prod(shape_of(op, port, case))) * DTYPES[dtype]["bytes"] // DTYPES[dtype]["block"] for port, dtype in case.dtypes.items())


AHEAD = {op: {name for name, port in ports(op).items() if port["ahead"]} for op in TABLE}
STABLE = {"pos", "slot", "page_table", "rows", "k_cache", "v_cache"}  # of rope_attention's calls that say so


def ahead(op, case):
    """Ports of a call that may be read ahead, wholly or in part (which parts must wait: test_stable.py)."""
    found = AHEAD[op] & set(case.dtypes)
    return found | STABLE if op == "rope_attention" and found and case.attrs.get("stable") else found


# (op, case, constant weights): every op as its calls are by themselves, and those that can read ahead as a model's step has them.
EACH_ORDER = pytest.mark.parametrize("op, case, constant", [pytest.param(op, c, constant, id=f"{op}-{c.id}" + ("-constant" if constant else "")) for op in TABLE
                                                            for c in reference(op).CASES if 0 not in c.dims.values() for constant in ((False, True) if ahead(op, c) else (False,))])
EACH_FULL = pytest.mark.parametrize("op, case", [pytest.param(op, c, id=f"{op}-{c.id}") for op in TABLE for c in full(op)])


@EACH_ORDER
def test_waits_for_its_inputs_and_its_readers(op, case, constant):
    """A predecessor that lets the op start at once, sleeps, then writes what the op reads, every port of it, and copies what
    it will write: a missing or late dependency wait shows as poison in, or results out too early. Under constant_weights()
    the same of all ports but those that the op declares to read ahead."""
    data = contents(op, case, case.distributions[0])
    base = Run(op, case, data).call().written
    r = Run(op, case, data)
    late = {p: s for p, s in r.slots.items() if p in r.data and not (constant and p in ahead(op, case))}
    staged = {p: s.store.clone() for p, s in late.items()}
    outs = {p: s for p, s in r.slots.items() if ports(op)[p]["io"] == "out"}
    seen = {p: torch.zeros_like(s.store) for p, s in outs.items()}
    want = {p: s.store.clone() for p, s in outs.items()}
    moves = [(s.store, staged[p]) for p, s in late.items()] + [(seen[p], s.store) for p, s in outs.items()]
    copy = delayed_copy(moves)

    def poison():
        for s in late.values():
            s.store.fill_(0xFF)
        for p, s in outs.items():
            s.store.copy_(want[p])
            seen[p].zero_()
        torch.cuda.synchronize()

    def check(how):
        for p, s in r.slots.items():
            s.pull()
        for p, bits in r.written.items():
            assert np.array_equal(bits, base[p]), f"{how}: port {p} has other bits behind a delayed predecessor"
        for p in outs:
            assert torch.equal(seen[p], want[p]), f"{how}: port {p} was written before the predecessor had read it"

    poison()
    copy(DELAY)
    with ops.constant_weights(constant):
        getattr(ops, op)(**r.arguments())
    torch.cuda.synchronize()
    check("eager")
    poison()
    with device.Capture() as graph, ops.constant_weights(constant):
        copy(DELAY)
        getattr(ops, op)(**r.arguments())
    for turn in range(2):
        poison()
        graph.replay()
        torch.cuda.synchronize()
        check(f"replay {turn}")


def rows_only(op, case):
    """Whether each port has a row a token or nothing to do with T, and what is written has a row a token."""
    if getattr(reference(op), "TOGETHER", False) or "mask" in case.dtypes and not by_row(op, "mask") and "mask_slot" not in case.dtypes:
        return False
    for port in case.dtypes:
        if not by_row(op, port) and (port in case.shapes or "T" in re.findall(r"[A-Za-z]\w*", ports(op)[port]["shape"]) or ports(op)[port]["io"] != "in"):
            return False
    return case.dims.get("T", 0) > 1


COUNTS = (1, 3, 8, 16, 17, 64, 65, 200)  # of rows: around the edges of every op's classes


@pytest.mark.parametrize("op, case", [pytest.param(op, c, id=f"{op}-{c.id}") for op in TABLE for c in full(op) if rows_only(op, c)])
def test_rows_are_independent(op, case):
    """Among calls of one invariance class, which the op declares, a row has the same bits whatever rows are beside
    it, however many, and wherever it lies."""
    most = case.dims["T"] if case.values else COUNTS[-1]
    whole = Case(case.dims | {"T": most}, case.dtypes, case.attrs, ranges=case.ranges, positive=case.positive, values=case.values)
    data = contents(op, whole, case.distributions[0])
    fixed = bool(set(case.dtypes) & set(getattr(reference(op), "BY_PLACE", ())))
    fixed |= "pos" in ports(op) and "pos" not in case.dtypes  # positions then are places
    fixed |= any(p in case.dtypes and not by_row(op, p) for p in ("gate", "scale", "shift")) and "ada_row" not in case.dtypes
    without = {*getattr(reference(op), "WHOLE", ()), *getattr(reference(op), "SCRATCH", ())}
    seen = {}  # (class, row) -> (bits by port, how many rows were beside it)
    for count in sorted({min(c, most) for c in COUNTS}):
        for first in {0} if fixed else {0, most - count}:  # `fixed`: what a row reads depends on its place
            part = {p: v[first : first + count] if by_row(op, p) else v for p, v in data.items()}
            r = Run(op, Case(case.dims | {"T": count}, case.dtypes, case.attrs), part).call()
            kind = _core.row_class(op, **r.arguments())
            for t in (0, count // 2, count - 1):
                bits = {p: v[t].tobytes() for p, v in r.written.items() if p not in without}
                before, beside = seen.setdefault((kind, first + t), (bits, count))
                for p in bits:
                    assert bits[p] == before[p], f"{case.id}: port {p}: row {first + t} has other bits among {count} rows than among {beside}, in class {kind}"
    assert any(beside != most for _, beside in seen.values())


def ladder(op):
    """The reference's first case of each dtype set, at sizes that reach every tactic."""
    sizes = [(t, h) for h in (8, 33, 264, 520, 1000, 1032, 2056, 4104, 8200, 12000, 24008, 4099, 20001) for t in (1, 3)]
    sizes += [(300, 4104), (300, 4099)]  # above a million elements
    seen = set()
    for case in full(op):
        key = tuple(sorted(case.dtypes.items()))
        if key in seen or set(case.dims) - {"T", "H", "R"} or case.shapes or case.values:
            continue
        seen.add(key)
        for t, h in sizes:
            yield Case(case.dims | {"T": t, "H": h}, case.dtypes, case.attrs, ranges=case.ranges, positive=case.positive, note="ladder")


@pytest.mark.parametrize("op", [op for op in TABLE if next(ladder(op), None)])
def test_every_tactic(op, record_property):
    """Results at sizes that reach the tactics of the table; a tactic that no size reaches is named in the receipt."""
    worst = (0.0, 0.0)
    for case in ladder(op):
        r = Run(op, case, contents(op, case, "normal")).call()
        error, allowed = verify(op, case, r)
        if allowed and error / allowed > (worst[0] / worst[1] if worst[1] else 0):
            worst = (error, allowed)
    record_property("max_err", worst[0])
    record_property("bound", worst[1])
    used = set(_core.loaded_kernels())
    main = [e for _, e in _core.gpu_instances(op, CAPABILITY)]
    missing = [e for e in main if e not in used]
    print(f"{op}: {len(main) - len(missing)} of {len(main)} instances ran; not: {missing[:6]}")
    assert used.intersection(main), "no instance of the gate's list has run"


@EACH_FULL
def test_host_and_device_do_not_mix(op, case):
    r = Run(op, case, contents(op, case, case.distributions[0]))
    arguments = r.arguments()
    for port, slot in r.slots.items():
        if len(r.slots) == 1 or not hasattr(slot.array, "cpu"):
            continue
        with pytest.raises(vivace.InvalidDeviceError, match=f"^{op}: "):
            getattr(ops, op)(**(arguments | {port: slot.array.cpu()}))
    r.check_memory()


@EACH_FULL
def test_strides_of_tensors(op, case):
    """Inner axes must be dense, outer strides positive: a transposed or expanded tensor is refused."""
    r = Run(op, case, contents(op, case, case.distributions[0]))
    for port, slot in r.slots.items():
        shape = shape_of(op, port, case)
        if not hasattr(slot.array, "cpu") or len(shape) < 2 or min(shape) < 2:
            continue
        wrong = [torch.zeros(shape[::-1], device=device.NAME).to(slot.array.dtype).permute(*reversed(range(len(shape)))),
                 slot.array[:1].expand(shape)]
        for t in wrong:
            with pytest.raises(vivace.InvalidLayoutError, match=f"^{op}: .*{port}"):
                getattr(ops, op)(**(r.arguments() | {port: t}))
    r.check_memory()


def test_large_tensor():
    """More than 2^31 elements: offsets need 64 bits."""
    if torch.cuda.mem_get_info()[0] < 20 << 30 or "cast" not in TABLE:
        pytest.skip("needs 20 GiB of free device memory")
    x = torch.empty(65600, 32768, dtype=torch.bfloat16, device=device.NAME)
    torch.manual_seed(0)
    for block in x.split(8200):
        block.normal_()
    out = torch.full_like(x, float("nan"), dtype=torch.float8_e4m3fn)
    ops.cast(x=x, out=out)
    for a, b in zip(x.split(8200), out.split(8200)):
        assert torch.equal(a.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8), b.view(torch.uint8))
    if "norm" in TABLE:
        norm = torch.full_like(x, float("nan"))
        ops.norm(x=x, out=norm)
        for at in (0, 32768, 65599):
            row = x[at].double()
            want = row * torch.rsqrt((row * row).mean() + 1e-6)
            assert (norm[at].double() - want).abs().max() < 0.05


def test_large_product():
    """Outputs, and weights, beyond 2^31 elements: rows at the ends against torch."""
    if torch.cuda.mem_get_info()[0] < 30 << 30 or "gemm" not in TABLE:
        pytest.skip("needs 30 GiB of free device memory")
    torch.manual_seed(0)

    def check(T, N, K):
        x = torch.randn(T, K, device=device.NAME, dtype=torch.bfloat16)
        w = torch.empty(N, K, device=device.NAME, dtype=torch.bfloat16)
        for part in w.split(65536):
            part.normal_()
        out = torch.full((T, N), float("nan"), device=device.NAME, dtype=torch.bfloat16)
        ops.gemm(x=x, w=w, out=out)
        for t in (0, T // 2, T - 1):
            for at in (0, N // 2, N - 64):
                want = w[at : at + 64].double() @ x[t].double()
                assert (out[t, at : at + 64].double() - want).abs().max() <= 2.0**-8 * want.abs().max() + 2.0**-24 * K * 16
        assert not out[-1].isnan().any() and not out[:, -1].isnan().any()

    check(16400, 131104, 64)   # out: 2.15e9 elements
    check(3, 131104, 16400)    # w: 2.15e9 elements


def test_replays(record_property):
    """One graph of every op in eight branches side by side, replayed VIVACE_REPLAYS times, or for VIVACE_REPLAY_SECONDS,
    while allocations around it come, go and are poisoned: each replay starts from the same bytes and must end with the
    same bytes. The receipt says how many there were."""
    count, size, branches = int(os.environ.get("VIVACE_REPLAYS", "2000")), 32 << 20, [torch.cuda.Stream() for _ in range(8)]
    small = [next(c for c in full(op) if given_bytes(op, c) < 3 << 20) for op in TABLE]  # all bytes are set and compared in every replay
    with device.arena(size) as a:
        runs = [Run(op, case, contents(op, case, case.distributions[0]), fill=0x7F) for op, case in zip(TABLE, small)]
    start = a.memory.clone()
    for r in runs:
        getattr(ops, r.op)(**r.arguments())
    for r in runs:
        if not set(getattr(reference(r.op), "SCRATCH", ())) & set(r.case.dtypes):
            verify(r.op, r.case, r.check_memory())
    used = a.memory[: a.used].view(torch.int64)
    want, first = used.clone(), start[: a.used].view(torch.int64)
    wrong = torch.zeros((), dtype=torch.int64, device=device.NAME)
    with device.Capture() as graph:
        used.copy_(first)
        for i, branch in enumerate(branches):
            branch.wait_stream(graph.stream)
            with torch.cuda.stream(branch):
                for r in runs[i :: len(branches)]:
                    getattr(ops, r.op)(**r.arguments())
        for branch in branches:
            graph.stream.wait_stream(branch)
        wrong.add_((used != want).sum())
    side, held = torch.cuda.Stream(), []
    rng, begin, most = np.random.default_rng(1), time.monotonic(), float(os.environ.get("VIVACE_REPLAY_SECONDS", "inf"))
    for i in range(count):
        if i % 500 == 499 and time.monotonic() - begin > most:
            count = i
            break
        graph.replay()
        if i % 500 == 0:
            with torch.cuda.stream(side):
                held.append(torch.full((int(rng.integers(1 << 10, 1 << 24)),), 0xFF, dtype=torch.uint8, device=device.NAME))
            if len(held) > 8:
                held.pop(int(rng.integers(len(held))))
            if i % 50_000 == 0:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                assert int(wrong) == 0, f"{int(wrong)} words differ after {i + 1} replays"
                print(f"{i + 1} replays after {time.monotonic() - begin:.1f} s", flush=True)
    torch.cuda.synchronize()
    assert int(wrong) == 0, f"{int(wrong)} words differ over {count} replays of {len(runs)} calls"
    record_property("note", f"{count} replays of {len(runs)} calls, every bit the same")
