"""The profiler: on the CPU its numbers and its faults, on an emulated GPU the two timers, and `vivace profile`."""
import json
import subprocess
import sys
import textwrap
import threading
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import vivace
from tests import emulated
from vivace import array, ops, profiler
from vivace.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError


def norm(rows=8, width=64):
    x = np.ones((rows, width), np.float32)
    ops.norm(x, out=x)


def test_a_kernel_is_measured_with_what_its_op_costs():
    x, w, y = np.ones((32, 256), np.float32), np.ones((64, 256), np.float32), np.empty((32, 64), np.float32)
    with profiler.kernel("step") as k:
        for _ in range(3):
            ops.gemm(x, w, out=y)
        norm()
    gemm = next(r for r in k.rows if r["op"] == "gemm")
    assert (gemm["calls"], gemm["launches"], gemm["region"], gemm["device"], k.timer) == (3, 1, "step", "cpu", "host clock")
    assert (gemm["bytes"], gemm["flops"]) == vivace._core.cost("gemm", x=x, w=w, out=y)
    assert 0 < gemm["least_us"] <= gemm["mean_us"] <= gemm["most_us"] and abs(gemm["mean_us"] * 3 - gemm["us"]) < 1e-6
    assert abs(sum(r["share"] for r in k.rows) - 1) < 1e-9 and sum(r["us"] for r in k.rows) <= k.wall_us
    limit = profiler.limits("cpu")
    least = max(gemm["bytes"] / limit["bytes_per_s"], gemm["flops"] / limit["flops_per_s"])
    assert abs(gemm["fraction"] - least * 3 / (gemm["us"] / 1e6)) < 1e-9


def test_arrays_functions_are_named_and_counted():
    x, row = array.ones((16, 32), dtype="f32", device="cpu"), array.ones((32,), dtype="f32", device="cpu")
    fused = array.fuse(lambda a, b: array.sqrt(a * b + 1.0))
    with profiler.profile() as p:
        x + row
        x.sum(axis=0)
        fused(x, row)
        x.astype("f16")
        x.T.copy()
    rows = {r["op"]: r for r in p.rows}
    assert rows["array.add"]["bytes"] == 4 * (512 + 32 + 512) and rows["array.add"]["flops"] == 512
    assert rows["array.sum"]["bytes"] == 4 * (512 + 32) and rows["array.sum"]["flops"] == 512
    assert rows["array.multiply+add+sqrt"]["flops"] == 3 * 512 and rows["array.cast"]["bytes"] == 6 * 512
    assert rows["array.copy"]["bytes"] == 8 * 512 and rows["array.copy"]["flops"] == 0


def test_a_capture_counts_when_it_is_replayed():
    x = np.ones((4, 64), np.float32)
    with profiler.profile() as p:
        with vivace.Capture() as c:
            ops.norm(x, out=x)
            ops.norm(x, out=x)
        for _ in range(5):
            c.replay()
    assert [(r["op"], r["calls"]) for r in p.rows] == [("norm", 10)]


def test_regions_nest_and_belong_to_their_thread():
    with profiler.profile() as p:
        with profiler.kernel("a") as a:
            norm()
            with profiler.kernel("b") as b:
                norm()
                other = threading.Thread(target=norm)
                other.start()
                other.join()
            with pytest.raises(FailedPreconditionError, match="still runs"):
                b.rows
        norm()
    assert sorted((r["region"], r["calls"]) for r in p.rows) == [("", 2), ("a", 1), ("a/b", 1)]
    assert [r["region"] for r in b.rows] == ["a/b"] and sum(r["calls"] for r in a.rows) == 2
    assert "a/b: norm" in p.table()


def test_nothing_is_seen_outside():
    norm()
    with profiler.profile() as p:
        pass
    norm()
    assert p.rows == [] and "0 calls" in p.table()
    with pytest.raises(InvalidArgumentError, match="nothing to draw"):
        p.svg()


