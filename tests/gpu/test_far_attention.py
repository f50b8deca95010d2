"""Decode of one sequence and few kv heads over a long cache, whose keys several clusters of blocks share (port words): every place counts once, bits follow
from no order of arrival, counts end at zero, and graphs go on from any place to any other. Needs --device cuda, and Hopper."""
import pytest

from tests.op_data import device

torch = pytest.importorskip("torch")
if not (device and device.ON_GPU):
    pytest.skip("--device cuda runs these", allow_module_level=True)

from tests.ref.attention import words_of  # noqa: E402
from vivace import _core, ops  # noqa: E402
from vivace.errors import InvalidDTypeError, InvalidShapeError  # noqa: E402

CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
if CAPABILITY != 90:
    pytest.skip("the kernel is Hopper's", allow_module_level=True)
# Hq, Hkv, D, places: two, one, four and three kv heads; 27B's and 35B's are the first two.
SHAPES = [(16, 2, 256, 262144), (24, 4, 256, 33000), (8, 1, 128, 20000), (32, 2, 128, 70000), (6, 3, 72, 9000), (4, 4, 80, 12289)]
CLUSTERS = {1: 8, 2: 4, 3: 2, 4: 2}


class Setting:
    """A cache with numbers everywhere, and calls over it."""

    def __init__(self, Hq, Hkv, D, places, T=1, page=0, dtype=torch.bfloat16, at=0, seed=0):
        g = torch.Generator(device="cuda").manual_seed(seed)
        self.draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda").to(dtype)
        pages = -(-places // page) if page else 1
        self.cache = self.draw(2, pages, page or places, Hkv, D)
        self.q, self.out, self.lse = self.draw(T, Hq, D), torch.full((T, Hq, D), 7.0, dtype=dtype, device="cuda"), torch.full((T, Hq), 7.0, device="cuda")
        self.pos = torch.zeros(T, dtype=torch.int32, device="cuda")
        self.words = torch.zeros(words_of(T, Hq, Hkv, D) + at, dtype=torch.int32, device="cuda")[at:]
        self.table = torch.randperm(pages, generator=torch.Generator().manual_seed(3)).to(torch.int32).reshape(1, -1).cuda() if page else None

    def call(self, several=True, **more):
        given = {"q": self.q, "k": self.cache[0], "v": self.cache[1], "pos": self.pos, "out": self.out, "lse": self.lse}
        return given | ({"words": self.words} if several else {}) | ({"page_table": self.table} if self.table is not None else {}) | more

    def at(self, *places):
        self.pos.copy_(torch.tensor(places, dtype=torch.int32))
        return self

    def __call__(self, several=True, **more):
        self.out.fill_(7), self.lse.fill_(7)
        ops.attention(**self.call(several, **more))
        assert not self.words[:4096].any(), "counts are not back at zero"
        return bits(self.out), bits(self.lse)


def bits(x):
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32).clone()


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b))


def kernel(**call):
    return str(_core.picked_kernel("attention", CAPABILITY, **call))


