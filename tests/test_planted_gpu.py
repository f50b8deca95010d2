"""The planted faults still apply to the sources; whether those of kernels are caught needs a GPU, the others a compiler and minutes."""
import pytest

from tests import planted_faults
from tests.gpu import tool_views
from tests.planted_gpu import FAULTS, noticed, stale
from tests.planting import places, replaced, tokens


def test_planted_gpu_faults_apply():
    assert not stale(), f"bring up to date in planted_gpu.py: {[f[0] for f in stale()]}"
    assert len({f[0] for f in FAULTS}) == len(FAULTS) >= 20
    assert all(f[2] != f[3] for f in FAULTS)


def test_planted_host_faults_apply():
    faults = [*planted_faults.FAULTS, *planted_faults.BEHIND]
    old = [f[0] for f in faults if not places((planted_faults.ROOT / f[1]).read_text(), f[2])]
    assert not old, f"bring up to date in planted_faults.py: {old}"
    assert len({planted_faults.key(f) for f in faults}) == len(faults)


def test_a_patch_names_code_and_not_lines():
    """A source that is laid out anew keeps its patches; those few that end within a word or name a comment are counted."""
    source = "if (a.rows <\n    b)  // why\n  c(1,\n    2);\nif (a.rows < b) d();"
    assert [source[b:e] for b, e in places(source, "if (a.rows < b) c(1, 2);")] == [source[:source.index(";") + 1]]
    assert replaced(source, "if (a.rows < b) c(1, 2);", "x;") == "x;\nif (a.rows < b) d();"
    assert replaced("a a a", "a a", "b") == "b a" and not places(source, "if (a.rows < b) c(1, 3);")
    patches = [f[1:3] for f in [*planted_faults.FAULTS, *planted_faults.BEHIND, *FAULTS]] + [r[:2] for view in tool_views.VIEWS.values() for r in view]
    lost = [(file, text) for file, text in patches if not file.endswith(".py")
            and len(places(source := (planted_faults.ROOT / file).read_text(), text)) != len(places("\n".join(t for t, _, _ in tokens(source)), text))]
    assert len(lost) <= 5, lost


@pytest.mark.parametrize("tool", tool_views.VIEWS)
def test_views_apply(tool, tmp_path):
    assert not tool_views.stale(), f"bring up to date in gpu/tool_views.py: {tool_views.stale()}"
    other = tmp_path / "planted" / "vivace/kernels/tile/reduce.cuh"
    other.parent.mkdir(parents=True)
    other.write_text("// a fault")
    tool_views.write(tmp_path / "view", tool, tmp_path / "planted")
    assert (tmp_path / "view/vivace/kernels/tile/reduce.cuh").read_text() == "// a fault"
    for file, _, other in tool_views.VIEWS[tool]:
        assert other in (tmp_path / "view" / file).read_text()


@pytest.mark.parametrize("text, status, by_test, want", [
    ("E   tests.op_run.Wrong: out[0]: got 1, reference 2\nFAILED tests/test_ops.py::a\n", 1, True, True),
    ("E   vivace.IoError: norm: open(a.lock) failed\nFAILED tests/test_ops.py::a\n", 1, True, False),
    ("E   RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`\nFAILED tests/test_ops.py::a\n", 1, True, False),
    ("E   vivace.CompileError: expected a ;\nFAILED tests/test_ops.py::a\n", 1, True, False),
    ("3 passed in 2 s\n", 0, True, False),
    ("ERROR tests/test_ops.py: no such file\n", 2, True, False),
    ("", -11, True, True),
    ("========= Warning: Race reported\n========= RACECHECK SUMMARY: 2 hazards displayed\n", 1, False, True),
    ("========= RACECHECK SUMMARY: 0 hazards displayed\n", 1, False, False),
])
def test_what_counts_as_noticed(text, status, by_test, want):
    assert noticed(text, status, by_test)[0] is want
