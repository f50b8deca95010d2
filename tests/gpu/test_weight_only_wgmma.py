"""Products by wgmma with weights of four bits dequantized in registers: their bits are those of mma.sync, which one token at a time takes. Drawn tokens,
ends of K, scales, strides of x and rows that are not valid. Needs --device cuda."""
import pytest

from tests.op_data import device

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import numpy as np  # noqa: E402
import torch  # noqa: E402

import vivace  # noqa: E402
from vivace import _core, ops  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="Hopper has wgmma")
N = 4288  # tiles of 64 rows: 67 blocks, of 32 more than the chip holds at once
SCALES = {"nvfp4": (16, torch.float8_e4m3fn), "i4/32": (32, torch.float32), "i4/64": (64, torch.float16), "i4/128": (128, torch.bfloat16)}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", SCALES)
def test_bits_are_those_of_single_tokens(form, seed):
    rng, g = np.random.default_rng([seed, *form.encode()]), torch.Generator(device=device.NAME).manual_seed(seed)
    group, dtype = SCALES[form]
    T, K, valid = int(rng.integers(17, 65)), int(rng.integers(1, 20)) * 128 + int(rng.choice([0, 32])) * (group <= 32), None
    K = K // 256 * 256 + 256 if form == "nvfp4" and T > 32 else K  # rows of scales that start at 16 bytes
    codes = torch.randint(0, 256, (N, K // 2), generator=g, device=device.NAME, dtype=torch.uint8)
    scales = (torch.rand(N, K // group, generator=g, device=device.NAME) + 0.25).to(dtype)
    held = torch.full((T, K + 8 * int(rng.integers(0, 3))), float("nan"), device=device.NAME, dtype=torch.bfloat16)
    x = held[:, :K]
    x.copy_(torch.randn(T, K, generator=g, device=device.NAME))
    given = {"w": vivace.view(codes, dtype="e2m1" if form == "nvfp4" else "i4", shape=(N, K)), "w_block_scale": scales}
    if rng.random() < 0.5:
        valid = int(rng.integers(1, T + 1))
    out, each = (torch.full((T, N), 7.0, device=device.NAME, dtype=torch.bfloat16) for _ in range(2))
    assert _core.picked_kernel("gemm", 90, x=x, out=out, **given).partition("GemmWeightOnly{")[2].count(",") == 15, "not by wgmma"
    ops.gemm(x=x, out=out, **given, **({} if valid is None else {"rows": torch.tensor([valid], device=device.NAME, dtype=torch.int32)}))
    for t in range(T if valid is None else valid):
        ops.gemm(x=x[t : t + 1], out=each[t : t + 1], **given)
    assert torch.equal(out.view(torch.int16), each.view(torch.int16))
