"""What follows the sums of a product, known when the kernel is made or decided at run time: the same bits, and every row is written. The second serves
a row of `gate` a token, f32 outputs and columns that no access of 16 bytes takes, in tiles of every width. Needs --device cuda."""
import re

import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from vivace import _core, ops  # noqa: E402

CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
K = 128
SIZES = [(1000, 1152), (513, 4304), (900, 2304), (968, 2304), (1000, 2050), (1025, 1000), (1025, 1024), (1025, 2048), (2000, 1000), (2000, 1024), (2000, 1152), (801, 3000), (1200, 2560)]


FEW = [SIZES[0], SIZES[3], *SIZES[-2:]]  # tiles of 144, 176 and 208 tokens


def drawn(T, N, dtype=torch.bfloat16, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(T, N, generator=g, device="cuda").to(dtype)


def blank(T, N, dtype=torch.bfloat16):
    return torch.full((T, N), float("nan"), dtype=dtype, device="cuda")


def same(a, b, what):
    kind = {2: torch.int16, 4: torch.int32}[a.element_size()]
    wrong = a.contiguous().view(kind) != b.contiguous().view(kind)
    assert not wrong.any(), f"{what}: {int(wrong.sum())} of {wrong.numel()} elements differ, rows {wrong.any(1).nonzero()[:6].flatten().tolist()} ..."


def width(T, N):
    """Tokens of the tile of a product with a row of gate a token, if it is one of gemm_wgmma."""
    x, w, full = torch.empty(T, K, dtype=torch.bfloat16, device="cuda"), torch.empty(N, K, dtype=torch.bfloat16, device="cuda"), blank(T, N)
    kernel = _core.picked_kernel("gemm", CAPABILITY, x=x, w=w, gate=full, out=torch.empty_like(full))
    found = re.search(r"gemm_wgmma<.*GemmWgmma\{\d+, (\d+),", kernel)
    return int(found[1]) if found else 0


def sizes():
    """SIZES, and one for each width of tile that none of them has."""
    seen = {width(T, N): (T, N) for T, N in reversed(SIZES)}
    for T in (100, 150, 200, 300, 400, 513, 700, 900, 1100, 1500, 2000):
        for N in (264, 520, 1024, 1544, 2048, 2304, 3000, 4304):
            seen.setdefault(width(T, N), (T, N))
    return [*SIZES, *(size for size in seen.values() if size not in SIZES)]


CUT = [(968, 1152, 4304), (576, 1024, 4096), (300, 264, 8192), (1000, 1000, 4104)]  # K in two parts, which a cluster or a block adds up


@pytest.mark.parametrize("T, N, K, dtype", [(*size, K, torch.bfloat16) for size in sizes()] + [(*size, K, t) for size in FEW for t in (torch.float16, torch.float8_e4m3fn)] + [(*size, torch.bfloat16) for size in CUT])
def test_bits_are_those_of_one_gate(T, N, K, dtype):
    x, w, out = drawn(T, K, dtype, 1), drawn(N, K, dtype, 2), torch.float16 if dtype == torch.float16 else torch.bfloat16
    gate, residual = drawn(1, N, out, 3), drawn(T, N, out, 4)
    for more in ({}, {"residual": residual}):
        one, each = blank(T, N, out), blank(T, N, out)
        ops.gemm(x=x, w=w, gate=gate, out=one, **more)
        ops.gemm(x=x, w=w, gate=gate.expand(T, N).contiguous(), out=each, **more)
        same(each, one, f"a row of gate a token{' and a residual' if more else ''}")


@pytest.mark.parametrize("T, N", sizes())
def test_bits_are_those_of_whole_accesses(T, N):
    x, w, bias = drawn(T, K, seed=1), drawn(N + N % 2, K, seed=2), drawn(1, N, seed=3)[0]
    plain, wide = blank(T, N), blank(T, N, torch.float32)
    ops.gemm(x=x, w=w[:N], bias=bias, epilogue="silu", out=plain)
    ops.gemm(x=x, w=w[:N], bias=bias, epilogue="silu", out=wide)
    same(wide.to(torch.bfloat16), plain, "f32 outputs")
    fewer = blank(T, N - 1)
    ops.gemm(x=x, w=w[: N - 1], bias=bias[:-1], epilogue="silu", out=fewer)
    same(fewer, plain[:, :-1], "columns of odd number")


@pytest.mark.parametrize("T, N", FEW)
def test_rows_of_f32_are_those_of_fewer(T, N):
    """tf32: all outputs have 32 bits. Of 100 tokens no tile has more than 128, and rows of one class have the same bits."""
    x, w, out = drawn(T, K, torch.float32, 1), drawn(N, K, torch.float32, 2), blank(T, N, torch.float32)
    ops.gemm(x=x, w=w, tf32=True, out=out)
    for first in {*range(0, T - 100, 100), T - 100}:
        part = blank(100, N, torch.float32)
        ops.gemm(x=x[first : first + 100], w=w, tf32=True, out=part)
        same(out[first : first + 100], part, f"rows from {first} on")


@pytest.mark.parametrize("T, N", [(1000, 1026), (513, 2154), (968, 1152), (2000, 514)])
def test_gated_columns_of_odd_number(T, N):
    x, w, bias = drawn(T, K, seed=1), drawn(2 * N, K, seed=2), drawn(1, 2 * N, seed=3)[0]
    plain, fewer = blank(T, N), blank(T, N - 1)
    ops.gated_gemm(x=x, w=w, bias=bias, act="silu", out=plain)
    ops.gated_gemm(x=x, w=w[: 2 * N - 2], bias=bias[: 2 * N - 2], act="silu", out=fewer)
    same(fewer, plain[:, :-1], "columns of odd number")
