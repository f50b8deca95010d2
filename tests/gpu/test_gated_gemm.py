"""gated_gemm of quantized weights gives the bits of gemm into f32 and act_mul: g has no rounding of its own."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import vivace  # noqa: E402
from vivace import ops  # noqa: E402

BLOCKS = {"q4_0": (32, 18, 1), "q4_k": (256, 144, 2), "q8_0": (32, 34, 1)}  # elements, bytes, f16 scales in front


def weights(kind, rows, K):
    """Ports of a random weight, scales from 0.005 to 0.025."""
    def scales(*shape):
        return torch.rand(*shape, device="cuda") * 0.02 + 0.005
    if kind == "e4m3":
        return {"w": torch.randn(rows, K, device="cuda").to(torch.float8_e4m3fn), "w_row_scale": scales(rows)}
    if kind in BLOCKS:
        n, size, front = BLOCKS[kind]
        raw = torch.randint(0, 256, (rows, K // n, size), dtype=torch.uint8, device="cuda")
        raw[:, :, :2 * front] = scales(rows, K // n, front).half().view(torch.uint8)
        return {"w": vivace.view(raw.reshape(rows, -1), dtype=kind, shape=(rows, K))}
    group, dtype = (16, torch.float8_e4m3fn) if kind == "e2m1" else (128, torch.bfloat16)
    codes = torch.randint(0, 256, (rows, K // 2), dtype=torch.uint8, device="cuda")
    return {"w": vivace.view(codes, dtype=kind, shape=(rows, K)), "w_block_scale": scales(rows, K // group).to(dtype)}


# N off 16 columns: outputs leave one by one. K off 512: the last step is not whole.
@pytest.mark.parametrize("N, K", [(1024, 4096), (264, 2304), (130, 1024)])
@pytest.mark.parametrize("kind", ["q4_0", "q4_k", "q8_0", "e4m3", "e2m1", "i4"])
def test_bits_of_the_parts(kind, N, K):
    torch.manual_seed(N)
    w = weights(kind, 2 * N, K)
    for T in (1, 8, 33, 64, 100, 600):
        x, both = torch.randn(T, K, device="cuda").to(torch.bfloat16), torch.empty(T, 2 * N, device="cuda")
        want, got = (torch.full((T, N), 7.0, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        ops.gemm(x=x, out=both, **w)
        ops.act_mul(x=torch.cat((both[:, ::2], both[:, 1::2]), 1), out=want, act="silu")
        ops.gated_gemm(x=x, out=got, act="silu", **w)
        assert torch.equal(want.view(torch.int16), got.view(torch.int16)), T
