"""bench/bench_colocate.py end to end on the host with models of the tests: its rows, and that a part which breaks leaves the others."""
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import bench_colocate
from tools.receipt import errors

ROOT = Path(__file__).resolve().parent.parent
FACTS = {"chip": "NVIDIA Testing", "sm": "9.0", "driver": "1", "cuda": None, "clocks_mhz": None, "commit": "dirty", "versions": {}, "tactics": None, "limits": None}


def run(tmp_path, *args):
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    done = subprocess.run([sys.executable, "bench/bench_colocate.py", "--device", "cpu", "--tiny", "--facts", tmp_path / "facts.json", "--out", tmp_path, *args],
                          cwd=ROOT, capture_output=True, text=True, timeout=280)
    data = json.loads((tmp_path / "bench/results/testing/colocate.json").read_text())
    assert not errors(data, "colocate"), errors(data, "colocate")
    return done, {(r.get("row"), r["case"].rpartition("clock=")[2] if "clock=" in r["case"] else ""): r for r in data["rows"]}


def test_rows_of_a_run(tmp_path):
    """One part that works and one that cannot (PyTorch has no CUDA here): rows of the first, a row that says so of the second."""
    done, rows = run(tmp_path, "--parts", "torch,b1", "--rows", "gated,urgent,steps", "--scale", "0.05", "--seconds", "200")
    failed = [r for r in rows.values() if r.get("pass") is False]
    if any("refused" in r["note"] or "LimitExceeded" in r["note"] or "deadline" in r["note"] for r in failed):
        pytest.skip(f"this machine is busy: {failed}")
    assert done.returncode == 1 and len(failed) == 1 and failed[0]["case"].startswith("part=torch"), (failed, done.stdout[-3000:])
    gated, alone = rows["gated", "wall"], rows["alone", "wall"]
    assert gated["n"] >= 2 and gated["tokens_per_s"] > 0 and gated["bound_us"] > 0 and gated["p999_over_alone"] == pytest.approx(gated["p999_us"] / alone["p999_us"], rel=1e-3)
    assert gated["step_max_us"] >= gated["step_p50_us"] > 0 and "of" in gated["note"] and rows["urgent", "wall"]["n"] >= 2
    assert {r["case"].split(",")[3] for r in rows.values() if r.get("row") == "steps"} <= {"gates=gated", "gates=plain"}
    assert done.stdout.splitlines()[-1].endswith(", 1 failed") and "FAILED" in done.stdout


def test_arrivals():
    assert bench_colocate.paced(30, 1)[:2] == [0, 1 / 30] and len(bench_colocate.paced(30, 10)) == 300
    given = bench_colocate.poisson(30, 100)
    assert 2600 < len(given) < 3400 and given == sorted(given) and given == bench_colocate.poisson(30, 100)
    some = bench_colocate.bursts(30, 1)
    assert len(some) == 30 and some[:4] == [0, 0, 0, 0.1]


def test_time_is_kept():
    """A window that does not fit is a row that says so; so is one that raises."""
    said = []
    models = type("Models", (), {"policy": Path("arm"), "precision": "f32"})
    part = bench_colocate.Part("b1", models, 1.0, 0.0, set())
    part.emit = lambda **row: said.append(row)
    assert not part.wants("gated")
    with part.row("bursts"):
        raise ValueError("broken")
    assert [r["pass"] for r in said] == [False, False] and said[0]["note"].startswith("cut off") and "broken" in said[1]["note"]
    part.emit = lambda **row: said.append(row)
    calls = bench_colocate.Calls()
    calls.wall, calls.device = [1000.0] * 9 + [2000.0], [0.0] * 10
    part.calls("mode=alone", calls, row="alone")
    assert len(said) == 3 and said[2]["p50_us"] == 1000 and said[2]["max_us"] == 2000 and said[2]["p999_over_alone"] == 1
    assert any("broken" in line for line in bench_colocate.table(said)) and any(line.startswith("alone") for line in bench_colocate.table(said))


