"""grouped_gated_gemm's one kernel gives the bits of its parts, one after the other; one row for all those of a row for each."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from vivace import _core, ops  # noqa: E402
from vivace.errors import UnsupportedError  # noqa: E402

CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]


def fused(**call):
    try:
        _core.picked_kernel("grouped_gated_gemm", CAPABILITY, **call)
    except UnsupportedError:
        return False
    return True


# Tokens, experts, choices of each, N, K, dtype, act, one kernel on sm_90a: a row an expert, some tens, hundreds; N off whole tiles; rows off 16 bytes.
@pytest.mark.parametrize("T, E, top, N, K, dtype, act, one", [(1, 128, 8, 768, 2048, "bfloat16", "silu", 1), (4, 128, 8, 768, 2048, "bfloat16", "silu", 1), (64, 16, 4, 328, 264, "float16", "gelu_tanh", 1),
                                                              (150, 4, 2, 100, 512, "bfloat16", "gelu_erf", 1), (900, 4, 2, 200, 128, "float16", "silu", 1), (9, 4, 2, 40, 36, "bfloat16", "silu", 0)])
def test_bits_of_the_parts(T, E, top, N, K, dtype, act, one):
    g, dtype, A = torch.Generator(device="cuda").manual_seed(T + N), getattr(torch, dtype), T * top
    def draw(*shape):
        return torch.randn(*shape, generator=g, device="cuda")
    weights, place, token, offsets = torch.empty(T, top, device="cuda"), *(torch.zeros(n, dtype=torch.int32, device="cuda") for n in ((T, top), A, E + 1))
    ops.moe_route(logits=draw(T, E), weights=weights, place=place, token=token, offsets=offsets)
    x, w = draw(1 if T == 1 else A, K).to(dtype), (draw(E, 2 * N, K) * K**-0.5).to(dtype)
    both, scratch = torch.zeros(A, 2 * N, device="cuda", dtype=dtype), torch.zeros(A, 2 * N, device="cuda", dtype=dtype)
    first, second = (torch.full((A, N), 7.0, device="cuda", dtype=dtype) for _ in range(2))
    ops.grouped_gemm(x=x.expand(A, K).contiguous(), w=w, offsets=offsets, out=both)
    ops.act_mul(x=both, out=first, act=act)
    call = {"x": x, "w": w, "offsets": offsets, "gate_up": scratch, "out": second, "act": act}
    assert CAPABILITY != 90 or fused(**call) == bool(one)
    for _ in range(3):
        ops.grouped_gated_gemm(**call)
        assert torch.equal(first.view(torch.int16), second.view(torch.int16))


def test_bits_of_other_tiles():
    """A row for each of eight experts, then four copies of it for each: another tile on sm_90a, the same bits."""
    g = torch.Generator(device="cuda").manual_seed(5)
    x, w = (torch.randn(*shape, generator=g, device="cuda").to(torch.bfloat16) for shape in ((8, 2048), (128, 1536, 2048)))
    counts = (torch.arange(128, device="cuda") % 16 == 3).int()
    outs, kernels = [], set()
    for copies in (1, 4):
        offsets = torch.zeros(129, dtype=torch.int32, device="cuda")
        offsets[1:] = torch.cumsum(counts * copies, 0)
        call = {"x": x.repeat_interleave(copies, 0), "w": w, "offsets": offsets, "out": torch.zeros(8 * copies, 1536, dtype=torch.bfloat16, device="cuda")}
        kernels.add(str(_core.picked_kernel("grouped_gemm", CAPABILITY, **call)))
        ops.grouped_gemm(**call)
        outs.append(call["out"].view(torch.int16)[::copies])
    assert torch.equal(*outs) and (CAPABILITY != 90 or len(kernels) == 2)
