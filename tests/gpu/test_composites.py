"""Ops that have no kernel of their own run those of their parts: every case of their tables, eager and captured. Needs --device cuda."""
import numpy as np
import pytest

from tests.op_data import OPS, contents, device, reference
from tests.op_run import Run, verify

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

CASES = [(op, case) for op, row in OPS.items() if row["composite"] and not row["gpu"] for case in reference(op).CASES]


def test_batched_products_are_among_them():
    assert any(op == "batched_gemm" for op, _ in CASES)


@pytest.mark.parametrize("op, case", [pytest.param(op, case, id=f"{op}-{case.id}") for op, case in CASES])
def test_parts_give_the_whole(op, case):
    data = contents(op, case, case.distributions[0])
    eager = Run(op, case, data).call()
    verify(op, case, eager)
    captured = Run(op, case, data)
    graph = captured.capture()
    captured.reset()
    graph.replay()
    replayed, scratch = captured.check_memory().written, set(getattr(reference(op), "SCRATCH", ()))
    for port, bits in eager.written.items():
        assert port in scratch or np.array_equal(bits, replayed[port]), f"port {port}: a replay gives other bits"
