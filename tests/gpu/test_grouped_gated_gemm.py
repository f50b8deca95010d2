"""grouped_gated_gemm's one kernel gives the bits of its parts, one after the other; one row for all those of a row for each."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import vivace  # noqa: E402
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
SIZES = [(1, 128, 8, 768, 2048, "bfloat16", "silu", 1), (4, 128, 8, 768, 2048, "bfloat16", "silu", 1), (64, 16, 4, 328, 264, "float16", "gelu_tanh", 1),
         (150, 4, 2, 100, 512, "bfloat16", "gelu_erf", 1), (900, 4, 2, 200, 128, "float16", "silu", 1), (9, 4, 2, 40, 36, "bfloat16", "silu", 0)]
# The same of e4m3 weights: of 257 experts too, where a lane finds several; K off whole stages; x that no tensor core takes with them.
EIGHTS = [(1, 257, 9, 512, 2048, "bfloat16", "silu", 1), (4, 128, 8, 768, 2048, "bfloat16", "silu", 1), (64, 16, 4, 328, 272, "bfloat16", "gelu_tanh", 1),
          (900, 4, 2, 200, 128, "bfloat16", "silu", 1), (9, 4, 2, 40, 40, "bfloat16", "silu", 0), (9, 4, 2, 40, 48, "float16", "silu", 0)]
# Of q4_0: also K off whole 16 bytes.
FOURS = [(1, 257, 9, 512, 2048, "bfloat16", "silu", 1), (4, 128, 8, 768, 2048, "bfloat16", "silu", 1), (64, 16, 4, 328, 256, "bfloat16", "gelu_tanh", 1),
         (900, 4, 2, 200, 512, "bfloat16", "silu", 1), (9, 4, 2, 40, 64, "bfloat16", "silu", 0), (9, 4, 2, 40, 256, "float16", "silu", 0)]


def blocks_of(w):
    """q4_0 of w [E, N, K]: an f16 scale, then 16 bytes whose low nibbles are the first 16 codes."""
    w = w.reshape(-1, 32)
    top = w.gather(1, w.abs().argmax(1, keepdim=True))
    d = (top / -8).half()
    codes = (w / d.float() + 8.5).clamp(0, 15).to(torch.uint8)
    return torch.cat([d.view(torch.uint8), codes[:, :16] | codes[:, 16:] << 4], 1)


def weights_of(draw, form, dtype, E, N, K):
    w = draw(E, N, K) * K**-0.5
    if form == "plain":
        return {"w": w.to(dtype)}
    if form == "q4_0":
        return {"w": vivace.view(blocks_of(w).reshape(E, N, -1), dtype="q4_0", shape=(E, N, K))}
    scale = w.abs().amax(-1) / 448
    return {"w": (w / scale[..., None]).to(torch.float8_e4m3fn), "w_row_scale": scale}


@pytest.mark.parametrize("T, E, top, N, K, dtype, act, one, form", [(*s, form) for form, sizes in (("plain", SIZES), ("e4m3", EIGHTS), ("q4_0", FOURS)) for s in sizes])
def test_bits_of_the_parts(T, E, top, N, K, dtype, act, one, form):
    g, dtype, A = torch.Generator(device="cuda").manual_seed(T + N), getattr(torch, dtype), T * top
    def draw(*shape):
        return torch.randn(*shape, generator=g, device="cuda")
    weights, place, token, offsets = torch.empty(T, top, device="cuda"), *(torch.zeros(n, dtype=torch.int32, device="cuda") for n in ((T, top), A, E + 1))
    ops.moe_route(logits=draw(T, E), weights=weights, place=place, token=token, offsets=offsets)
    x, of = draw(1 if T == 1 else A, K).to(dtype), weights_of(draw, form, dtype, E, 2 * N, K)
    both, scratch = torch.zeros(A, 2 * N, device="cuda", dtype=dtype), torch.zeros(A, 2 * N, device="cuda", dtype=dtype)
    first, second = (torch.full((A, N), 7.0, device="cuda", dtype=dtype) for _ in range(2))
    ops.grouped_gemm(x=x.expand(A, K).contiguous(), **of, offsets=offsets, out=both)
    ops.act_mul(x=both, out=first, act=act)
    call = {"x": x, **of, "offsets": offsets, "gate_up": scratch, "out": second, "act": act}
    assert CAPABILITY != 90 or fused(**call) == bool(one)
    for _ in range(3):
        ops.grouped_gated_gemm(**call)
        assert torch.equal(first.view(torch.int16), second.view(torch.int16))


@pytest.mark.parametrize("form", ("plain", "e4m3", "q4_0"))
def test_bits_of_other_tiles(form):
    """A row for each of eight experts, then four and 128 copies of it for each: other tiles on sm_90a, the same bits."""
    g = torch.Generator(device="cuda").manual_seed(5)
    def draw(*shape):
        return torch.randn(*shape, generator=g, device="cuda")
    x, of = draw(8, 2048).to(torch.bfloat16), weights_of(draw, form, torch.bfloat16, 128, 1536, 2048)
    counts = (torch.arange(128, device="cuda") % 16 == 3).int()
    outs, kernels = [], set()
    for copies in (1, 4, 128):
        offsets = torch.zeros(129, dtype=torch.int32, device="cuda")
        offsets[1:] = torch.cumsum(counts * copies, 0)
        call = {"x": x.repeat_interleave(copies, 0), **of, "offsets": offsets, "out": torch.zeros(8 * copies, 1536, dtype=torch.bfloat16, device="cuda")}
        kernels.add(str(_core.picked_kernel("grouped_gemm", CAPABILITY, **call)))
        ops.grouped_gemm(**call)
        outs.append(call["out"].view(torch.int16)[::copies])
    assert all(torch.equal(outs[0], o) for o in outs) and (CAPABILITY != 90 or len(kernels) == 3)


def test_q4_0_is_rounded_once():
    """Rows of the identity bring out what the tensor core saw: code less 8 times scale, of all eleven bits, rounded to bf16."""
    g = torch.Generator(device="cuda").manual_seed(8)
    N, K = 200, 256
    blocks = blocks_of(torch.randn(2, N, K, generator=g, device="cuda"))
    scale, codes = blocks[:, :2].contiguous().view(torch.float16).float(), blocks[:, 2:].int()
    want = (torch.cat([codes & 15, codes >> 4], 1) - 8) * scale
    x, out = torch.eye(K, device="cuda", dtype=torch.bfloat16).repeat(2, 1), torch.zeros(2 * K, N, device="cuda", dtype=torch.bfloat16)
    call = {"x": x, "w": vivace.view(blocks.reshape(2, N, -1), dtype="q4_0", shape=(2, N, K)), "offsets": torch.tensor([0, K, 2 * K], dtype=torch.int32, device="cuda"), "out": out}
    assert CAPABILITY != 90 or "GroupedWgmma" in str(_core.picked_kernel("grouped_gemm", CAPABILITY, **call))
    ops.grouped_gemm(**call)
    assert torch.equal(out.reshape(2, K, N).transpose(1, 2).reshape(-1, 32), want.to(torch.bfloat16))
