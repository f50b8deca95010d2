"""What rope_attention's calls that say `stable` may read before their dependency wait: places and the past, no rows. A predecessor that lets
the op start at once, sleeps, and then writes everything else; and the same with a promise that is not kept, which must be seen: else
nothing is read ahead, and the first test proves nothing."""
import numpy as np
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from tests.gpu.kernels import delayed_copy  # noqa: E402
from vivace import ops  # noqa: E402

if torch.cuda.get_device_capability()[0] < 9:
    pytest.skip("nothing is launched early before Hopper", allow_module_level=True)
DELAY = 200_000  # cycles, some 0.1 ms: a kernel that does not wait has long finished


def i32(*values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator(device="cuda").manual_seed(seed), device="cuda").bfloat16()


def late(pairs, issue):
    """What `issue` writes behind a predecessor that brings each (tensor, bytes that it holds in the end) late, poison until then: eager, then
    captured and replayed twice."""
    copy = delayed_copy([(to.view(torch.uint8).flatten(), right.view(torch.uint8).flatten()) for to, right in pairs])

    def poison():
        for to, _ in pairs:
            to.view(torch.uint8).fill_(0xFF)
        torch.cuda.synchronize()

    def whole():
        copy(DELAY)
        with ops.constant_weights():
            return issue()

    poison()
    results = [whole().clone()]
    with device.Capture() as graph:
        out = whole()
    for _ in range(2):
        poison()
        graph.replay()
        torch.cuda.synchronize()
        results.append(out.clone())
    return results


def step(T, Hkv, D, S, L, page):
    """A decode step of T tokens, its caches, and the call's tensors."""
    qkv, blocks = draw(4, T, (2 * Hkv + 2 * Hkv) * D), S * (L // page) if page else S
    cache = draw(5, 2, blocks, page or L, Hkv, D)
    given = {"q": torch.zeros(T, 2 * Hkv, D, dtype=torch.bfloat16, device="cuda"), "pos": torch.tensor([L - 1 - 37 * t for t in range(T)], dtype=torch.int32, device="cuda"),
             "slot": torch.tensor([(3 * t + 1) % S for t in range(T)], dtype=torch.int32, device="cuda"), "inv_freq": 1e4 ** -(torch.arange(D // 2, device="cuda") / (D // 2)), "rows": i32(T)}
    if page:
        given["page_table"] = torch.tensor(np.random.default_rng(1).permutation(blocks).reshape(S, -1), dtype=torch.int32, device="cuda")
    return given, qkv, cache


STEPS = pytest.mark.parametrize("shape", [(1, 8, 128, 1, 1024, 0), (1, 8, 128, 1, 1024, 64), (1, 3, 64, 1, 600, 0), (4, 8, 128, 4, 1024, 16), (4, 8, 128, 4, 512, 0), (16, 8, 128, 16, 300, 0)], ids=str)


@STEPS
def test_a_step_waits_for_its_rows(shape):
    given, qkv, cache = step(*shape)
    first, second = cache.clone(), cache.clone()
    want, out, rows = torch.empty_like(given["q"]), torch.empty_like(given["q"]), torch.empty_like(qkv)
    ops.rope_attention(qkv=qkv, k_cache=first[0], v_cache=first[1], out=want, **given)

    def issue():
        ops.rope_attention(qkv=rows, k_cache=second[0], v_cache=second[1], out=out, stable=True, **given)
        return out

    for got in late([(rows, qkv)], issue):
        assert torch.equal(got, want), f"{(got != want).sum()} of {got.numel()} values are others"
    assert torch.equal(first, second)


@STEPS
def test_a_step_notices_a_promise_that_is_not_kept(shape):
    given, qkv, cache = step(*shape)
    want, out, here = torch.empty_like(given["q"]), torch.empty_like(given["q"]), cache.clone()
    ops.rope_attention(qkv=qkv, k_cache=cache.clone()[0], v_cache=cache.clone()[1], out=want, **given)

    def issue():
        ops.rope_attention(qkv=qkv, k_cache=here[0], v_cache=here[1], out=out, stable=True, **given)
        return out

    for got in late([(here, cache)], issue):
        assert not torch.equal(got, want)


def test_without_a_promise_about_weights_nothing_is_read_ahead():
    """Calls that are ordered like any other end with the right keys although they say `stable`."""
    given, qkv, cache = step(1, 8, 128, 1, 1024, 0)
    want, out, here = torch.empty_like(given["q"]), torch.empty_like(given["q"]), torch.full_like(cache, float("nan"))
    right = cache.clone()
    ops.rope_attention(qkv=qkv, k_cache=cache[0], v_cache=cache[1], out=want, **given)
    torch.cuda.synchronize()
    delayed_copy([(here.view(torch.uint8).flatten(), right.view(torch.uint8).flatten())])(DELAY)
    ops.rope_attention(qkv=qkv, k_cache=here[0], v_cache=here[1], out=out, stable=True, **given)
    assert torch.equal(out, want)
