"""qkv_gemm's one kernel gives the bits of gemm and qkv_rope, one after the other."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from vivace import _core, ops  # noqa: E402
from vivace.errors import UnsupportedError  # noqa: E402

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
# T, Hq, Hkv, D, K, eight bits, layout of the caches (none: k and v leave as rows), fused on sm_90a: K cut in four, two and one, K off
# whole steps, heads of 64 to 256; heads that turn in part do not count as whole.
SHAPES = [(50, 8, 1, 256, 1024, 0, "nhd", 1), (50, 8, 1, 256, 1024, 1, "nhd", 1), (1, 8, 1, 256, 1024, 0, "nhd", 1), (17, 8, 1, 256, 2048, 0, "hnd", 1), (64, 32, 8, 128, 512, 0, "hnd", 1),
          (8, 32, 8, 64, 200, 0, "nhd", 1), (3, 32, 8, 128, 4096, 0, "nhd", 1), (33, 32, 8, 128, 4096, 1, "nhd", 1), (24, 16, 4, 64, 264, 0, None, 1), (70, 8, 1, 256, 1024, 0, "nhd", 0), (5, 4, 2, 80, 256, 0, "nhd", 0)]


@pytest.mark.parametrize("T, Hq, Hkv, D, K, eight, layout, fused", SHAPES)
@pytest.mark.parametrize("kind", ["normal", "huge"])
def test_bits_of_the_two(T, Hq, Hkv, D, K, eight, layout, fused, kind):
    g = torch.Generator(device="cuda").manual_seed(T * Hq + K)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    N, B, L = (Hq + 2 * Hkv) * D, 3, 2 * T + 3
    x, w = draw(T, K).to(E4M3 if eight else BF16), (draw(N, K) * K**-0.5).to(E4M3 if eight else BF16)
    if kind == "huge" and not eight:
        x[T // 2, ::7] = 1e30
        x[T - 1] = float("nan")
    product = {"x": x, "w": w, "bias": draw(N).to(BF16)} | ({"x_scale": draw(1).abs() + 0.5, "w_row_scale": draw(N).abs() + 0.5} if eight else {})
    order = torch.randperm(B * L, generator=g, device="cuda")[:T].to(torch.int32)
    valid = torch.tensor([max(T - 2, 1)], device="cuda", dtype=torch.int32)
    where = {"pos": order % L, "slot": order // L if layout else None, "inv_freq": 10000.0 ** -(torch.arange(D // 2, device="cuda") / (D // 2)), "rows": valid}
    if layout:
        where["pos"][0] = L + 5  # a place that is not there
        where["layout"] = layout

    def outputs():
        rows = {"q": torch.full((T, Hq, D), 7.0, dtype=BF16, device="cuda")}
        shape = (T, Hkv, D) if not layout else (B, L, Hkv, D) if layout == "nhd" else (B, Hkv, L, D)
        return rows | {f"{part}_{'cache' if layout else 'out'}": torch.full(shape, 3.0, dtype=BF16, device="cuda") for part in "kv"}

    where = {k: v for k, v in where.items() if v is not None}
    two, qkv = outputs(), torch.empty(T, N, dtype=BF16, device="cuda")
    ops.gemm(out=qkv, rows=valid, **product)
    ops.qkv_rope(qkv=qkv, attn_factor=1.25, **two, **where)
    if CAPABILITY == 90:
        try:
            _core.picked_kernel("qkv_gemm", CAPABILITY, qkv=qkv, **product, **outputs(), **where)
            took = True
        except UnsupportedError:
            took = False
        assert took == bool(fused), "the one kernel serves other shapes than this test expects"
    for _ in range(3):
        one = outputs()
        ops.qkv_gemm(qkv=torch.empty_like(qkv), attn_factor=1.25, **product, **one, **where)
        for port in one:
            assert torch.equal(one[port].view(torch.int16), two[port].view(torch.int16)), port
