"""The one kernel of rms_gemm, of rms_gemm_rope and of gemm_rms_rows gives the bits of their parts, one after the other."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from tests.gpu.memory import TORCH  # noqa: E402
from tests.gpu.rms_gemm_rows import GEMM_RMS_ROWS, RMS_GEMM, RMS_GEMM_ROPE  # noqa: E402
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


@pytest.mark.parametrize("T, M, K, eight, gated, one", RMS_GEMM)
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


@pytest.mark.parametrize("T, Hq, Hkv, D, K, eight, one", RMS_GEMM_ROPE)
@pytest.mark.parametrize("slots", [0, 3])
def test_rms_gemm_rope(T, Hq, Hkv, D, K, eight, one, slots):
    """Also where a place is not there, and where angles are what rope makes of ones and zeros: the bits of qkv_rope's own."""
    draw, dtype = draws(T + K + D), E4M3 if eight else BF16
    x, squares = rows_of(draw, T, K, dtype)
    M, B, L = (Hq + 2 * Hkv) * D, max(slots, 1), 2 * T + 90
    whole = lambda values: torch.as_tensor(values, dtype=torch.int32, device="cuda")  # noqa: E731
    rows, pos = whole([max(T - 1, 1)]), whole([L if t == 1 else L - 1 - t for t in range(T)])
    product = {"x": x, "squares": squares, "w": (draw(M, K) * K**-0.5).to(dtype), "bias": draw(M), "rows": rows, "row_scale": torch.empty(T, device="cuda"), "eps": 1e-5}
    product |= {"x_scale": draw(1).abs() + 0.5, "w_row_scale": draw(M).abs() + 0.5} if eight else {}
    inv_freq = 1e4 ** -(torch.arange(D // 2, device="cuda") / (D // 2))
    angles, unturned = torch.empty(T, 2, D // 2, device="cuda"), torch.cat([torch.ones(T, 1, D // 2), torch.zeros(T, 1, D // 2)], -1).cuda()
    ops.rope(x=unturned, inv_freq=inv_freq, pos=pos, out=angles.view(T, 1, D))
    where = {"pos": pos, "slot": whole([t % (slots + 1) for t in range(T)])} if slots else {"pos": pos}
    qkv = torch.zeros(T, M, dtype=BF16, device="cuda")

    def outputs():
        return {"q": torch.full((T, Hq, D), 7.0, dtype=BF16, device="cuda")} | {p: torch.full((B, L, Hkv, D), 3.0, dtype=BF16, device="cuda") for p in ("k_cache", "v_cache")}

    want, parts = outputs(), outputs()
    ops.rms_gemm(out=qkv, **product)
    ops.qkv_rope(qkv=qkv, inv_freq=inv_freq, rows=rows, **where, **want)
    ops.qkv_rope(qkv=qkv, angles=angles, rows=rows, **where, **parts)
    call = product | where | {"angles": angles, "qkv": torch.empty_like(qkv)}
    assert CAPABILITY != 90 or fused("rms_gemm_rope", **call, **outputs()) == bool(one)
    for _ in range(3):
        got = outputs()
        ops.rms_gemm_rope(**call, **got)
        for port, t in got.items():
            for other in (want, parts):
                assert torch.equal(t.view(torch.int16), other[port].view(torch.int16)), port


@pytest.mark.parametrize("T, N, K, eight, gate, weight, one", GEMM_RMS_ROWS)
def test_gemm_rms_rows(T, N, K, eight, gate, weight, one):
    draw, dtype = draws(T * N), E4M3 if eight & 1 else BF16
    call = {"x": draw(T, K).to(dtype), "w": (draw(N, K) * K**-0.5).to(dtype), "rows": torch.tensor([max(T - 3, 1)], device="cuda", dtype=torch.int32)}
    call |= ({"gate": draw(1, N).to(BF16)} if gate else {}) | ({"x_scale": draw(1).abs() + 0.5, "w_row_scale": draw(N).abs() + 0.5} if eight & 1 else {})
    hidden = draw(T, N).to(BF16)
    hidden[T // 4, 5] = float("inf")
    factor = {"scale": draw(1, N).to(BF16) * 0.1} if weight is None else {"weight": draw(N).to(TORCH[weight])}
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
