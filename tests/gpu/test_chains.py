"""Products of clusters in long chains: a block that ends while another is still on its way to its barriers or its memory
is a launch failure or a wrong sum, now and then, and only where launches follow each other. Needs --device cuda."""
import os

import pytest

from tests.op_data import device

if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

import torch  # noqa: E402

from vivace import ops  # noqa: E402

LENGTH, REPLAYS = 96, int(os.environ.get("VIVACE_CHAINS", "150"))

# T, N, K, valid rows. What it meets on 132 SMs: tiles shared along rows (x), along tokens (w) and both, K cut over a
# cluster with sums sent one by one or by the engine, one wave, several, tiles without a valid row, an N that fills no tile, outputs that leave beside the next tile's products.
SHAPES = {
    "x2": (576, 4096, 4096, None), "x4": (384, 2048, 2048, None), "w4": (512, 3456, 1152, None), "x2w2": (512, 1152, 1152, None), "x2w2, edge": (65, 1160, 1152, None), "w2": (256, 8192, 1024, None),
    "x2 in waves": (968, 8192, 1024, None), "x2w2, rows": (512, 1152, 1152, 70), "x2 in waves, rows": (968, 8192, 1024, 300), "cut, w2": (256, 1152, 4304, None),
    "cut, x2w2": (576, 1024, 4096, None), "cut, x2w2, rows": (576, 1024, 4096, 130), "cut in 4": (50, 1024, 2048, None), "cut in 4, rows": (64, 1024, 4096, 3), "cut in 8": (1, 1024, 2048, None), "cut, N odd": (60, 1001, 2048, None),
    "cut, x2": (968, 256, 4096, None), "x2w2, long": (576, 2048, 16384, None), "x2, long": (576, 16384, 2048, None),
    "posted": (3000, 4096, 1024, None), "posted, rows": (3000, 4096, 1024, 1000),
}


class Product:
    """A product with its operands and outputs in turns, so that launches of a chain do not write where others do."""

    def __init__(self, T, N, K, valid):
        g = torch.Generator(device=device.NAME).manual_seed(T * N + K)
        self.x, self.w = (torch.randn(n, K, generator=g, device=device.NAME, dtype=torch.bfloat16) for n in (T, N))
        self.out = torch.zeros(4, T, N, device=device.NAME, dtype=torch.bfloat16)
        self.more = {} if valid is None else {"rows": torch.tensor([valid], dtype=torch.int32, device=device.NAME)}
        valid = T if valid is None else valid
        self.run(0)
        torch.cuda.synchronize()
        self.first = self.out[0].clone()
        x, w = self.x[:valid].double(), self.w.double().T
        want, size = x @ w, x.abs() @ w.abs()
        assert ((self.first[:valid].double() - want).abs() <= 2.0**-8 * want.abs() + (K / 16 + 16) * 2.0**-24 * size).all()  # the output's rounding, and a sum's
        assert not self.first[valid:].any()

    def run(self, turn):
        ops.gemm(x=self.x, w=self.w, out=self.out[turn % 4], **self.more)

    def check(self):
        assert torch.equal(self.out, self.first.expand_as(self.out)), "a launch of the chain has other bits than the first"


def chain(products):
    with device.Capture() as graph, ops.constant_weights():  # launches overlap, as in a model's step
        for turn in range(LENGTH):
            products[turn % len(products)].run(turn // len(products))
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    for p in products:
        p.check()


@pytest.mark.parametrize("name", SHAPES)
def test_one_product_after_the_other(name):
    chain([Product(*SHAPES[name])])


def test_products_in_turns():
    chain([Product(*shape) for shape in SHAPES.values()])


@pytest.mark.parametrize("hidden, qkv, mlp", [(1024, 4096, 3072), (2048, 3072, 8192), (576, 960, 1536)])
@pytest.mark.parametrize("T", [1, 8, 16, 32, 64])
def test_norms_behind_products(T, hidden, qkv, mlp):
    """A decoder's products in a chain, each of which takes what the one before left for its norm: the bits of their parts, launch by launch."""
    g = torch.Generator(device=device.NAME).manual_seed(T)
    draw = lambda *shape, size=1.0: (torch.randn(*shape, generator=g, device=device.NAME) * size).to(torch.bfloat16)  # noqa: E731
    w = {"qkv": draw(qkv, hidden, size=hidden**-0.5), "o": draw(hidden, hidden, size=hidden**-0.5), "gate_up": draw(2 * mlp, hidden, size=hidden**-0.5), "down": draw(hidden, mlp, size=mlp**-0.5)}
    norms = [draw(hidden), draw(hidden)]
    start, rows = draw(T, hidden), torch.tensor([max(T - 1, 1)], dtype=torch.int32, device=device.NAME)
    h, scaled, both, inner = (torch.zeros(T, n, dtype=torch.bfloat16, device=device.NAME) for n in (hidden, hidden, qkv, mlp))
    squares, factor = torch.zeros(T, hidden // 8, device=device.NAME), torch.zeros(T, device=device.NAME)
    given = {"scaled": scaled, "squares": squares, "rows": rows}

    def onto(apart, x, matrix, weight):
        if apart:
            ops.gemm(x=x, w=matrix, residual=h, out=h, rows=rows)
            ops.rms_rows(x=h, weight=weight, **given)
        else:
            ops.gemm_rms_rows(x=x, w=matrix, residual=h, out=h, weight=weight, **given)

    def behind(apart, matrix, out, gated):
        if apart:
            ops.rms_scale(squares=squares, row_scale=factor, columns=hidden, rows=rows)
            ops.gated_gemm(x=scaled, x_row_scale=factor, w=matrix, out=out, act="silu", rows=rows) if gated else ops.gemm(x=scaled, x_row_scale=factor, w=matrix, out=out, rows=rows)
        else:
            ops.rms_gemm(x=scaled, squares=squares, row_scale=factor, w=matrix, out=out, gated=gated, epilogue="silu" if gated else "none", rows=rows)

    def layers(apart):
        h.copy_(start)
        ops.rms_rows(x=h, weight=norms[0], **given)
        for _ in range(LENGTH // 16):
            behind(apart, w["qkv"], both, False)
            onto(apart, both[:, :hidden], w["o"], norms[1])
            behind(apart, w["gate_up"], inner, True)
            onto(apart, inner, w["down"], norms[0])

    layers(True)
    want = [t.clone() for t in (h, scaled, squares, both, inner)]
    layers(False)
    with device.Capture() as graph, ops.constant_weights():
        layers(False)
    for _ in range(REPLAYS // 10):
        graph.replay()
        for got, t in zip((h, scaled, squares, both, inner), want):
            assert torch.equal(got, t)
