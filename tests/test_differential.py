"""The differential fuzzer on the CPU: calls of every op that nobody wrote down, the same in every run. tests/differential/README.md"""
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import vivace
from tests.differential import MODES, chains
from tests.differential import __main__ as driver
from tests.differential.draw import as_draft, bytes_of, draw
from tests.differential.judge import is_large
from tests.differential.kernels import CANDIDATES, DRY, Kernels, scale_of
from tests.differential.report import report
from tests.differential.run import again, run
from tests.differential.work import Worker, turns
from tests import op_run
from tests.op_data import OPS, decode, reference, shape_of
from tests.ref.common import Case
from tests.differential.domain import Domain

SEED, ROUNDS = 2026, 160


@pytest.mark.parametrize("op", OPS)
def test_domain(op):
    """An op says what its valid calls are: without a domain nobody draws it."""
    domain = getattr(reference(op), "DOMAIN", None)
    assert isinstance(domain, Domain), f"tests/ref/{op}.py has no DOMAIN: tests/differential/README.md says what it holds"
    for a in OPS[op]["attrs"]:
        if a["kind"] in ("real", "integer"):
            assert domain.attrs.get(a["name"]), f"{op}: DOMAIN.attrs has no values of {a['name']} to draw from"


@pytest.mark.parametrize("op", OPS)
def test_values(op, tmp_path):
    """Right, nothing else written, and every port, dtype and choice seen."""
    vivace.set_threads(1)
    worker = Worker(SimpleNamespace(seed=SEED, jobs=1, device="cpu", seconds=0), 0, tmp_path / "0")
    with np.errstate(all="ignore"):
        for number in range(ROUNDS * len(turns([op]))):
            worker.one(op, number)
    tally = worker.tallies[op]
    assert not tally.wrong, "\n".join(f"seed {seed}: {what}\n    {line}" for seed, what, line in tally.wrong[:3])
    assert not tally.blind(op), tally.blind(op)


@pytest.mark.parametrize("op", [op for op in OPS if reference(op).DOMAIN.tokens is not None])
def test_calls_as_large_as_a_devices(op):
    """What a GPU is asked, run here: calls of which the judge looks at a part of the tokens. 0.5 s an op."""
    vivace.set_threads(1)
    seen = 0
    for number in range(400):
        call = draw(op, f"{SEED}.{number}", scale_of(number))
        if is_large(call) and bytes_of(op, call.case) < 4e6 and reference(op).DOMAIN.work(as_draft(op, call.case)) < 3e8:
            with np.errstate(all="ignore"):
                result = run(call)
            assert not result.wrong, f"{result.wrong}\n    {call.line()}"
            seen += 1
        if seen == 2:
            return
    raise AssertionError(f"{op}: {seen} large calls in 400 draws")


NARROW = {"attention_block_scaled": 0.4, "scaled_attention": 0.4}  # of fewer head sizes on a GPU: the share of draws that has a kernel


@pytest.mark.parametrize("op", [op for op in OPS if not OPS[op]["composite"]])
def test_what_is_drawn_has_a_kernel(op):
    """Whether a GPU takes a call is known without one: what the CPU takes and Hopper refuses would be drawn for nothing. 4 s for all."""
    kernels = Kernels(SEED)
    calls = [draw(op, f"{SEED}.{number}", scale_of(number)) for number in range(40)]
    assert sum(kernels.of(call) is not None for call in calls) >= NARROW.get(op, 0.85) * len(calls)


@pytest.mark.parametrize("op, ports", [("decode_layers", ("k_cache", "v_cache")), ("decode_layers_cross", ("cross_k", "cross_v"))])
def test_layers_lie_whole_positions_apart(op, ports):
    """Where something lies between them. The CPU takes layers that lie 16 bytes further apart, Hopper does not."""
    kernels, found = Kernels(SEED), dict.fromkeys(ports, 0)
    for number in range(200):
        call = draw(op, f"{SEED}.{number}")
        for port in ports:
            off, gap = call.layout.get(port, (0, 0))
            if gap and found[port] < 2 and kernels.of(call) is not None:
                planted = replace(call, layout=call.layout | {port: (off, gap + 8)})
                result = run(planted)
                assert not result.wrong and not result.refused and kernels.of(planted) is None
                found[port] += 1
        if min(found.values()) == 2:
            return
    raise AssertionError(found)


