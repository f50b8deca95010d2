"""The kernel of decode_layers without a GPU, as tests/test_decode_layers_emulated.py has decode_layers_cross: weights of bf16 and of e4m3 against the float64
reference."""
import ctypes

import numpy as np
import pytest

from tests.ref import decode_layers as reference
from tests.ref.common import Inputs
from tests.test_decode_layers_emulated import bits_of, build, planted, values_of

# hidden, query heads, kv heads, head, mlp, blocks, bytes of a weight, norms of heads, biases
SHAPES = {
    "bf16": (128, 4, 2, 64, 192, 7, 2, False, True),
    "codes": (128, 4, 2, 64, 192, 7, 1, False, True),
    "odd": (192, 3, 1, 64, 320, 5, 1, True, False),  # a stage's rows that are no whole number of lines
    "cut": (1536, 2, 1, 128, 1088, 6, 1, True, False),  # rows of several stages, the last of them shorter
}


def policy(shape):
    *numbers, norms, biased = SHAPES[shape]
    return f"DecodeLayersPolicy{{{', '.join(map(str, numbers))}, {'true' if norms else 'false'}, {'true' if biased else 'false'}}}"


def e4m3_of(codes):
    """What codes stand for."""
    c = codes.astype(np.int64)
    e, m = c >> 3 & 15, c & 7
    v = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7.0))
    return np.where(c & 128, -v, v)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    made = {}

    def get(shape):
        if shape not in made:
            made[shape] = build(tmp_path_factory.mktemp(shape), "decode_layers", policy(shape))
        return made[shape]
    return get


class Step:
    """One token of a model of drawn weights, at any position."""

    def __init__(self, run, shape, *, N=2, L=64, P=3, seed=0):
        H, Hq, Hkv, D, M, _, self.size, norms, biased = SHAPES[shape]
        A, rng = Hq * D, np.random.default_rng(seed)
        rows = {"qkv": (A + 2 * Hkv * D, H), "o": (H, A), "gate_up": (2 * M, H), "down": (H, M)}
        self.run, B = run, 2 * P
        self.dims = (N, B, L, 2, P)
        if self.size == 2:
            self.w = {p: bits_of(reference.weights(rng, (N, *s))) for p, s in rows.items()}
            self.scale, self.values = {}, {p: values_of(w) for p, w in self.w.items()}
        else:
            self.w = {p: rng.choice(np.setdiff1d(np.arange(256), (127, 255)), (N, *s)).astype(np.uint8) for p, s in rows.items()}
            self.scale = {p: np.asarray(0.5 ** rng.uniform(0, 4, (N, s[0])) / 60 / np.sqrt(s[1]), np.float32) for p, s in rows.items()}
            self.values = {p: e4m3_of(w) for p, w in self.w.items()}
        near = lambda *s: bits_of(reference.near_one(rng, s))  # noqa: E731
        self.b = {"attn_norm": near(N, H), "mlp_norm": near(N, H)} | ({"q_norm": near(N, D), "k_norm": near(N, D)} if norms else {})
        self.b |= {"x": bits_of(rng.standard_normal((1, H)))} | {p: bits_of(rng.standard_normal((N, B, L, Hkv, D))) for p in ("k_cache", "v_cache")}
        self.f = {"inv_freq": np.asarray(1e4 ** -(np.arange(D // 2) / (D // 2)), np.float32)} | ({"qkv_bias": np.asarray(rng.standard_normal((N, A + 2 * Hkv * D)), np.float32)} if biased else {})
        self.i = {"pos": np.zeros(1, np.int32), "slot": np.ones(1, np.int32), "page_table": rng.permutation(B).reshape(2, P).astype(np.int32)}
        run.words_of_call.restype = ctypes.c_int64
        self.words, self.out = np.zeros(run.words_of_call(), np.uint32), np.full((1, H), 7, np.uint16)

    def __call__(self, pos, *, delay=4, seed=1, ticks=100_000):
        self.i["pos"][0] = pos
        self.out[:] = 7
        address = lambda a: 0 if a is None else a.ctypes.data  # noqa: E731
        stack = lambda a: [0, 0] if a is None else [address(a), a[0].size]  # noqa: E731
        call = [w for p in ("qkv", "o", "gate_up", "down") for w in (*stack(self.w[p]), *stack(self.scale.get(p)))]
        call += [w for a in (self.b["attn_norm"], self.b["mlp_norm"], self.b.get("q_norm"), self.b.get("k_norm"), self.f.get("qkv_bias")) for w in stack(a)]
        call += [address(a) for a in (self.b["x"], self.b["k_cache"], self.b["v_cache"], self.out, self.f["inv_freq"], self.i["pos"], self.i["slot"], self.i["page_table"], self.words)]
        call = np.array([*call, *self.dims, seed, delay, ticks, np.array(1e-5).view(np.int64)], np.int64)
        return self.run.run_call(ctypes.c_void_p(call.ctypes.data))

    def check(self, pos, **how):
        """Against the reference from the caches as they are."""
        inputs = {p: values_of(v) for p, v in self.b.items()} | {p: v.astype(np.float64) for p, v in self.f.items()} | {p: v.astype(np.int64) for p, v in self.i.items()} | self.values | {"pos": np.array([pos])}
        inputs = Inputs(inputs | {p + "_scale": s.astype(np.float64) for p, s in self.scale.items()}, type("Case", (), {"attrs": {"eps": 1e-5}}))
        want = reference.ref(dtypes={p: "bf16" for p in ("out", "k_cache", "v_cache")}, eps=1e-5, **inputs)
        assert self(pos, **how) == 0, "the blocks wait for each other without an end"
        for p, w in want.items():
            got = values_of({"out": self.out}.get(p, self.b.get(p)))
            bound = reference.bound(p, w, "bf16", inputs)
            assert (np.abs(got - w) <= bound).all(), (p, pos, np.abs(got - w).max(), bound.max())


@pytest.mark.parametrize("shape", SHAPES)
def test_values(kernel, shape):
    step = Step(kernel(shape), shape)
    for pos in (0, 1, 63, 64, 130):
        step.check(pos, seed=pos)


@pytest.mark.parametrize("shape", ["bf16", "codes"])
def test_same_bits_whatever_is_late(kernel, shape):
    step = Step(kernel(shape), shape, N=3)
    step.check(70)
    first = step.out.copy()
    for seed, delay in ((2, 1), (3, 20), (4, 60)):
        assert step(70, seed=seed, delay=delay) == 0
        assert np.array_equal(first, step.out), (seed, delay)


def test_a_code_without_a_number_shows(kernel):
    """One NaN in the last layer's down makes one value of the row none, and no other."""
    step = Step(kernel("codes"), "codes")
    step.w["down"][1, 17, 100] = 0x7F
    assert step(5) == 0
    assert np.isnan(values_of(step.out))[0].nonzero()[0].tolist() == [17]


@pytest.mark.parametrize("file, right, wrong", [
    ("product", "kSecond = kCodes ? 16 : 64;", "kSecond = 64;"),
    ("product", "kLeft = kCodes ? 32 : 16,", "kLeft = 16,"),
    ("decode_layers", "layer * m.scale.stride + first", "first"),
    ("decode_layers", "P.bytes == 1 ? sum * scale[i] : sum", "P.bytes == 1 ? sum * scale[0] : sum"),
])
def test_planted_faults_are_seen(tmp_path, file, right, wrong):
    broken = build(tmp_path, "decode_layers", policy("odd"), planted(file, right, wrong))
    with pytest.raises(AssertionError):
        step = Step(broken, "odd")
        for pos in (70, 71):
            step.check(pos)
