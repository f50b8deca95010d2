"""The planted GPU faults still apply to the sources; whether they are caught needs a GPU."""
import pytest

from tests.gpu import tool_views
from tests.planted_gpu import FAULTS, stale


def test_planted_gpu_faults_apply():
    assert not stale(), f"bring up to date in planted_gpu.py: {[f[0] for f in stale()]}"
    assert len({f[0] for f in FAULTS}) == len(FAULTS) >= 20
    assert all(f[2] != f[3] for f in FAULTS)


@pytest.mark.parametrize("tool", tool_views.VIEWS)
def test_views_apply(tool, tmp_path):
    assert not tool_views.stale(), f"bring up to date in gpu/tool_views.py: {tool_views.stale()}"
    planted = tmp_path / "planted" / "vivace/kernels/tile/reduce.cuh"
    planted.parent.mkdir(parents=True)
    planted.write_text("// a fault")
    tool_views.write(tmp_path / "view", tool, tmp_path / "planted")
    assert (tmp_path / "view/vivace/kernels/tile/reduce.cuh").read_text() == "// a fault"
    for file, _, other in tool_views.VIEWS[tool]:
        assert other in (tmp_path / "view" / file).read_text()