def test_refused_draws_are_not_all_that_runs(monkeypatch):
    """Without time to compile: of an op of which nine draws in ten are refused."""
    kernels = Kernels(SEED)
    monkeypatch.setattr(kernels, "of", lambda call: "vivace::served" if call.case.seed % 10 == 0 else None)
    kernels.ran.add("vivace::served")
    chosen = [kernels.choose("cast", range(CANDIDATES * n, CANDIDATES * (n + 1)), SEED, spare=False) for n in range(80)]
    refused = [c for c in chosen if c is not None and kernels.of(c[1]) is None]
    assert 0 < len(refused) <= 80 // DRY and sum(c is not None for c in chosen) > 2 * len(refused)


@pytest.mark.parametrize("op, what", [
    # rows of a table by place, where the adaptive rows have an index: the part of the tokens took the table's first rows
    ("gate_residual", dict(dims={"T": 186, "H": 1000, "P": 3, "R": 1}, dtypes={"x": "bf16", "residual": "bf16", "table": "bf16", "gate": "bf16", "ada_row": "i32", "out": "bf16"}, attrs={"alpha": 3.0}, seed=1028098016, fill=255, hostile="index")),
    # NaN in e5m2 is the poison's byte
    ("cast", dict(dims={"T": 4304, "H": 112}, dtypes={"x": "f16", "out": "e5m2"}, seed=582260092, distribution="nonfinite", fill=127, hostile="index")),
    # ALiBi's distance to a position of 2^31: scores of 1e8 in f32
    ("attention", dict(dims={"T": 30, "Hq": 4, "D": 64, "B": 2, "L": 64, "Hkv": 2, "Dv": 64, "S": 2}, dtypes={"q": "bf16", "k": "bf16", "v": "bf16", "pos": "i32", "slopes": "f32", "out": "bf16", "lse": "f32"}, attrs={"mask": "full"}, fill=127, hostile="index")),
])
def test_what_the_judge_once_called_wrong(op, what):
    """Calls like the three of 152,000 that were called wrong on two H200s: there the CPU's answer, which is right, was called wrong too."""
    again(op, **what)


