"""The profiler's two timers on a GPU: CUPTI's records and pairs of events see the same launches and agree about long ones."""
import json
import subprocess
import sys

import numpy as np
import pytest

import vivace
from tests.test_gpu_face import gpus
from vivace import array, profiler
from vivace.errors import UnsupportedError

pytestmark = pytest.mark.skipif(gpus() == 0, reason="no GPU")
LARGE = (64, 1 << 20)  # f32: 256 MB, so that a sum of two moves 805 MB, some 200 us


@pytest.fixture(scope="module")
def cupti():
    try:
        with profiler.profile("cupti"):
            pass
    except UnsupportedError as e:
        pytest.skip(str(e))


def taken(timer, work):
    with profiler.profile(timer) as p:
        work()
    return p, {(r["region"], r["op"]): r for r in p.rows}


def test_cupti_and_events_agree(cupti):
    x, y, out = (array.ones(LARGE, dtype="f32", device="cuda") for _ in range(3))

    def work():
        for _ in range(10):
            array.add(x, y, out=out)
        with profiler.kernel("part"):
            array.sqrt(x, out=out)

    work()
    by_cupti, records = taken("cupti", work)
    by_events, pairs = taken("events", work)
    assert by_cupti.timer.startswith("cupti ") and by_cupti.note == "" and by_events.timer == "events"
    assert records.keys() == pairs.keys() == {("", "array.add"), ("part", "array.sqrt")}
    for key, r in records.items():
        e = pairs[key]
        assert (r["calls"], r["launches"], r["bytes"], r["kernel"]) == (e["calls"], e["launches"], e["bytes"], e["kernel"])
        # Runs differ by a part of a per cent; an event before and one behind add some us to a launch.
        assert -0.05 * r["mean_us"] <= e["mean_us"] - r["mean_us"] < 15 and r["least_us"] <= r["mean_us"] <= r["most_us"]
        assert 0.5 < r["fraction"] < 1, "a stream of 805 MB runs near the memory's rate and never above it"


def test_steps_of_a_model_are_graphs(cupti):
    model = vivace.load_model("tests/fixtures/tiny/llama_untied", device="cuda", precision="bf16")
    answer = lambda: list(model.generate_ids([1, 2, 3], max_tokens=8).tokens)  # noqa: E731
    first = answer()
    p, rows = taken("cupti", answer)
    assert sum(r["calls"] for r in p.rows) >= 7 * 5 and all(r["us"] > 0 and r["device"] == "cuda:0" for r in p.rows), p.rows  # kernel by kernel
    p, rows = taken("events", answer)
    graphs = [r for r in p.rows if r["op"] == "graph" and r["launches"] > 1]
    assert sum(r["calls"] for r in graphs) >= 7 and all(r["us"] > 0 for r in graphs), p.rows
    assert answer() == first


def test_records_of_an_earlier_profile_are_gone(cupti):
    x = array.ones((8, 16), dtype="f32", device="cuda")
    for _ in range(20):
        p, rows = taken("cupti", lambda: x + x)
        assert [r["calls"] for r in p.rows] == [1] and 0 < rows["", "array.add"]["us"] < 1e4


def test_a_script(cupti, tmp_path):
    script = tmp_path / "work.py"
    script.write_text("from vivace import array\nx = array.ones((4096, 4096), dtype='f32', device='cuda')\nfor _ in range(3):\n    y = x * x\nprint(float(y.sum()))\n")
    done = subprocess.run([sys.executable, "-m", "vivace.cli", "profile", "--timer", "cupti", "--svg", str(tmp_path / "a.svg"), "--out", str(tmp_path / "a.json"), str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = {r["op"]: r for r in json.loads((tmp_path / "a.json").read_text())["rows"]}
    assert rows["array.multiply"]["calls"] == 3 and rows["array.multiply"]["device"] == "cuda:0" and (tmp_path / "a.svg").stat().st_size > 1000
    assert np.isclose(float(done.stdout.split()[0]), 4096 * 4096)