def edges(places):
    return sorted({0, 127, 1023, 4095, 4096, 4097, 8191, 8192, 16383, 16384, places // 2, places - 2, places - 1} & set(range(places)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_which_kernel(shape):
    assert kernel(**Setting(*shape).call()).endswith(f", {CLUSTERS[shape[1]]}>")


def test_one_cluster_where_several_do_not_help():
    one = lambda s, several=True, **more: not kernel(**s.call(several, **more)).endswith((", 2>", ", 4>", ", 8>"))  # noqa: E731
    usual = (8, 2, 128, 9000)
    assert not one(Setting(*usual)) and one(Setting(*usual), False)
    assert one(Setting(*usual), window=100) and one(Setting(8, 2, 64, 9000)) and one(Setting(8, 2, 128, 8192)) and one(Setting(8, 8, 128, 9000)) and one(Setting(*usual, T=17))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_place_counts_once(shape):
    """Queries of zero: lse is the logarithm of how many places there are, and the mean of ones is one."""
    s = Setting(*shape)
    s.q.zero_()
    s.cache[1] = 1
    for p in edges(shape[3]):
        s.at(p)()
        assert (s.lse.double().exp().round() == p + 1).all(), f"place {p}: {s.lse.double().exp()[0].tolist()} places"
        assert (s.out == 1).all()


def test_each_block_of_keys_has_its_values():
    """A key that outweighs all others, block by block."""
    s = Setting(8, 2, 128, 40000)
    s.cache[0] *= 0.01
    s.at(39999)
    for j in range(64, 40000, 128):
        kept = s.cache[0, 0, j].clone()
        s.cache[0, 0, j] = 3 * s.q.view(2, 4, 128)[:, 0]
        s()
        assert torch.allclose(s.out.view(2, 4, 128)[:, 0].float(), s.cache[1, 0, j].float(), rtol=2**-7, atol=2**-6), f"key {j}"
        s.cache[0, 0, j] = kept


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1.0, 6.0])
def test_values(shape, size):
    """float64, by the norm of a head's error: probabilities and outputs are rounded by 2^-9 each at most, and the former's errors add up as values do.
    Places behind the position hold no numbers."""
    Hq, Hkv, D, places = shape
    s = Setting(*shape)
    s.q *= size
    for p in edges(places):
        kept = s.cache[:, :, p + 1 :].clone()
        s.cache[:, :, p + 1 :] = float("nan")
        s.at(p)()
        s.cache[:, :, p + 1 :] = kept
        for g in range(Hkv):
            k, v = (s.cache[i, 0, : p + 1, g].double() for i in range(2))
            score = s.q[0].view(Hkv, -1, D)[g].double() @ k.T / D**0.5
            want = torch.softmax(score, -1) @ v
            off = (s.out[0].view(Hkv, -1, D)[g].double() - want).norm(dim=-1) / want.norm(dim=-1)
            assert off.max() <= 2**-7, f"place {p}, kv head {g}: off by {off.max():.2g}"
            assert torch.allclose(s.lse[0].view(Hkv, -1)[g].double(), score.logsumexp(-1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_near_places_have_the_bits_of_one_cluster(shape):
    s = Setting(*shape)
    for p in (0, 100, 2000, 4095):
        assert same(s.at(p)(), s(False))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fifty_runs(shape):
    """Beside another stream's work, which delays blocks: other queries each time, then the first again."""
    s, other, noise = Setting(*shape), torch.cuda.Stream(), torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    queries, seen = [s.draw(*s.q.shape) for _ in range(3)], {}
    s.at(shape[3] - 1)
    for i in range(50):
        with torch.cuda.stream(other):
            for _ in range(i % 4):
                noise @ noise
        s.q.copy_(queries[i % 3])
        got = s()
        assert same(seen.setdefault(i % 3, got), got), f"run {i}: other bits"
    torch.cuda.synchronize()


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_replays_go_anywhere(shape):
    """One graph of three calls that share their words; the place moves on the device between replays."""
    s = Setting(*shape)
    s.at(0)()
    s.words.zero_()
    outs, lses = [torch.zeros_like(s.out) for _ in range(3)], [torch.zeros_like(s.lse) for _ in range(3)]
    with device.Capture() as graph:
        for o, m in zip(outs, lses):
            ops.attention(**s.call(out=o, lse=m))
    for turn in range(60):
        p = edges(shape[3])[turn * 7 % len(edges(shape[3]))]
        s.q.copy_(s.draw(*s.q.shape))
        s.at(p)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert not s.words[:4096].any()
        want = s()
        for o, m in zip(outs, lses):
            assert same(want, (bits(o), bits(m))), f"turn {turn}, place {p}"


@pytest.mark.parametrize("T", [2, 5, 16])
@pytest.mark.parametrize("shape", [(16, 2, 256, 20000), (12, 4, 128, 9000), (8, 1, 128, 34000), (64, 2, 128, 9000)], ids=str)
@pytest.mark.parametrize("page", [0, 64])
def test_drafts_have_the_bits_of_single_tokens(T, shape, page):
    """Positions in and out of order, over the edge of a cluster's keys, one that sees nothing; both kinds of call with the same words, in turn."""
    many = Setting(*shape, T=T, page=page)
    for first in (4090, 8190, shape[3] - T):
        places = [first + t for t in range(T)]
        places[-1] = places[-1] if first != 8190 else -1
        places[0] = places[0] if first != 4090 else 5
        whole = many.at(*places)()
        for t in range(T):
            one = Setting(*shape, page=page)
            one.cache, one.words, one.table = many.cache, many.words, many.table
            one.q = many.q[t : t + 1].contiguous()
            got = one.at(places[t])()
            assert same(got, [x[t : t + 1] for x in whole]), f"token {t} at {places[t]}"


def test_rows_and_slots_that_are_not_there():
    s = Setting(16, 2, 256, 20000, T=5).at(19000, 18000, 17000, 16000, 15000)
    whole = s()
    rows = torch.tensor([3], dtype=torch.int32, device="cuda")
    part = s(rows=rows)
    assert same([x[:3] for x in whole], [x[:3] for x in part]) and (s.out[3:] == 7).all()
    s(rows=rows.zero_())
    assert (s.out == 7).all()
    got = s(slot=torch.tensor([0, -1, 0, 1, 0], dtype=torch.int32, device="cuda"))
    assert same([x[[0, 2, 4]] for x in whole], [x[[0, 2, 4]] for x in got]) and not s.out[[1, 3]].any()


def test_pages_layouts_and_words_off_16_bytes():
    shape = (16, 2, 256, 20032)
    dense, paged, off = Setting(*shape), Setting(*shape, page=64), Setting(*shape, at=3)
    for s in (paged, off):
        s.q = dense.q
    paged.cache[:, paged.table[0].long()] = dense.cache.view(2, -1, 64, 2, 256)
    off.cache = dense.cache
    for p in (3000, 4096, 20000):
        want = dense.at(p)()
        assert same(want, paged.at(p)()) and same(want, off.at(p)())
        hnd = dense.cache.transpose(2, 3).contiguous()
        assert same(want, dense(k=hnd[0], v=hnd[1], layout="hnd"))


def test_codes_and_sinks():
    s, scale = Setting(16, 2, 256, 20000).at(19999), torch.tensor([0.003], device="cuda")
    sinks = torch.linspace(5, 12, 16, device="cuda")
    s(sinks=sinks)
    codes, want = (torch.zeros(1, 16, 256, dtype=torch.float8_e4m3fn, device="cuda") for _ in range(2))
    s(sinks=sinks)
    ops.quantize(x=s.out.view(1, -1), out=want.view(1, -1), out_scale=scale)
    s(sinks=sinks, out=codes, out_scale=scale)
    assert torch.equal(codes.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("stable", [False, True])
def test_rope_attention_hands_them_on(stable):
    Hq, Hkv, D = 16, 2, 256
    s = Setting(Hq, Hkv, D, 20000)
    qkv, R = s.draw(1, (Hq + 2 * Hkv) * D), 32
    rope = {"qkv": qkv, "pos": s.pos, "inv_freq": 1e4 ** -(torch.arange(R, device="cuda") / R), "q_norm": s.draw(D), "k_norm": s.draw(D)}
    for p in (4095, 4096, 19999):
        s.at(p)
        ops.qkv_rope(**rope, q=s.q, k_cache=s.cache[0], v_cache=s.cache[1])
        want = s()
        s.out.zero_()
        ops.rope_attention(**rope, q=torch.zeros_like(s.q), k_cache=s.cache[0], v_cache=s.cache[1], out=s.out, lse=s.lse, words=s.words, stable=stable)
        assert same(want, (bits(s.out), bits(s.lse))) and not s.words[:4096].any()


def test_refused():
    s = Setting(16, 2, 256, 9000)
    with pytest.raises(InvalidShapeError, match="words has N"):
        ops.attention(**s.call(words=s.words[:-1]))
    with pytest.raises(InvalidDTypeError, match="words"):
        ops.attention(**s.call(words=s.words.float()))