def test_hostile_contents():
    """Indices that name nothing, NaN and the like, checked or not: an answer or a typed error, and nothing else is touched. In
    processes of their own, so that a crash is known by its call."""
    done = subprocess.run([sys.executable, "-m", "tests.differential", "--mode", "hostile", "--seed", str(SEED), "--rounds", "40", "--jobs", "2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_chains():
    """Two to five calls, each reading what one before it wrote: issued at once and replayed 100 times with contents that change they give
    the bits of the calls one by one."""
    done = subprocess.run([sys.executable, "-m", "tests.differential", "--mode", "chains", "--seed", str(SEED), "--rounds", "4", "--jobs", "2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_modes_share_the_time_and_the_processes(tmp_path):
    """Each has its calls and its row of the receipt, and all end in the seconds given. 8 s."""
    begin, rows = time.monotonic(), tmp_path / "rows"
    done = subprocess.run([sys.executable, "-m", "tests.differential", "--mode", *MODES, "--seed", "5", "--seconds", "8", "--jobs", "2", "--gpus", "2", "--ops", "cast", "norm", "--rows", rows], capture_output=True, text=True)
    assert done.returncode == 0 and "WRONG" not in done.stdout, done.stdout[-3000:] + done.stderr[-2000:]
    assert time.monotonic() - begin < 8 + driver.LATE
    whole = [r for r in map(json.loads, rows.read_text().splitlines()) if r["op"] == "all"]
    assert [r["case"].partition("mode=")[2] for r in whole] == ["", "hostile", "chains"]
    assert all(not r["value"] and r["pass"] == (r["n"] > 0) and r["note"].startswith("seeds 5 to 6, ") for r in whole), whole
    assert all(r["n"] for r in whole[:2]), whole  # of chains a slow machine may have no time for one


def test_processes_that_crash_or_hang_are_told(tmp_path, monkeypatch):
    """What the others ran counts, and the run has not passed. 10 s."""
    monkeypatch.setattr(driver, "LATE", 3)
    args = SimpleNamespace(seed=1, rounds=0, seconds=7.0, mode=["hostile"], device="cpu", ops=["cast"], only="", at=None, jobs=3, gpus=1, begun=time.monotonic(), rows=tmp_path / "rows")
    processes = driver.started(args, tmp_path)
    os.kill(processes[0][0].pid, signal.SIGSEGV)
    os.kill(processes[1][0].pid, signal.SIGSTOP)
    tallies, crashes, kernels = driver.gathered(args, processes)
    assert time.monotonic() - args.begun < 7 + 3 + 2
    assert sorted(status for status, _ in crashes["hostile"]) == [-signal.SIGSEGV, -signal.SIGKILL]
    assert report(args, "hostile", tallies["hostile"], crashes["hostile"], kernels, 10) == 1
    assert json.loads((tmp_path / "rows").read_text().splitlines()[-1])["pass"] is False


def test_a_chain_can_fail():
    """A graph that replays nothing is noticed."""
    class Idle(chains.Host):
        class Capture(vivace.Capture):
            def replay(self):
                pass

    with np.errstate(all="ignore"):
        assert [wrong for _, wrong, _ in (chains.run("norm", f"{SEED}.{n}", Idle) for n in range(2)) if not (wrong or "").startswith("replay")] == []


FREE = {  # op -> a call of which the documents leave something open, port and element that another answer may give, and that answer's row
    "kv_append": (Case({"T": 3, "Hkv": 1, "Hc": 1, "L": 4, "D": 8, "B": 1}, {"k": "f32", "v": "f32", "pos": "i32", "k_cache": "f32", "v_cache": "f32"}, values={"pos": np.array([2, 1, 2])}), "k_cache", 2, "k", 0),
    "qkv_rope": (Case({"T": 3, "Hq": 1, "Hkv": 1, "Hc": 1, "L": 4, "D": 8, "B": 1}, {"qkv": "f32", "q": "f32", "k_cache": "f32", "v_cache": "f32", "pos": "i32"}, values={"pos": np.array([2, 1, 2])}), "v_cache", 2, "qkv", 0),
    "grouped_gemm": (Case({"A": 3, "X": 3, "E": 3, "N": 8, "K": 4}, {"x": "f32", "w": "f32", "offsets": "i32", "out": "f32"}, values={"offsets": np.array([0, 2, 1, 3])}), "out", 1, None, 0),
}


@pytest.mark.parametrize("op", FREE)
def test_what_the_documents_leave_open(op):
    """An element of any of the answers is right, mixed ones too; one of none is wrong."""
    case, port, row, source, other = FREE[op]
    r = op_run.run(op, case).call()
    op_run.verify(op, case, r)
    given = {p: decode(raw, case.dtypes[p], shape_of(op, p, case)) for p, raw in r.data.items()}
    answer = given["x"][row] @ given["w"][other].T if source is None else given[source][other].reshape(-1)[-8:]

    def judged(first):
        written = {p: b.copy() for p, b in r.written.items()}
        written[port].view(np.float32).reshape(-1, 8)[row, 0] = first
        op_run.verify(op, case, SimpleNamespace(data=r.data, written=written))

    judged(answer[0])
    with pytest.raises(op_run.Wrong, match=port):
        judged(answer[0] + 0.5)


@pytest.mark.parametrize("op", ("scaled_attention", "attention_block_scaled"))  # they lack the attribute layout, which attention's checks once asked for
def test_checked_mode_does_not_end_the_process(op):
    code = f"from tests.differential.draw import draw; from dataclasses import replace; from tests.differential.run import run; r = run(replace(draw({op!r}, '1.1'), checked=True)); assert not r.wrong, r.wrong"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_a_seed_is_a_call():
    """The same call each time, and the line that a failure prints runs it."""
    first, second = (draw("attention", "5.3") for _ in range(2))
    assert first == second
    done = subprocess.run([sys.executable, "-c", first.line()], capture_output=True, text=True)
    assert done.returncode == 0 and "attention: right" in done.stdout, done.stderr[-500:]
    assert run(first).wrong is None
