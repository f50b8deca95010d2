"""gated_delta_heads' one kernel gives the bits of gated_delta and gate_heads, one after the other, and leaves their state."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from vivace import _core, ops  # noqa: E402
from vivace.errors import UnsupportedError  # noqa: E402

CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
# Tokens of each sequence, key and value heads, D, Dv: one token, several, sequences of different length, more than a block takes at once,
# heads that the one kernel does not serve, a prompt.
SHAPES = [([1], 16, 32, 128, 128), ([1], 16, 48, 128, 128), ([5], 2, 4, 128, 128), ([1, 3, 0, 2], 2, 2, 96, 128), ([40, 1], 1, 3, 128, 128), ([1, 1, 1, 1, 1, 1, 1, 1], 16, 32, 128, 128),
          ([2], 2, 2, 64, 128), ([2], 2, 2, 128, 64), ([150], 1, 2, 128, 128)]


@pytest.mark.parametrize("counts, Hk, Hv, D, Dv", SHAPES)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bits_of_the_two(counts, Hk, Hv, D, Dv, frozen, dtype):
    T, N = sum(counts), len(counts)
    g = torch.Generator(device="cuda").manual_seed(T * Hv + D)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda").to(dtype)  # noqa: E731
    ints = lambda values: torch.tensor(values, dtype=torch.int32, device="cuda")  # noqa: E731
    sums = [sum(counts[:i]) for i in range(N + 1)]
    inputs = {"q": draw(T, Hk, D), "k": draw(T, Hk, D), "v": draw(T, Hv, Dv), "a": draw(T, Hv), "b": draw(T, Hv), "rate": torch.rand(Hv, generator=g, device="cuda"), "bias": draw(Hv),
              "offsets": ints(sums), "slot": ints(list(range(N))[::-1]), "fresh": ints([i % 2 for i in range(N)])}
    gate, weight = draw(T, Hv, Dv), draw(Dv)
    state = torch.randn(N, Hv, D, Dv, generator=g, device="cuda")
    results = []
    for fused in (False, True, True):
        out, kept = torch.full((T, Hv, Dv), 7.0, dtype=dtype, device="cuda"), state.clone()
        call = inputs | {"state": kept, "out": out, "normalize": True, "frozen": frozen}
        if fused:
            call |= {"gate": gate, "weight": weight, "act": "silu"}
            if CAPABILITY == 90:
                serves = True
                try:
                    _core.picked_kernel("gated_delta_heads", CAPABILITY, **call)
                except UnsupportedError:
                    serves = False
                chunks = dtype == torch.bfloat16 and T >= 32 * N
                assert serves == (64 < D <= 128 and Dv == 128 and not chunks), "the one kernel serves other shapes than this test expects"
            ops.gated_delta_heads(**call)
        else:
            ops.gated_delta(**call)
            ops.gate_heads(x=out, gate=gate, weight=weight, out=out, act="silu")
        results.append((out, kept))
    for out, kept in results[1:]:
        assert torch.equal(out.view(torch.int16), results[0][0].view(torch.int16))
        assert torch.equal(kept.view(torch.int32), results[0][1].view(torch.int32))
    assert not frozen or torch.equal(results[0][1], state)
