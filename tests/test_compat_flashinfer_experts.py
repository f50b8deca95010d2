"""Quantized experts by FlashInfer's names, against float64 loops over tokens and choices written here, of drawn shapes and codes."""
import ml_dtypes
import numpy as np
import pytest

import vivace
from tests.test_compat_flashinfer import HOMES, put, torch
from tests.test_compat_flashinfer_moe import ACTS, GATED
from tests.test_compat_flashinfer_names import to_f64
from vivace.compat import flashinfer
from vivace.compat.arrays import dtype_like, seen_as
from vivace.compat.flashinfer.fused_moe import ActivationType

pytestmark = pytest.mark.parametrize("home", HOMES)
E4M3 = ml_dtypes.float8_e4m3fn
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def give(home, x):
    """x where the calls are; of ml_dtypes' types by its bytes, which torch takes."""
    x = np.ascontiguousarray(x)
    if home == "numpy" or x.dtype.kind in "fiu" and x.dtype.name != "bfloat16" and not x.dtype.name.startswith("float8"):
        return put(home, x)
    return put(home, x.view(f"u{x.itemsize}" if x.itemsize == 1 else "i2")).view(dtype_like(x.dtype.name, put(home, np.zeros(1, np.uint8))))


def e4m3(x):
    return np.clip(x, -448, 448).astype(E4M3)


def nvfp4_rounded(x):
    """x [R, K] in blocks of 16 as NVFP4 with a tensor scale of 1, in float32 as the op's formula has it."""
    x = x.astype(np.float32).reshape(len(x), -1, 16)
    s = e4m3(np.abs(x).max(-1, keepdims=True) / np.float32(6)).astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.where(s < 2.0**-126, 0, 1 / s).astype(np.float32)
    return ((x * inverse).astype(ml_dtypes.float4_e2m1fn).astype(np.float32) * s).reshape(len(x), -1)


class Drawn:
    """Shapes, routing and biases of a seed. Codes and scales are such that sums before an activation are exact in float32."""

    def __init__(self, seed, kind, sizes):
        r = self.r = np.random.default_rng(seed)
        self.kind, self.gated = kind, kind in GATED
        self.T, self.K, self.E = (int(r.choice(n)) for n in ([1, 2, 5, 17], [1, 2, 3], [3, 4, 8]))
        self.H, self.M, self.N = (int(r.choice(n)) for n in sizes)
        self.fc1 = (self.E, 2 * self.M if self.gated else self.M, self.H)
        self.fc2 = (self.E, self.N, self.M)
        self.experts = np.where(r.random((self.T, self.K)) < 0.1, r.choice([-1, self.E]), r.integers(0, self.E, (self.T, self.K))).astype(np.int32)
        self.weights = r.random((self.T, self.K), np.float32)
        self.biases = [(r.integers(-8, 9, s[:2]) / 4).astype(np.float32) if r.random() < 0.5 else None for s in (self.fc1, self.fc2)]

    def codes(self, shape):
        """Values of e4m3 whose products and their sums float32 holds."""
        return (self.r.integers(-15, 16, shape) * 2.0 ** self.r.integers(-3, 1, shape)).astype(E4M3)

    def powers(self, *shape, low=-3, high=2):
        return np.asarray(2.0 ** self.r.integers(low, high, shape), np.float32)

    def call(self, home, x, w1, w2, scales, **more):
        like = put(home, np.zeros(1, np.float32))
        names = ("fc1_expert_biases", "fc2_expert_biases")
        more |= {n: put(home, b) for n, b in zip(names, self.biases) if b is not None}
        return flashinfer.cutlass_fused_moe(x, put(home, self.experts), put(home, self.weights), w1, w2, like.dtype, scales, activation_type=self.kind, **more)[0]

    def want(self, x, w1, w2, enter1=lambda x, e: x, enter2=lambda x, e: x, scale1=1.0, scale2=1.0):
        """x [T, H], w1, w2 of float64; enter(rows [1, K], e) -> what enters an expert's product; scales of each expert."""
        out, act = np.zeros((self.T, self.N)), ACTS[self.kind]
        b1, b2 = (0 * w[:, :, 0] if b is None else b for b, w in zip(self.biases, (w1, w2)))
        scale1, scale2 = (np.broadcast_to(np.asarray(s, np.float64).reshape(-1, 1) if np.ndim(s) < 2 else s, w.shape[:2]) for s, w in ((scale1, w1), (scale2, w2)))
        for t in range(self.T):
            for e, weight in zip(self.experts[t], self.weights[t]):
                if not 0 <= e < self.E:
                    continue
                row = w1[e] @ enter1(x[t : t + 1], e)[0].astype(np.float64) * scale1[e] + b1[e]
                hidden = act(row[self.M :]) * row[: self.M] if self.gated else act(row)
                out[t] += float(weight) * (w2[e] @ enter2(hidden[None], e)[0].astype(np.float64) * scale2[e] + b2[e])
        return out

    def check(self, got, want, rounded=True):
        """Where rows are rounded, a gate's exp() may fall to the other side of a step of e4m3 or e2m1."""
        bound = 2.0**-4 if self.gated and rounded else 1e-5
        assert tuple(got.shape) == want.shape and np.abs(to_f64(got) - want).max() <= bound * max(1, np.abs(want).max())


