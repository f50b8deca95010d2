"""The planted GPU faults still apply to the sources; whether they are caught needs a GPU."""
from tests.planted_gpu import FAULTS, stale


def test_planted_gpu_faults_apply():
    assert not stale(), f"bring up to date in planted_gpu.py: {[f[0] for f in stale()]}"
    assert len({f[0] for f in FAULTS}) == len(FAULTS) >= 20
    assert all(f[2] != f[3] for f in FAULTS)
