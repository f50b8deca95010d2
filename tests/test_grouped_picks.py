"""Which kernel experts in q4_0 take on Hopper, by their shape. No GPU."""
import re

import ml_dtypes
import numpy as np
import pytest

import vivace
from vivace import _core
from vivace.errors import UnsupportedError

BF16 = ml_dtypes.bfloat16


def picked(A, E, N, K, x=BF16, gated=False, capability=90, **options):
    """Of gated experts N rows of gates, as many ups."""
    rows = 2 * N if gated else N
    call = {"x": np.zeros((A, K), x), "w": vivace.view(np.empty((E, rows, K // 32 * 18), np.uint8), dtype="q4_0", shape=(E, rows, K)), "offsets": np.zeros(E + 1, np.int32), "out": np.empty((A, N), x)}
    if gated:
        call |= {"gate_up": np.empty((A, rows), x)}
    return _core.picked_kernel("grouped_gated_gemm" if gated else "grouped_gemm", capability, **call, **options)


@pytest.mark.parametrize("gated", (False, True))
@pytest.mark.parametrize("A, E, N, K, tile", [(9, 257, 512, 2048, (48, 16, 7)), (24, 128, 2048, 768, (64, 16, 6)), (1024, 128, 768, 2048, (128, 64, 4)), (9216, 257, 512, 2048, (128, 64, 4))])
def test_blocks_of_whole_16_bytes_are_dequantized_into_registers(gated, A, E, N, K, tile):
    fields = re.search(r"grouped_wgmma<.*GroupedWgmma{(.*)}", picked(A, E, N, K, gated=gated)).group(1).split(", ")
    assert tuple(map(int, fields[:3])) == tile and fields[3:] == ["true" if gated else "false", "false", "true"]


@pytest.mark.parametrize("options", [dict(K=2048 + 32), dict(x=np.float16), dict(x=np.float32), dict(act="q8"), dict(capability=80), dict(capability=120)])
def test_others_keep_their_tile(options):
    assert "grouped_gemm<" in picked(**{"A": 9, "E": 16, "N": 64, "K": 2048} | options)


def test_and_run_in_two_parts():
    with pytest.raises(UnsupportedError, match="e4m3 or q4_0 w under bf16"):
        picked(9, 16, 64, 2048 + 32, gated=True)
