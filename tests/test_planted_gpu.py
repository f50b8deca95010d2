"""The planted GPU faults still apply to the sources; whether they are caught needs a GPU."""
from tests.gpu import even_barriers
from tests.planted_gpu import FAULTS, stale


def test_planted_gpu_faults_apply():
    assert not stale(), f"bring up to date in planted_gpu.py: {[f[0] for f in stale()]}"
    assert len({f[0] for f in FAULTS}) == len(FAULTS) >= 20
    assert all(f[2] != f[3] for f in FAULTS)


def test_even_barriers_apply(tmp_path):
    assert not even_barriers.stale(), f"bring up to date in gpu/even_barriers.py: {even_barriers.stale()}"
    planted = tmp_path / "planted" / "vivace/kernels/tile/reduce.cuh"
    planted.parent.mkdir(parents=True)
    planted.write_text("// a fault")
    even_barriers.write(tmp_path / "even", tmp_path / "planted")
    assert (tmp_path / "even/vivace/kernels/tile/reduce.cuh").read_text() == "// a fault"
    for file, _, even in even_barriers.EVEN:
        assert even in (tmp_path / "even" / file).read_text()
