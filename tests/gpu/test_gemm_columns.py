"""gemm over weights that lie column after column, by every kernel that multiplies them: the bits of rows where TMA takes both, the
reference's bound elsewhere; and what arrays make of a row-major B. Needs --device cuda."""
import pytest

from tests.op_data import device

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import torch  # noqa: E402

from vivace import _core, array, ops  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]


def operands(T, N, K, dtype, gap=0):
    torch.manual_seed(N + K)
    x, wide = torch.randn(T, K, device="cuda").to(dtype), (torch.randn(K, N + gap, device="cuda") / K**0.5).to(dtype)
    return x, wide[:, :N].T


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("N, K", [(64, 64), (520, 1000), (1024, 4096), (2048, 2048), (4096, 4096), (1152, 4304), (12288, 1536)])
def test_bits_of_rows(N, K, dtype):
    """All classes and tiles, cut along K too, columns that lie apart."""
    for T in (1, 16, 33, 65, 256, 300, 968, 1100):
        x, w = operands(T, N, K, dtype, gap=8 * (T % 3))
        kernel = _core.picked_kernel("gemm", CAPABILITY, x=x, w=w, out=torch.empty(T, N, dtype=dtype, device="cuda"))
        assert "gemm_wgmma" in kernel if CAPABILITY == 90 else "gemm_tile" in kernel
        for more in ({}, {"bias": torch.randn(N, device="cuda"), "epilogue": "gelu_tanh", "residual": torch.randn(T, N, device="cuda").to(dtype)}):
            outs = [torch.full((T, N), 7, dtype=dtype, device="cuda") for _ in "ab"]
            for weight, out in zip((w, w.contiguous()), outs):
                ops.gemm(x=x, w=weight, out=out, **more)
            if CAPABILITY == 90:
                assert torch.equal(*outs), f"{T} tokens, {sorted(more)}: {(outs[0] != outs[1]).sum()} of {outs[0].numel()} values are others, {outs[0].isnan().sum()} of them none"
            else:
                torch.testing.assert_close(*outs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("T, N, K", [(1, 7, 1), (5, 33, 40), (64, 65, 129), (70, 72, 2100), (300, 1001, 515), (1100, 130, 1000)])
def test_odd_sizes(T, N, K, dtype):
    """Rows that TMA cannot take, and f32: against f64."""
    x, w = operands(T, N, K, dtype, gap=3)
    out = torch.full((T, N), 7, dtype=dtype, device="cuda")
    ops.gemm(x=x, w=w, out=out)
    torch.testing.assert_close(out.double(), x.double() @ w.double().T, rtol={BF16: 2.0**-8, F16: 2.0**-11, F32: 1e-5}[dtype], atol=1e-5)


def test_e4m3_out():
    x, w = operands(200, 256, 512, BF16)
    scale = torch.tensor([0.02], device="cuda")
    outs = [torch.zeros(200, 256, dtype=torch.float8_e4m3fn, device="cuda") for _ in "ab"]
    for weight, out in zip((w, w.contiguous()), outs):
        ops.gemm(x=x, w=weight, out=out, out_scale=scale)
    assert torch.equal(outs[0].view(torch.uint8), outs[1].view(torch.uint8))


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 100, 300])
def test_rows_that_are_not_there(rows):
    x, w = operands(300, 1024, 1024, BF16)
    x[rows:] = torch.nan
    outs = [torch.full((300, 1024), 7, dtype=BF16, device="cuda") for _ in "ab"]
    for weight, out in zip((w, w.contiguous()), outs):
        ops.gemm(x=x, w=weight, out=out, rows=torch.tensor([rows], dtype=torch.int32, device="cuda"))
    assert torch.equal(*outs) and (outs[0][rows:] == 7).all()


def test_arrays_copy_nothing():
    """A @ B of a row-major B takes memory for its result alone."""
    a, b = (array.from_dlpack(torch.randn(256, 256, device="cuda").to(BF16)) for _ in "ab")
    _ = a @ b
    before = array.pool_stats(0)["allocations"]
    got = a @ b
    assert array.pool_stats(0)["allocations"] == before + 1
    want = torch.from_dlpack(a).float() @ torch.from_dlpack(b).float()
    torch.testing.assert_close(torch.from_dlpack(got).float(), want, rtol=2e-2, atol=0.3)
