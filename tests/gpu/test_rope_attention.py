"""rope_attention's one kernel gives the bits of qkv_rope and attention, one after the other: out, lse and both caches."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from vivace import _core, ops  # noqa: E402
from vivace.errors import InvalidArgumentError, UnsupportedError  # noqa: E402

CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
# T, Hq, Hkv, D, slots, places, page (0: none), one kernel: every count of parts, tiles of 1 to 8 heads, one place and thousands.
SHAPES = [(1, 32, 8, 128, 1, 4096, 0, 1), (1, 16, 8, 128, 1, 1100, 0, 1), (1, 9, 3, 64, 1, 2048, 0, 1), (1, 4, 1, 256, 1, 1500, 0, 1), (4, 32, 8, 128, 8, 1024, 0, 1), (4, 16, 8, 128, 8, 512, 16, 1), (16, 32, 8, 128, 16, 300, 0, 1), (8, 32, 8, 128, 8, 1024, 0, 1),
          (5, 9, 3, 64, 8, 300, 0, 1), (4, 8, 1, 256, 4, 700, 64, 1), (32, 32, 8, 128, 32, 256, 0, 1), (3, 8, 1, 128, 32, 2000, 32, 1), (16, 8, 8, 64, 16, 130, 0, 1), (2, 8, 2, 80, 2, 400, 0, 1),
          (4, 16, 8, 128, 4, 700, 0, 1), (1, 8, 2, 64, 1, 9000, 0, 1), (1, 8, 2, 128, 1, 9000, 0, 0), (33, 8, 2, 128, 40, 100, 0, 0), (2, 8, 2, 128, 1, 300, 0, 0), (3, 12, 1, 64, 3, 200, 0, 0), (3, 8, 2, 40, 3, 100, 0, 0)]
NORMS = {"both": (torch.bfloat16, torch.bfloat16), "mixed": (torch.float32, torch.bfloat16), "key": (None, torch.bfloat16), "none": (None, None)}


def one_kernel(**call):
    try:
        _core.picked_kernel("rope_attention", CAPABILITY, **call)
    except UnsupportedError:
        return False
    return True


def setting(T, Hq, Hkv, D, S, places, page, *, norms="both", slot=None, pos=None, turned=None, kind=1.0, dtype=torch.bfloat16, layout="nhd"):
    """Arguments of the whole, caches apart, and a function that makes the caches."""
    g = torch.Generator(device="cuda").manual_seed(T * Hq + D + places)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    whole = lambda x: torch.as_tensor(x, dtype=torch.int32, device="cuda")  # noqa: E731
    pages = -(-places // page) if page else 0
    blocks, L = (S * pages + 2, page) if page else (S, places)
    given = {"qkv": (draw(T, (Hq + 2 * Hkv) * D) * kind).to(dtype), "slot": whole([(t * 3 + 1) % S for t in range(T)] if slot is None else slot), "q": torch.zeros(T, Hq, D, dtype=dtype, device="cuda"),
             "pos": whole([(places - 1 - 41 * t) % places for t in range(T)] if pos is None else pos), "rows": whole([max(T - 1, 1)])}
    R = D // 2 if turned is None else turned
    given |= {"inv_freq": 1e4 ** -(torch.arange(R, device="cuda") / R)} if R else {}
    given |= {name: (1 + 0.2 * draw(D)).to(t) for name, t in zip(("q_norm", "k_norm"), NORMS[norms]) if t}
    if page:
        given["page_table"] = whole(torch.randperm(S * pages, generator=torch.Generator().manual_seed(5)).reshape(S, pages).tolist())
    cache = draw(2, blocks, *((Hkv, L) if layout == "hnd" else (L, Hkv)), D).to(dtype)
    return given, cache


ROPE, ATTENTION = ("slot", "pos", "rows", "inv_freq", "q_norm", "k_norm", "page_table"), ("slot", "pos", "rows", "page_table", "sinks")


def bits_of_both(given, cache, rope=None, attention=None, layout="nhd"):
    rope, attention = rope or {}, attention or {}
    parts, one = cache.clone(), cache.clone()
    out = [torch.full_like(given["q"], 7) for _ in range(2)]
    lse = [torch.full(given["q"].shape[:2], 7.0, device="cuda") for _ in range(2)]
    ops.qkv_rope(qkv=given["qkv"], q=given["q"], k_cache=parts[0], v_cache=parts[1], layout=layout, **{k: given[k] for k in ROPE if k in given}, **rope)
    ops.attention(q=given["q"], k=parts[0], v=parts[1], out=out[0], lse=lse[0], layout=layout, **{k: given[k] for k in ATTENTION if k in given}, **attention)
    call = given | {"k_cache": one[0], "v_cache": one[1], "out": out[1], "lse": lse[1], "q": torch.zeros_like(given["q"]), "layout": layout} | rope | attention
    for _ in range(3):
        one.copy_(cache)
        ops.rope_attention(**call)
        for name, a, b in (("out", *out), ("lse", *lse), ("caches", parts, one)):
            assert torch.equal(a.view(torch.int16), b.view(torch.int16)), f"{name}: other bits, {(a.view(torch.int16) != b.view(torch.int16)).sum()} of {a.numel()}"
    return call


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [1.0, 60.0, 1e-6, 0.0])
@pytest.mark.parametrize("norms", NORMS)
def test_bits_of_the_two(shape, kind, norms):
    given, cache = setting(*shape[:-1], norms=norms, kind=kind)
    call = bits_of_both(given, cache, {"eps": 1e-5, "norm_plus_one": norms == "mixed"})
    assert CAPABILITY != 90 or one_kernel(**call) == bool(shape[-1]), "the one kernel serves other shapes than this test expects"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("turned", [0, 16, 40, 64])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_rotations_and_layouts(dtype, style, turned, layout):
    given, cache = setting(4, 8, 2, 128, 4, 600, 0, norms="none", turned=turned, dtype=dtype, layout=layout)
    given["sinks"] = torch.linspace(-2, 2, 8, device="cuda")
    bits_of_both(given, cache, {"style": style, "attn_factor": 1.3}, {"window": 150, "scale": 0.11}, layout)


@pytest.mark.parametrize("page", [0, 16, 128])
def test_places_that_do_not_exist(page):
    """Nobody's slot, no position, the first place, the last one, one behind it; a page that is not there; every place that is not yet written holds no number."""
    given, cache = setting(7, 8, 2, 128, 8, 512, page, slot=[0, -1, 2, 8, 4, 5, 6], pos=[0, 5, 511, 3, 512, -1, 130])
    if page:
        given["page_table"][6, 130 // page] = -1
    del given["rows"]
    if not page:
        cache[:, 0] = float("nan")
        cache[:, 2, 511:] = float("nan")
    bits_of_both(given, cache)


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("slot, pos", [([2] * 6, range(100, 106)), ([0, 1, 1, 1, 0, 3], [254, 255, 256, 257, 255, 0]), ([1, 1, 1, 1, 2, 2], [130, 129, 128, 127, 511, 400]), ([5] * 6, range(125, 131))])
def test_tokens_that_share_a_slot(page, slot, pos):
    """Drafts of one sequence, in order or not, over the edge of a block of keys: each sees those before it."""
    given, cache = setting(6, 16, 4, 128, 8, 512, page, slot=list(slot), pos=list(pos))
    del given["rows"]
    bits_of_both(given, cache)
    given, cache = setting(6, 9, 3, 64, 8, 700, page, slot=list(slot), pos=list(pos), norms="none")
    call = bits_of_both(given, cache, attention={"window": 3})
    assert CAPABILITY != 90 or one_kernel(**call)


def test_checked_mode_looks_at_the_parts():
    """The one kernel is not the way then: what qkv_rope and attention trust of contents is looked at."""
    given, cache = setting(3, 8, 2, 128, 4, 64, 0, pos=[1, 2, 64], slot=[0, 1, 2])
    call = given | {"k_cache": cache[0], "v_cache": cache[1], "out": torch.empty_like(given["q"])}
    assert CAPABILITY != 90 or one_kernel(**call)
    with ops.checked(), pytest.raises(InvalidArgumentError, match=r"pos\[2\] is 64"):
        ops.rope_attention(**call | {"rows": torch.tensor([3], dtype=torch.int32, device="cuda")})
    with ops.checked():
        ops.rope_attention(**call)  # two rows are valid
