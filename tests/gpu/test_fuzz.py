"""Drawn calls of kernels in which a fuzzer from outside once found wrong results, as a small run of tests/differential: the faults
of then, planted again (planted_gpu.py), must be found here."""
from types import SimpleNamespace

import numpy as np
import pytest

from tests.op_data import device

pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from tests.differential.device import DeviceWorker  # noqa: E402
from tests.differential.kernels import CANDIDATES  # noqa: E402

# op -> kernels, draws of which those run that pick one of these
RUNS = {
    "attention": (r"bf16, .*AttentionSwapAB\{128, 128, (8|16|32),", 5000),           # groups of heads that fill a tile, tokens with slots
    "gemm": (r"GemmWgmma\{\d+, (144|176|208), .* 0, 0, 0, 0\}", 9000),  # tiles whose last run has half of the tokens
}


@pytest.mark.parametrize("op", RUNS)
def test_drawn(op, tmp_path):
    kernels, draws = RUNS[op]
    worker = DeviceWorker(SimpleNamespace(seed=1, jobs=1, device="cuda", at=None, ops=[op], only=kernels, seconds=0, begun=0), 0, tmp_path / "0")
    with np.errstate(all="ignore"):
        for turn in range(draws // CANDIDATES):
            worker.one(op, turn)
            if worker.tally(op).wrong:
                break
        worker.flush()
    tally = worker.tally(op)
    assert not tally.wrong, f"seed {tally.wrong[0][0]}: {tally.wrong[0][1]}\n    {tally.wrong[0][2]}"
    assert tally.ran >= 3, f"{tally.ran} calls of these kernels in {draws} draws"
