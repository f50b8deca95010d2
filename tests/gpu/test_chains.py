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

# T, N, K, valid rows. What it meets on 132 multiprocessors: tiles shared along rows (x), along tokens (w) and both, K cut over a
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
    with device.Capture() as graph:
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