KINDS = pytest.mark.parametrize("kind", [ActivationType.Relu, ActivationType.Swiglu])
SEEDS = pytest.mark.parametrize("seed", range(8))


@SEEDS
@KINDS
def test_e4m3_of_tensors_and_rows(home, kind, seed):
    d = Drawn(seed, kind, ([16, 40, 64], [16, 24, 64], [8, 64]))
    x, w1, w2 = (d.codes(s) for s in ((d.T, d.H), d.fc1, d.fc2))
    by_row = seed % 2
    s1, s2 = (d.powers(*(s[:2] if by_row else s[:1]), low=-8, high=-5) for s in (d.fc1, d.fc2))
    inverse = d.powers(d.E) if seed % 3 else d.powers()
    got = d.call(home, *(give(home, a) for a in (x, w1, w2)), [put(home, s) for s in (s1, inverse, s2, d.powers())])
    rounded = lambda h, e: e4m3(h * np.broadcast_to(inverse, d.E)[e]).astype(np.float64)  # noqa: E731
    d.check(got, d.want(*(a.astype(np.float64) for a in (x, w1, w2)), enter2=rounded, scale1=s1, scale2=s2))


@SEEDS
@KINDS
def test_e4m3_of_blocks(home, kind, seed):
    d = Drawn(seed, kind, ([64, 128, 200], [64, 136, 128], [8, 128, 130]))
    w1, w2 = d.codes(d.fc1), d.codes(d.fc2)
    s1, s2 = (d.r.random((s[0], -(-s[1] // 128), -(-s[2] // 128)), np.float32) / 16 for s in (d.fc1, d.fc2))
    x = (d.r.integers(-64, 65, (d.T, d.H)) / 32).astype(d.r.choice([np.float16, np.float32, ml_dtypes.bfloat16]))
    got = d.call(home, *(give(home, a) for a in (x, w1, w2)), [put(home, s1), put(home, s2)], use_deepseek_fp8_block_scale=True)
    spread = lambda w, s: w.astype(np.float64) * s.astype(np.float64).repeat(128, 1)[:, : w.shape[1]].repeat(128, 2)[:, :, : w.shape[2]]  # noqa: E731
    d.check(got, d.want(x.astype(np.float64), spread(w1, s1), spread(w2, s2)), rounded=False)


def packed(values):
    """int4 [E, N, K] two a byte, the even column in the low half."""
    bits = values.astype(np.uint8) & 15
    return bits[..., ::2] | bits[..., 1::2] << 4


def in_words(codes):
    """int4's bytes in the order of FlashInfer's kernels, word by word: of 16 rows and 16 words, lane l of row i has words of rows i and i + 8."""
    E, N, _ = codes.shape
    words, out = codes.view(np.uint16), np.zeros_like(codes).view(np.uint16)
    for first in range(0, N, 16):
        for i in range(8):
            for lane in range(words.shape[2]):
                part, at = lane // 16 * 16, lane % 16
                to_row, to = first + i + at % 8 // 4 * 8, part + at // 8 * 8 + at % 4 * 2
                out[:, to_row, to], out[:, to_row, to + 1] = words[:, first + i, lane], words[:, first + i + 8, lane]
    return out.view(np.uint8)


@SEEDS
@KINDS
def test_int4_of_groups(home, kind, seed):
    group = (32, 64, 128)[seed % 3]
    d = Drawn(seed, kind, ([128, 256], [64, 128], [64]))
    w1, w2 = (d.r.integers(-8, 8, s) for s in (d.fc1, d.fc2))
    group2 = min(group, d.M)
    s1, s2 = ((d.r.integers(16, 32, (*s[:2], s[2] // g)) * 2.0**-9).astype(ml_dtypes.bfloat16) for s, g in ((d.fc1, group), (d.fc2, group2)))
    rounds = seed % 2
    f1, f2 = (d.powers(n, low=-1, high=2) if rounds else np.zeros(0, np.float32) for n in (d.H, d.M))
    a1, a2 = (d.powers(d.E) if seed % 4 > 1 else np.zeros(0, np.float32) for _ in range(2))
    x = (d.r.integers(-64, 65, (d.T, d.H)) / 16).astype(ml_dtypes.bfloat16)
    none = np.zeros(0, np.float32)
    scales = [give(home, a) for a in (s1, s2, f1, f2, none, none, a1, a2)]
    got = d.call(home, *(give(home, a) for a in (x, packed(w1), packed(w2))), scales, use_w4_group_scaling=True, use_packed_weights=True)
    wide = lambda w, s, g: w * s.astype(np.float64).repeat(g, 2)  # noqa: E731
    enter = [lambda rows, e, f=f: e4m3(rows * f).astype(np.float64) if rounds else rows for f in (f1, f2)]
    d.check(got, d.want(x.astype(np.float64), wide(w1, s1, group), wide(w2, s2, group2), *enter, *(a if len(a) else 1.0 for a in (a1, a2))), rounded=rounds)


@pytest.mark.parametrize("seed", range(3))
def test_int4_in_the_order_of_kernels(home, seed):
    """Interleaved weights and folded scales give the same bits as plain ones."""
    d = Drawn(seed, ActivationType.Swiglu, ([128, 384], [128, 256], [64, 128]))
    w1, w2 = (packed(d.r.integers(-8, 8, s)) for s in (d.fc1, d.fc2))
    s1, s2 = (d.r.random((*s[:2], s[2] // 128), np.float32).astype(ml_dtypes.bfloat16) for s in (d.fc1, d.fc2))
    x, rest = give(home, d.r.standard_normal((d.T, d.H)).astype(np.float16)), [put(home, np.zeros(0, np.float32))] * 6
    plain = d.call(home, x, give(home, w1), give(home, w2), [give(home, s1), give(home, s2), *rest], use_packed_weights=True)
    other = [flashinfer.interleave_moe_weights_for_sm90_mixed_gemm(give(home, w), "int4") for w in (w1, w2)]
    assert (to_f64(other[0]) == in_words(w1)).all() and (to_f64(other[1]) == in_words(w2)).all()
    half = [seen_as(give(home, s), "float16") for s in (s1, s2)]  # as callers with float16 activations hand the bits over
    folded = [flashinfer.interleave_moe_scales_for_sm90_mixed_gemm(s, 128) for s in half]
    E, N, groups = s1.shape
    assert tuple(folded[0].shape) == (E, N // 64, groups, 8, 8)
    bits, at = to_f64(seen_as(folded[0], "int16")), s1.view(np.int16)
    assert all((bits[:, n // 64, :, n % 8, n % 64 // 8] == at[:, n]).all() for n in range(N))
    assert (to_f64(d.call(home, x, *other, [*folded, *rest], use_packed_weights=True)) == to_f64(plain)).all()


def swizzled(scales):
    """e4m3 scales [E, N, K / 16] in tiles of 128 rows x 4, zeros around."""
    E, N, B = scales.shape
    out = np.zeros((E, -(-N // 128), -(-B // 4), 512), E4M3)
    for n in range(N):
        for b in range(B):
            out[:, n // 128, b // 4, n % 32 * 16 + n % 128 // 32 * 4 + b % 4] = scales[:, n, b]
    return out.reshape(E, -(-N // 128) * 128, -(-B // 4) * 4)


@SEEDS
@KINDS
def test_nvfp4(home, kind, seed):
    d = Drawn(seed, kind, ([16, 64, 80], [16, 64, 144], [8, 136]))
    w1, w2 = (d.r.integers(0, 256, (*s[:2], s[2] // 2)).astype(np.uint8) for s in (d.fc1, d.fc2))
    b1, b2 = (d.powers(*s[:2], s[2] // 16, low=-4, high=0).astype(E4M3) for s in (d.fc1, d.fc2))
    values = lambda w, b: FP4[np.stack([w & 15, w >> 4], -1).reshape(*w.shape[:2], -1)] * b.astype(np.float64).repeat(16, 2)  # noqa: E731
    g1, g2 = (d.powers(d.E) if seed % 3 == 1 else d.powers() for _ in range(2))
    s1, s2 = d.powers(d.E, low=-8, high=-5), d.powers(d.E, low=-8, high=-5)
    x = (d.r.integers(-64, 65, (d.T, d.H)) / 16).astype(d.r.choice([np.float16, ml_dtypes.bfloat16]))
    scales = lambda: [put(home, g1), seen_as(give(home, swizzled(b1)), "int32") if d.H % 64 == 0 and seed % 2 else give(home, swizzled(b1)), put(home, s1),  # noqa: E731
                      put(home, g2), give(home, swizzled(b2)), put(home, s2)]
    long = lambda w: give(home, w).view(dtype_like("int64", put(home, s1))) if w.shape[2] % 8 == 0 else give(home, w)  # noqa: E731
    enter1, enter2 = (lambda rows, e, g=g: nvfp4_rounded(rows * np.broadcast_to(g, d.E)[e]).astype(np.float64) for g in (g1, g2))
    want = d.want(x.astype(np.float64), values(w1, b1), values(w2, b2), enter1, enter2, s1, s2)
    d.check(d.call(home, give(home, x), long(w1), long(w2), scales()), want)
    if np.ndim(g1):
        return
    rows = nvfp4_rounded(x.astype(np.float32) * g1)  # an input that is quantized already
    blocks = e4m3(np.abs(x.astype(np.float32) * g1).reshape(d.T, -1, 16).max(-1) / np.float32(6))
    with np.errstate(divide="ignore", invalid="ignore"):
        nibbles = np.nan_to_num(rows.reshape(d.T, -1, 16) / blocks.astype(np.float32)[..., None]).astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(d.T, -1)
    codes = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    for sf, order in ((swizzled(blocks[None])[0], True), (blocks, False)):
        d.check(d.call(home, give(home, codes), long(w1), long(w2), scales(), input_sf=give(home, sf.view(np.uint8)), swizzled_input_sf=order), want)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [ActivationType.SwigluBias, ActivationType.SwigluStep, ActivationType.Situ])
def test_activations_with_limits(home, kind, seed):
    r = np.random.default_rng(seed)
    T, K, E, H, M, N = 5, 2, 4, 32, 24, 16
    x, w1, w2 = (r.standard_normal(s).astype(np.float32) for s in ((T, H), (E, 2 * M, H), (E, N, M)))
    experts, weights = r.integers(-1, E, (T, K)).astype(np.int32), r.random((T, K), np.float32)
    names = {"SwigluBias": ("swiglu_alpha", "swiglu_beta", "swiglu_limit"), "SwigluStep": ("swiglu_limit",), "Situ": ("situ_beta", "situ_linear_beta")}[kind.name]
    usual = {"swiglu_alpha": 1.0, "swiglu_beta": 0.0, "swiglu_limit": 7.0 if kind.name == "SwigluStep" else np.inf, "situ_beta": 4.0, "situ_linear_beta": 25.0}
    given = {n: (r.random(E) + 0.5).astype(np.float32) for n in names if seed % 2 or n == names[0]} if seed else {}
    a, b, limit, sb, sl = (given.get(n, np.full(E, v)).astype(np.float64) for n, v in usual.items())
    sigmoid, want = lambda v: 1 / (1 + np.exp(-v)), np.zeros((T, N))  # noqa: E731
    for t in range(T):
        for e, weight in zip(experts[t], weights[t]):
            if e < 0:
                continue
            up, gate = np.split(w1[e].astype(np.float64) @ x[t], 2)
            if kind == ActivationType.SwigluBias:
                gate, up = np.minimum(gate, limit[e]), np.clip(up, -limit[e], limit[e])
                hidden = gate * sigmoid(a[e] * gate) * (up + b[e])
            elif kind == ActivationType.SwigluStep:
                hidden = np.minimum(gate * sigmoid(gate), limit[e]) * np.clip(up, -limit[e], limit[e])
            else:
                hidden = sb[e] * np.tanh(gate / sb[e]) * sigmoid(gate) * sl[e] * np.tanh(up / sl[e])
            want[t] += float(weight) * (w2[e] @ hidden)
    call = lambda k: flashinfer.cutlass_fused_moe(*(put(home, v) for v in (x, experts, weights, w1, w2)), put(home, x).dtype, activation_type=k, **{n: put(home, v) for n, v in given.items()})[0]  # noqa: E731
    for k in (kind, ActivationType.Swiglu) if kind == ActivationType.SwigluBias and given else (kind,):
        assert np.abs(to_f64(call(k)) - want).max() <= 1e-5 * max(1, np.abs(want).max())


def test_few_rows_of_many_experts_widen_no_others(home, monkeypatch):
    """In turns of some experts, and of those chosen alone where these are fewer: the same bits."""
    from vivace.compat.flashinfer import experts

    d = Drawn(3, ActivationType.Relu, ([64], [32], [16]))
    d.biases = [None, None]
    w1, w2, s = d.codes(d.fc1), d.codes(d.fc2), [put(home, a) for a in (d.powers(d.E), d.powers(), d.powers(d.E), d.powers())]
    x = d.codes((d.T, d.H))
    args = [give(home, a) for a in (x, w1, w2)]
    whole, read = to_f64(d.call(home, *args, s)), []
    monkeypatch.setattr(experts, "_WIDENED", 1)
    assert (to_f64(d.call(home, *args, s)) == whole).all()
    d.experts, d.weights, d.T = d.experts[:1, :1] * 0 + 1, d.weights[:1, :1], 1
    kept = experts.taken
    monkeypatch.setattr(experts, "taken", lambda codes, which: read.append(which) or kept(codes, which))
    one = d.call(home, args[0][:1], *args[1:], s)
    assert len(read) == 2 and all(list(to_f64(w)) == [1] for w in read)
    assert np.abs(to_f64(one) - d.want(x[:1].astype(np.float64), w1.astype(np.float64), w2.astype(np.float64), enter2=lambda h, e: e4m3(h * to_f64(s[1])).astype(np.float64), scale1=to_f64(s[0]),
                                       scale2=to_f64(s[2]))).max() < 1e-4


def bad_calls(home):
    ones = lambda *shape, t=np.float32: give(home, np.ones(shape, t))  # noqa: E731
    x8, v1, v2 = ones(2, 128, t=E4M3), ones(3, 128, 128, t=E4M3), ones(3, 64, 64, t=E4M3)
    ids, weights, s = put(home, np.zeros((2, 1), np.int32)), ones(2, 1), [ones(3), ones(), ones(3), ones()]
    like = ones(1).dtype
    base = {"token_selected_experts": ids, "token_final_scales": weights, "output_dtype": like}
    tensor = {"input": x8, "fc1_expert_weights": v1, "fc2_expert_weights": v2, "quant_scales": s}
    block = {"input": ones(2, 128), "fc1_expert_weights": v1, "fc2_expert_weights": v2, "quant_scales": [ones(3, 1, 1), ones(3, 1, 1)], "use_deepseek_fp8_block_scale": True}
    c1, c2 = ones(3, 128, 64, t=np.uint8), ones(3, 64, 32, t=np.uint8)
    none = ones(0)
    int4 = {"input": ones(2, 128), "fc1_expert_weights": c1, "fc2_expert_weights": c2, "quant_scales": [ones(3, 128, 4), ones(3, 64, 2), *[none] * 6], "use_packed_weights": True}
    fp4 = {"input": ones(2, 128), "fc1_expert_weights": c1, "fc2_expert_weights": c2, "quant_scales": [ones(), ones(3, 128, 8, t=E4M3), ones(3), ones(), ones(3, 128, 4, t=E4M3), ones(3)]}
    call = lambda of, **more: lambda: flashinfer.cutlass_fused_moe(**(base | of | more))  # noqa: E731
    swap = lambda of, i, value: call(of, quant_scales=[*of["quant_scales"][:i], value, *of["quant_scales"][i + 1 :]])  # noqa: E731
    shape, dtype, refused = vivace.InvalidShapeError, vivace.InvalidDTypeError, vivace.UnsupportedError
    words = lambda *a: lambda: flashinfer.interleave_moe_weights_for_sm90_mixed_gemm(*a)  # noqa: E731
    folds = lambda *a: lambda: flashinfer.interleave_moe_scales_for_sm90_mixed_gemm(*a)  # noqa: E731
    return {
        "tensor: fine": (call(tensor), None, ""), "block: fine": (call(block), None, ""), "int4: fine": (call(int4), None, ""), "fp4: fine": (call(fp4), None, ""),
        "no scales": (call(tensor, quant_scales=None), shape, "quant_scales: 0 of them, wanted 4"),
        "three scales": (call(tensor, quant_scales=s[:3]), shape, "3 of them, wanted 4"),
        "a scale's shape": (swap(tensor, 0, ones(4)), shape, r"fc1's scale is \[4\], wanted .*\[3\] or \[3, 128\]"),
        "a scale's type": (swap(tensor, 2, ones(3, t=np.float16)), dtype, "fc2's scale is float16"),
        "an input of 16 bits": (call(tensor, input=ones(2, 128, t=np.float16)), dtype, "input is float16: with e4m3 experts it is e4m3"),
        "an input of codes": (call(block, input=x8), dtype, "use_deepseek_fp8_block_scale"),
        "one type of two": (call(tensor, fc2_expert_weights=ones(3, 64, 64)), dtype, "quantized ones are of one type"),
        "another E": (call(tensor, fc2_expert_weights=v2[:2]), shape, "wanted weights of as many experts"),
        "no experts": (call(tensor, fc1_expert_weights=v1[:0], fc2_expert_weights=v2[:0]), shape, "not empty"),
        "two axes": (call(tensor, fc1_expert_weights=v1[0]), shape, "three axes"),
        "another H": (call(tensor, input=x8[:, :64]), shape, r"wanted \[T, H\]"),
        "input_sf of none": (call(tensor, input_sf=weights), refused, "input_sf belongs"),
        "blocks": (swap(block, 1, ones(3, 1, 2)), shape, r"fc2's block scales are \[3, 1, 2\], wanted \[3, 1, 1\]"),
        "blocks of 16 bits": (swap(block, 0, ones(3, 1, 1, t=np.float16)), dtype, "block scales are float16"),
        "not packed": (call(int4, use_packed_weights=False, use_w4_group_scaling=True), dtype, "fc1_expert_weights are uint8 with an input of float32 and use_w4_group_scaling"),
        "int4 of e4m3": (call(int4, input=x8), dtype, "with int4 experts it is 16-bit"),
        "groups": (swap(int4, 0, ones(3, 128, 3)), shape, r"fc1's weight scales are \[3, 128, 3\]"),
        "groups of rows": (swap(int4, 1, ones(3, 32, 2)), shape, r"fc2's weight scales are \[3, 32, 2\]"),
        "groups of bytes": (swap(int4, 1, c1), dtype, "weight scales are uint8"),
        "folded": (swap(int4, 0, ones(3, 1, 1, 8, 8, t=np.float16)), shape, r"wanted \[E, N, K / group\] or"),
        "zeros": (swap(int4, 4, ones(3, 128, 4)), refused, "fc1's zeros"),
        "factors": (swap(int4, 2, ones(64)), shape, r"fc1's activation scales are \[64\], wanted \[128\]"),
        "alphas": (swap(int4, 7, ones(2)), shape, r"fc2's alpha is \[2\]"),
        "swizzled": (swap(fp4, 1, ones(3, 128, 4, t=E4M3)), shape, "swizzled"),
        "swizzled axes": (swap(fp4, 1, ones(384, 8, t=E4M3)), shape, "padded and swizzled"),
        "swizzled type": (swap(fp4, 4, ones(3, 128, 4)), dtype, "fc2's block scales is float32"),
        "columns": (call(fp4, fc1_expert_weights=c1[:, :, :60]), shape, "K 120 is not a multiple of 16"),
        "codes without scales": (call(fp4, input=ones(2, 64, t=np.uint8)), dtype, "codes of input want input_sf"),
        "few scales of codes": (call(fp4, input=ones(2, 64, t=np.uint8), input_sf=ones(8, t=np.uint8)), shape, "input_sf has 8 bytes"),
        "mxfp8": (call(tensor, use_mxfp8_act_scaling=True), refused, "use_mxfp8_act_scaling"),
        "a limit": (call(block, swiglu_limit=ones(2)), vivace.InvalidArgumentError, r"swiglu_limit is float32 \[2\], wanted float32 \[3\]"),
        "a limit of another": (call(block, situ_beta=ones(3)), refused, "situ_beta has no part in Swiglu"),
        "mxfp4's order": (words(c1, "fp4"), refused, "'fp4': int4 is served"),
        "words of 8": (words(c1[:, :8], "int4"), shape, "N a multiple of 16"),
        "words of floats": (words(ones(3, 16, 32), "int4"), dtype, "uint8, two a byte"),
        "folds of 32": (folds(ones(3, 64, 1, t=np.float16)), refused, "group_size 32"),
        "folds of rows": (folds(ones(3, 32, 1, t=np.float16), 128), shape, "N a multiple of 64"),
        "folds of float32": (folds(ones(3, 64, 1), 128), dtype, "scales are float32"),
    }


@pytest.mark.parametrize("what", bad_calls("numpy"))
def test_bad_calls(home, what):
    call, error, said = bad_calls(home)[what]
    if error is None:
        assert call()[0].shape == (2, 64)
        return
    with pytest.raises(error, match=said):
        call()


@pytest.mark.skipif(not (torch and torch.cuda.is_available()), reason="captures on a GPU")
def test_captured(home):
    if home != "cuda":
        pytest.skip("captures on a GPU")
    d = Drawn(3, ActivationType.Relu, ([64], [32], [16]))
    x, w1, w2, s = d.codes((d.T, d.H)), d.codes(d.fc1), d.codes(d.fc2), [d.powers(d.E), d.powers(), d.powers(d.E), d.powers()]
    args, scales, ids, weights = [give(home, a) for a in (x, w1, w2)], [put(home, v) for v in s], put(home, d.experts), put(home, d.weights)
    out = put(home, np.zeros((d.T, d.N), np.float32))
    biases = {n: put(home, b) for n, b in zip(("fc1_expert_biases", "fc2_expert_biases"), d.biases) if b is not None}
    step = lambda: flashinfer.cutlass_fused_moe(args[0], ids, weights, args[1], args[2], out.dtype, scales, output=out, activation_type=d.kind, **biases)  # noqa: E731
    step(), torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    d.experts = d.experts[::-1].copy()
    ids.copy_(put(home, d.experts)), out.zero_()
    graph.replay(), torch.cuda.synchronize()
    d.check(out, d.want(*(a.astype(np.float64) for a in (x, w1, w2)), enter2=lambda h, e: e4m3(h * s[1]).astype(np.float64), scale1=s[0], scale2=s[2]))