def test_the_roofline_has_a_point_a_kernel(tmp_path):
    with profiler.profile() as p:
        norm()
        array.ones((64, 64), dtype="f32", device="cpu") + 1.0
    p.save(tmp_path / "a.svg")
    svg = ET.parse(tmp_path / "a.svg").getroot()
    titles = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert any(t.startswith("norm: 1 calls") for t in titles) and any("GB/s" in t for t in titles)
    for c in svg.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(c.get("cx")) <= 900 and 0 <= float(c.get("cy")) <= 560
    p.save(str(tmp_path / "a.json"))
    assert json.loads((tmp_path / "a.json").read_text())["rows"] == p.rows
    p.save(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == p.table()


def test_bad_use(tmp_path):
    with profiler.profile():
        with pytest.raises(FailedPreconditionError, match="do not nest"):
            profiler.profile().__enter__()
    for name in ("", "a/b", 3, None):
        with pytest.raises(InvalidArgumentError, match="wanted a name"):
            profiler.kernel(name)
    with pytest.raises(FailedPreconditionError, match="nothing was measured"):
        profiler.kernel("x").rows
    with pytest.raises(InvalidArgumentError, match="wanted auto, events or cupti"):
        profiler.profile("clock").__enter__()
    for device in ("gpu", "cuda", "cuda:x", 0, ""):
        with pytest.raises(InvalidArgumentError):
            profiler.limits(device)
    with profiler.profile() as p:
        norm()
    with pytest.raises(InvalidArgumentError, match="wanted .svg, .json or .txt"):
        p.save(tmp_path / "a.png")
    with profiler.profile() as p:  # what raises inside ends it all the same
        with pytest.raises(ZeroDivisionError), profiler.kernel("x"):
            1 / 0
        norm()
    assert [r["region"] for r in p.rows] == [""]


def test_threads_that_launch_while_profiles_come_and_go():
    over = threading.Event()

    def work():
        while not over.is_set():
            norm()

    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    for _ in range(50):
        with profiler.profile() as p:
            norm()
        assert all(r["calls"] >= 1 and r["us"] >= 0 for r in p.rows) and sum(r["calls"] for r in p.rows) >= 1
    over.set()
    [t.join() for t in threads]


def test_streams_count_what_they_are_given():
    cpu = lambda: next(s for s in array.stream_stats() if s["device"] == "cpu" and s["handle"] == 0)
    norm()
    before = cpu()
    norm()
    with vivace.Capture() as c:
        norm()
    c.replay()
    array.ones((4,), dtype="f32", device="cpu") + 1
    now = cpu()
    assert now["launches"] - before["launches"] == 3 and now["replays"] - before["replays"] == 1  # ones() is a launch


GPU = pytest.mark.skipif(emulated.CXX is None or emulated.CC is None, reason="no C++ compiler")
STEPS = """
    import numpy as np
    from vivace import array, profiler
    x = array.asarray(np.ones((8, 16), np.float32), device="cuda")
    x + x, x * x
    with profiler.profile(TIMER) as p:
        with profiler.kernel("part"):
            x + x
        x * x
        x + x
    rows = {(r["region"], r["op"]): r for r in p.rows}
    add = rows["", "array.add"]
"""


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    folder = emulated.build(tmp_path_factory.mktemp("emulated"))
    return lambda text, **env: emulated.run(folder, textwrap.dedent(text), **env)


@GPU
def test_events_time_each_launch_of_a_gpu(gpu):
    gpu(STEPS.replace("TIMER", '"events"') + """
    assert p.timer == "events" and p.note == "" and len(rows) == 3, (p.timer, p.note, p.rows)
    assert add["device"] == "cuda:0" and add["us"] == 250.0 and add["bytes"] == 4 * 128 * 3 and add["kernel"]
    s = next(s for s in array.stream_stats() if s["device"] == "cuda:0" and s["launches"])
    assert s["launches"] == 5 and s["copies"] >= 1 and s["copied_bytes"] >= 512, s
    """)


@GPU
def test_cupti_times_kernels_by_the_ids_around_their_launches(gpu):
    gpu(STEPS.replace("TIMER", '"auto"') + """
    assert p.timer.startswith("cupti ") and "130000" in p.timer and p.note == "", (p.timer, p.note)
    assert [round(rows[k]["us"], 6) for k in (("part", "array.add"), ("", "array.multiply"), ("", "array.add"))] == [1.0, 2.0, 3.0], p.rows
    with profiler.profile("cupti") as again:  # records of the first are gone
        x + x
    assert [(r["calls"], r["us"]) for r in again.rows] == [(1, 1.0)]
    """)


@GPU
def test_without_cupti_events_serve_and_say_why(gpu):
    gpu(STEPS.replace("TIMER", '"auto"') + """
    assert p.timer == "events" and "CUPTI answered 1" in p.note and "CUPTI answered 1" in p.table() and add["us"] == 250.0
    """, EMULATED_CUPTI_REFUSES="1")


def cli(*args, **options):
    return subprocess.run([sys.executable, "-m", "vivace.cli", "profile", *map(str, args)], capture_output=True, text=True, timeout=120, **options)


SCRIPT = """
import sys
import numpy as np
from vivace import ops, profiler
x = np.ones((4, 64), np.float32)
with profiler.kernel("part"):
    ops.norm(x, out=x)
print("arguments", sys.argv[1:], __name__)
"""


@pytest.fixture()
def script(tmp_path):
    (tmp_path / "beside.py").write_text("value = 3\n")
    (tmp_path / "work.py").write_text(SCRIPT + "import beside\n")
    return tmp_path / "work.py"


def test_a_script_is_run_with_its_arguments(script, tmp_path):
    done = cli("--svg", tmp_path / "a.svg", "--out", tmp_path / "a.json", script, "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert "arguments ['--steps', '3'] __main__" in done.stdout and "part: norm" in done.stdout and "limits of cpu" in done.stdout
    assert ET.parse(tmp_path / "a.svg") and json.loads((tmp_path / "a.json").read_text())["rows"][0]["op"] == "norm"
    data = cli("--json", script)
    assert json.loads(data.stdout)["rows"][0]["region"] == "part" and "arguments []" in data.stderr


@pytest.mark.parametrize("end,status,says", [("raise RuntimeError('broken')", 1, "RuntimeError: broken"), ("sys.exit(7)", 7, ""), ("sys.exit('no model')", 1, "no model"), ("def f(:", 1, "SyntaxError")])
def test_a_script_that_fails(tmp_path, end, status, says):
    path = tmp_path / "work.py"
    path.write_text(SCRIPT + end + "\n")
    done = cli(path)
    assert done.returncode == status and says in done.stderr and "runpy" not in done.stderr.replace("<frozen runpy>", ""), done.stderr
    assert ("part: norm" in done.stdout) == (end != "def f(:")


@pytest.mark.parametrize("args,code", [(["none.py"], "NotFound"), (["."], "NotFound"), (["--svg", "a.png", __file__], "InvalidArgument"), (["--out", "a.csv", __file__], "InvalidArgument"), (["--timer", "x", __file__], "InvalidArgument"),
                                       (["--svg", "/nowhere/a.svg", __file__], "NotFound")])
def test_bad_arguments(args, code):
    done = cli(*args)
    assert done.returncode == 1 and done.stderr.startswith(f"error[{code}]") and "\n" not in done.stderr.strip(), done.stderr
    assert cli().returncode == 2


@pytest.mark.skipif(any(p for p in profiler._cupti() if "/" in p and __import__("os").path.exists(p)), reason="this machine has CUPTI")
def test_cupti_where_there_is_none(script):
    with pytest.raises(UnsupportedError, match="CUPTI is not there .*libcupti.so.13"):
        profiler.profile("cupti").__enter__()
    done = cli("--timer", "cupti", script)
    assert done.returncode == 1 and done.stderr.startswith("error[Unsupported]") and "arguments" not in done.stdout


def test_a_script_that_launches_nothing(tmp_path):
    (tmp_path / "empty.py").write_text("")
    done = cli("--svg", tmp_path / "a.svg", tmp_path / "empty.py")
    assert done.returncode == 1 and "launched nothing" in done.stderr and not (tmp_path / "a.svg").exists()
