"""rms_gemm's and gemm_rms_rows' one kernel give the bits of their parts, one after the other."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from vivace import _core, ops  # noqa: E402
from vivace.errors import UnsupportedError  # noqa: E402

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]


def draws(seed):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=g, device="cuda")


def fused(op, **call):
    try:
        _core.picked_kernel(op, CAPABILITY, **call)
    except UnsupportedError:
        return False
    return True


def rows_of(draw, T, K, dtype):
    """Rows, what a product takes of them, their sums of squares."""
    h = draw(T, K).to(BF16) * 3
    if T > 2:
        h[1] = 0
        h[2, ::3] = float("nan")
    scaled, squares = torch.empty_like(h), torch.empty(T, -(-K // 8), device="cuda")
    ops.rms_rows(x=h, scale=draw(1, K).to(BF16) * 0.1, scaled=scaled, squares=squares)
    return scaled.to(dtype), squares


# T, M, K, eight bits (2: of out too), gated, fused on sm_90a: K cut in one, two, four, eight; K off whole steps and sums off whole fours
@pytest.mark.parametrize("T, M, K, eight, gated, one", [(50, 8192, 1024, 0, 1, 1), (50, 2560, 1024, 0, 0, 1), (64, 1024, 4096, 0, 0, 1), (1, 2560, 1024, 0, 0, 1), (17, 6144, 2048, 0, 1, 1),
                                                        (33, 2048, 1024, 1, 0, 1), (64, 4096, 2048, 1, 1, 1), (1, 6144, 4096, 0, 0, 1), (16, 24576, 4096, 0, 1, 1), (32, 4096, 1024, 0, 0, 1), (2, 1920, 576, 0, 1, 1), (9, 520, 264, 0, 0, 1), (5, 512, 400, 1, 0, 1), (70, 512, 256, 0, 0, 0),
                                                        (50, 2560, 1024, 1, 0, 1), (50, 8192, 1024, 2, 1, 1), (7, 6144, 2048, 2, 1, 1), (33, 528, 512, 2, 0, 1)])
def test_rms_gemm(T, M, K, eight, gated, one):
    draw, dtype = draws(T + M), E4M3 if eight else BF16
    x, squares = rows_of(draw, T, K, dtype)
    call = {"x": x, "squares": squares, "w": (draw(M, K) * K**-0.5).to(dtype), "bias": draw(M), "rows": torch.tensor([max(T - 1, 1)], device="cuda", dtype=torch.int32)}
    call |= {"x_scale": draw(1).abs() + 0.5, "w_row_scale": draw(M).abs() + 0.5} if eight else {}
    call |= {"out_scale": torch.full((1,), 0.01, device="cuda")} if eight == 2 else {}
    first, second = (torch.full((T, M // (2 if gated else 1)), 7.0, device="cuda").to(E4M3 if eight == 2 else BF16) for _ in range(2))
    scale = torch.zeros(T, device="cuda")
    ops.rms_scale(squares=squares, row_scale=scale, columns=K, eps=1e-5, rows=call["rows"])
    parts = {k: v for k, v in call.items() if k != "squares"} | {"x_row_scale": scale, "out": first}
    ops.gated_gemm(act="gelu_tanh", **parts) if gated else ops.gemm(epilogue="silu", **parts)
    call |= {"row_scale": torch.empty_like(scale), "out": second, "eps": 1e-5, "gated": bool(gated), "epilogue": "gelu_tanh" if gated else "silu"}
    assert CAPABILITY != 90 or fused("rms_gemm", **call) == bool(one)
    for _ in range(3):
        ops.rms_gemm(**call)
        assert torch.equal(first.view(torch.uint8), second.view(torch.uint8))


# T, N, K, eight bits (1: of the operands, 2: of the rows that leave), gate, type of a weight (else a scale), fused on sm_90a: K whole, cut in two, four, eight; N of eights that are no sixteens, and of no eights
@pytest.mark.parametrize("T, N, K, eight, gate, weight, one", [(50, 1024, 2048, 0, 1, None, 1), (50, 1024, 4096, 0, 1, None, 1), (64, 1024, 4096, 1, 1, None, 1), (33, 1040, 4096, 0, 0, None, 1), (40, 528, 2048, 1, 0, None, 1),
                                                               (16, 1024, 4096, 0, 1, None, 1), (50, 2560, 1024, 0, 0, None, 1), (90, 512, 256, 0, 1, None, 0), (1, 4096, 4096, 0, 0, BF16, 1), (1, 4096, 12288, 0, 0, BF16, 1),
                                                               (16, 4096, 12288, 0, 0, torch.float32, 1), (32, 4096, 4096, 0, 0, BF16, 1), (8, 1024, 3072, 0, 0, BF16, 1), (32, 1024, 3072, 0, 0, BF16, 1), (4, 2048, 8192, 0, 0, BF16, 1),
                                                               (48, 2048, 2048, 0, 0, BF16, 1), (6, 576, 1536, 0, 0, torch.float32, 1), (64, 8200, 512, 0, 0, BF16, 1), (3, 8200, 512, 0, 0, BF16, 1), (5, 1028, 512, 0, 0, BF16, 0),
                                                               (5, 1024, 512, 0, 0, torch.float16, 0), (50, 1024, 2048, 3, 1, None, 1), (50, 1024, 4096, 3, 1, None, 1), (16, 1024, 4096, 3, 1, None, 1),
                                                               (1, 4096, 4096, 2, 0, torch.float32, 1), (64, 8200, 512, 2, 0, BF16, 1), (33, 1040, 4096, 3, 0, None, 1), (90, 512, 256, 3, 1, None, 0), (5, 1028, 512, 2, 0, BF16, 0)])
def test_gemm_rms_rows(T, N, K, eight, gate, weight, one):
    draw, dtype = draws(T * N), E4M3 if eight & 1 else BF16
    call = {"x": draw(T, K).to(dtype), "w": (draw(N, K) * K**-0.5).to(dtype), "rows": torch.tensor([max(T - 3, 1)], device="cuda", dtype=torch.int32)}
    call |= ({"gate": draw(1, N).to(BF16)} if gate else {}) | ({"x_scale": draw(1).abs() + 0.5, "w_row_scale": draw(N).abs() + 0.5} if eight & 1 else {})
    hidden = draw(T, N).to(BF16)
    hidden[T // 4, 5] = float("inf")
    factor = {"scale": draw(1, N).to(BF16) * 0.1} if weight is None else {"weight": draw(N).to(weight)}
    factor |= {"scaled_scale": torch.full((1,), 0.03, device="cuda")} if eight & 2 else {}

    def outputs():
        return {"out": hidden.clone(), "scaled": torch.full((T, N), 7.0, device="cuda").to(E4M3 if eight & 2 else BF16), "squares": torch.full((T, -(-N // 8)), 7.0, device="cuda")}

    want = outputs()
    ops.gemm(residual=want["out"], out=want["out"], **call)
    ops.rms_rows(x=want["out"], **factor, scaled=want["scaled"], squares=want["squares"], rows=call["rows"])
    for _ in range(3):
        got = outputs()
        assert CAPABILITY != 90 or fused("gemm_rms_rows", residual=got["out"], **factor, **got, **call) == bool(one)
        ops.gemm_rms_rows(residual=got["out"], **factor, **got, **call)
        for port, t in got.items():
            assert torch.equal(t.view(torch.uint8), want[port].view(torch.uint8)), port
