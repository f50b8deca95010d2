"""Products of few tokens whose quantized weights come from memory, in many more steps than a ring holds: what is multiplied
before it has come shows. The table's cases are short, so that all of a row is there while tokens are still loaded. Needs --device cuda."""
import pytest

from tests.op_data import device

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import torch  # noqa: E402

import vivace  # noqa: E402
from vivace import ops  # noqa: E402

N, K = 8192, 8192


def q8_0(g):
    """Bytes of the rows, and their values."""
    scale = (torch.rand(N, K // 32, 1, generator=g, device=device.NAME) * 0.01 + 0.001).half()
    code = torch.randint(-127, 128, (N, K // 32, 32), generator=g, device=device.NAME, dtype=torch.int8)
    return torch.cat([scale.view(torch.uint8), code.view(torch.uint8)], -1), (scale.double() * code.double())


def q4_0(g):
    scale = (torch.rand(N, K // 32, 1, generator=g, device=device.NAME) * 0.1 + 0.01).half()
    code = torch.randint(0, 256, (N, K // 32, 16), generator=g, device=device.NAME, dtype=torch.uint8)
    return torch.cat([scale.view(torch.uint8), code], -1), scale.double() * (torch.cat([code % 16, code // 16], -1).double() - 8)


@pytest.mark.parametrize("T", [1, 8, 40])
@pytest.mark.parametrize("form", [q8_0, q4_0], ids=lambda f: f.__name__)
def test_steps_are_multiplied_when_they_are_there(form, T):
    g = torch.Generator(device=device.NAME).manual_seed(T)
    blocks, values = form(g)
    w, values = vivace.view(blocks.reshape(N, -1), dtype=form.__name__, shape=(N, K)), values.reshape(N, K)
    x = torch.randn(T, K, generator=g, device=device.NAME).bfloat16()
    want, size = x.double() @ values.T, x.double().abs() @ values.abs().T  # before the product: a fault of its kernel is not to meet the library's set-up
    torch.cuda.synchronize()
    out = torch.zeros(3, T, N, device=device.NAME, dtype=torch.bfloat16)
    sweep = torch.empty(256 << 20, dtype=torch.uint8, device=device.NAME)
    for i in range(3):
        sweep.zero_()  # nothing of w is in the L2 cache
        ops.gemm(x=x, w=w, out=out[i])
    assert ((out.double() - want).abs() <= 2.0**-8 * want.abs() + (K / 16 + 16) * 2.0**-24 * size).all()  # the output's rounding, and a sum's
    assert torch.equal(out[1:], out[:1].expand(2, T, N))
