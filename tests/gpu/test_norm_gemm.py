"""norm_gemm's one kernel gives the bits of norm and the product, one after the other."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from vivace import _core, ops  # noqa: E402
from vivace.errors import UnsupportedError  # noqa: E402

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
# T, N, K, eight bits, gated, adaptive: rows of every tactic of norm, cuts of K in one, two, four, eight, K off whole steps; more
# tokens than the one kernel takes.
SHAPES = [(1, 6144, 4096, 0, 0, 0), (1, 6144, 4096, 1, 0, 0), (1, 1024, 8192, 1, 0, 1), (1, 1024, 8192, 1, 0, 0), (1, 264, 2064, 1, 0, 1), (2, 6144, 4096, 1, 0, 0), (2, 1024, 8192, 1, 1, 1), (2, 2560, 2560, 0, 0, 0), (2, 136, 1040, 1, 0, 0), (1, 2560, 1024, 0, 0, 1), (2, 960, 576, 0, 1, 0), (2, 4096, 4096, 0, 0, 0), (1, 8192, 1024, 1, 1, 0), (2, 520, 488, 0, 0, 0), (2, 8192, 1024, 0, 1, 0),
          (2, 1024, 1024, 0, 0, 1), (2, 8192, 1024, 0, 1, 1), (1, 2560, 1024, 1, 0, 1), (2, 2560, 2048, 0, 0, 0), (1, 1024, 8192, 0, 0, 0), (1, 24576, 4096, 1, 1, 0), (2, 1024, 8192, 0, 0, 0),
          (1, 512, 264, 0, 0, 0), (1, 16384, 2048, 0, 1, 0), (1, 960, 576, 1, 0, 0), (50, 8192, 1024, 0, 1, 1)]


@pytest.mark.parametrize("T, N, K, eight, gated, adaptive", SHAPES)
@pytest.mark.parametrize("kind", ["normal", "huge", "zero"])
@pytest.mark.parametrize("layer", [False, True])
def test_bits_of_the_two(T, N, K, eight, gated, adaptive, layer, kind):
    g = torch.Generator(device="cuda").manual_seed(T * N + K)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    x = draw(T, K) * {"normal": 1.0, "huge": 1e18, "zero": 0.0}[kind]
    x = x.to(BF16)
    if kind == "huge" and T > 1:
        x[1] = float("nan")
    w = (draw(N, K) * K**-0.5).to(E4M3 if eight else BF16)
    normed, one, two = torch.empty(T, K, dtype=w.dtype, device="cuda"), *(torch.full((T, N // (2 if gated else 1)), 7.0, dtype=BF16, device="cuda") for _ in range(2))
    rows = {"weight": (draw(K) * 0.1).to(BF16)}
    if adaptive:
        rows |= {"scale": draw(3, K).to(BF16), "shift": draw(3, K).to(BF16), "ada_row": torch.arange(T, device="cuda", dtype=torch.int32) % 4 - (T > 1) * 1}
    norm, bias = ({"kind": "layer"}, {"bias": (draw(K) * 0.1).to(BF16)}) if layer else ({}, {})
    norm_scale = torch.tensor([0.013], device="cuda") if eight else None
    quant = {"out_scale": norm_scale} if eight else {}
    valid = torch.tensor([max(T - 1, 1)], device="cuda", dtype=torch.int32)
    ops.norm(x=x, out=normed, rows=valid, weight_plus_one=True, eps=1e-5, **norm, **bias, **rows, **quant)
    product = {"x": normed, "w": w, "out": two, "rows": valid} | ({"x_scale": norm_scale} if eight else {})
    if gated:
        ops.gated_gemm(act="silu", **product)
    else:
        ops.gemm(epilogue="relu", **product)
    call = {"x": x, "w": w, "normed": torch.empty_like(normed), "out": one, "rows": valid, "weight_plus_one": True, "eps": 1e-5, "gated": bool(gated), "epilogue": "silu" if gated else "relu"}
    call |= norm | {f"norm_{k}": v for k, v in bias.items()} | rows | ({"normed_scale": norm_scale} if eight else {})
    if CAPABILITY == 90:
        fused = True
        try:
            _core.picked_kernel("norm_gemm", CAPABILITY, **call)
        except UnsupportedError:
            fused = False
        assert fused == (T <= 2 and (eight or K <= 2560)), "the one kernel serves other shapes than this test expects"
    for _ in range(3):
        ops.norm_gemm(**call)
        assert torch.equal(one.view(torch.int16), two.view(torch.int16))