def test_rows_of_speech_and_of_chats(tmp_path):
    done, rows = run(tmp_path, "--parts", "more,three", "--rows", "chats,asr", "--scale", "0.05", "--seconds", "200")
    if any("refused" in r["note"] or "LimitExceeded" in r["note"] or "deadline" in r["note"] for r in rows.values() if r.get("pass") is False):
        pytest.skip("this machine is busy")
    assert done.returncode == 0, done.stdout[-3000:]
    chats, asr = rows["chats", "wall"], rows["asr", "wall"]
    all_rows = json.loads((tmp_path / "bench/results/testing/colocate.json").read_text())["rows"]
    assert chats["tokens_per_s"] > 0 and chats["wait_limit_us"] == pytest.approx(chats["bound_us"] + 100, rel=1e-3) and 0 <= chats["wait_p50_us"] <= chats["wait_max_us"]
    assert asr["tokens_per_s"] > 0 and "prompts meanwhile" in rows["chats", ""]["note"]
    shares = {c.split("tenant=")[1].split(",")[0]: share for c, share in [(r["case"], r["device_share"]) for r in all_rows if "metric=share" in r["case"]]}
    assert set(shares) == {"large", "asr"} and all(share > 0 for share in shares.values()) and sum(shares.values()) < 1.05, shares
    held = rows["chats-held", "wall"]
    assert held["n"] >= 2 and chats["p999_over_held"] == pytest.approx(chats["p999_us"] / held["p999_us"], rel=1e-3) and "p999_over_held" not in held and "of held" in chats["note"]
    assert rows["asr", ""]["n"] >= 1 and rows["asr", ""]["p50_us"] > 0 and re.search(r"[1-9]\d* gates", rows["asr", ""]["note"])
    assert "wait us" in done.stdout


def test_what_a_call_waited():
    """Its turn, and what the device took over the median alone; on a device without a clock of its own the host's."""
    part = bench_colocate.Part("b1", None, 1.0, 0.0, set())
    part.alone, calls = bench_colocate.Calls(), bench_colocate.Calls()
    part.alone.device, part.alone.wall = [90.0, 100.0, 110.0], [500.0] * 3
    calls.began, calls.device, calls.wall = [1000.0, 2000.0, 3000.0], [100.0, 150.0, 80.0], [501.0, 551.0, 700.0]
    gpu = type("Gpu", (), {"trace": lambda _: [("arm", "wait", 900.0, 9e9), ("arm", "wait", 1001.0, 7.0), ("llm", "step", 2001.0, 9e9), ("arm", "call", 2001.0, 9e9), ("arm", "wait", 3500.0, 30.0)]})()
    assert part.waits(calls, gpu) == {"wait_p50_us": 30.0, "wait_p99_us": 50.0, "wait_max_us": 50.0}
    part.alone.device = [0.0] * 3
    assert part.waits(calls, gpu)["wait_max_us"] == 230.0
    held = bench_colocate.Calls()  # a chip that was slower then: no call waited so long
    held.device, held.wall = [130.0, 140.0, 150.0], [500.0] * 3
    assert part.waits(calls, gpu, held) == {"wait_p50_us": 7.0, "wait_p99_us": 30.0, "wait_max_us": 30.0}  # turns alone
    held.device = [70.0, 90.0, 145.0]  # the slowest of both is the clock's: it waited 5, not 60
    assert part.waits(calls, gpu, held) == {"wait_p50_us": 20.0, "wait_p99_us": 30.0, "wait_max_us": 37.0}


def test_a_neighbour_stands_still():
    """From before a call until it is over, and at the pace of the calls."""
    said = []
    policy = type("Policy", (), {"predict": lambda _, seed: said.append(("call", time.perf_counter())), "device_us": lambda _: 5.0})()
    calls = bench_colocate.observe(policy, {}, [0.02, 0.04], lambda: 1980, tuple(lambda n=n: said.append((n, time.perf_counter())) for n in ("pause", "resume")))
    assert [what for what, _ in said] == ["call"] * 3 + ["pause", "call", "resume"] * 2 and calls.mhz == [1980] * 2 and len(calls.wall) == 2
    at = [when for _, when in said]
    assert at[4] - at[3] >= bench_colocate.HELD_S and at[7] - at[6] >= bench_colocate.HELD_S


def test_answers_end_one_after_the_other():
    """Prompts that come all at once would make a model's rate that of where a window begins: first answers have lengths of their own, and nothing is counted before all have begun."""
    asked, said = [], []

    class Answer:
        def __init__(self, n):
            self._request, self.left = self, n

        def read(self):
            if len(said) < 3 or not self.left:  # the first reads find nothing
                said.append(0)
                return []
            self.left -= 1
            return [(7, 0.0, None if self.left else "length", 0)]

        def close(self):
            pass

    model = type("Model", (), {"report": lambda _: {"vocab": 100}, "_stream": lambda _, ids, text, max_tokens: asked.append(max_tokens) or Answer(max_tokens)})()
    writer = bench_colocate.Writer(model, 4, 5, 20)
    writer.running(1, seconds=30)
    assert asked[:8] == [5, 10, 15, 20, 20, 20, 20, 20] and writer.count() >= 4 and len(writer.spoken) >= 4
    writer.close()
