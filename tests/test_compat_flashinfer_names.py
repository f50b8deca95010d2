"""FlashInfer's names beyond attention: norm, activation, rope, sampling, gemm, against float64 references written here, of drawn shapes."""
import ml_dtypes
import numpy as np
import pytest

import vivace
from tests.ref.gemm import tensor_unit_error
from tests.test_compat_flashinfer import HOMES, back, put, torch
from vivace.compat import flashinfer

pytestmark = pytest.mark.parametrize("home", HOMES)
EPS = 1e-6


def draw(seed):
    return np.random.default_rng(seed)


def to_f64(x):
    """Of either library, of any type."""
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.double().cpu().numpy()


def near(got, want, bound=1e-5):
    got = to_f64(got)
    assert got.shape == want.shape
    assert np.allclose(got, want, atol=bound, rtol=bound), float(np.abs(got - want).max())


def rms(x, w, plus=0.0):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * (w + plus)


def layer(x, w, b):
    x = x.astype(np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS) * w + b


def cut(home, r, *shape):
    """An array of that shape which is a part of a wider one in one of its axes, or all of it."""
    axis, more = int(r.integers(0, len(shape) + 1)), [*shape]
    if axis < len(shape):
        more[axis] += int(r.integers(1, 9))
    whole = put(home, r.standard_normal(more, np.float32))
    return whole[tuple(slice(0, n) for n in shape)]


@pytest.mark.parametrize("seed", range(24))
def test_norms(home, seed):
    r = draw(seed)
    shape = [int(r.integers(1, 8)) for _ in range(int(r.integers(1, 4)))] + [int(r.choice([1, 7, 64, 111, 500, 1024]))]
    while True:
        x = cut(home, r, *shape)
        if x.shape[-1] == 1 or (x.strides[-1] == x.itemsize if home == "numpy" else x.stride(-1) == 1):
            break
    w, b = r.standard_normal(shape[-1], np.float32), r.standard_normal(shape[-1], np.float32)
    wide = to_f64(x)
    near(flashinfer.rmsnorm(x, put(home, w), EPS), rms(wide, w))
    out = put(home, np.zeros(shape, np.float32))
    assert flashinfer.norm.gemma_rmsnorm(x, put(home, w), EPS, out=out) is out
    near(out, rms(wide, w, 1.0))
    near(flashinfer.norm.layernorm(x, put(home, w), put(home, b), EPS), layer(wide, w, b), 2e-5)
    for call, plus in ((flashinfer.fused_add_rmsnorm, 0.0), (flashinfer.gemma_fused_add_rmsnorm, 1.0)):
        y, residual = put(home, wide.astype(np.float32)), put(home, r.standard_normal(shape, np.float32))
        total = wide.astype(np.float32) + back(residual)
        call(y, residual, put(home, w), EPS)
        near(y, rms(total, w, plus)), near(residual, total.astype(np.float64))


@pytest.mark.parametrize("form", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_quantized_norms(home, form, scale):
    r, kind = draw(3), getattr(ml_dtypes, form)
    x, residual, w, b = (r.standard_normal(s, np.float32) for s in ((5, 256), (5, 256), 256, 256))
    largest = float(ml_dtypes.finfo(kind).max)

    def out():
        return np.zeros((5, 256), kind) if home == "numpy" else torch.zeros((5, 256), dtype=getattr(torch, form), device=put(home, x).device)

    def check(got, want):
        want = np.clip(want / scale, -largest, largest)
        step = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(want), 2.0**-14))) - (3 if form == "float8_e4m3fn" else 2))
        assert (np.abs(to_f64(got) - want) <= np.maximum(step, 2.0**-9 if form == "float8_e4m3fn" else 2.0**-16)).all()

    for s in (scale, put(home, np.float32([scale]))):
        y = out()
        flashinfer.norm.rmsnorm_quant(y, put(home, x), put(home, w), s, EPS)
        check(y, rms(x, w))
        y, held = out(), put(home, residual.copy())
        flashinfer.norm.fused_add_rmsnorm_quant(y, put(home, x), held, put(home, w), s, EPS)
        check(y, rms(x + residual, w)), near(held, (x + residual).astype(np.float64))
        y = out()
        flashinfer.norm.layernorm_quant(y, put(home, x), put(home, w), put(home, b), s, EPS)
        check(y, layer(x, w, b))


@pytest.mark.parametrize("seed", range(8))
def test_activations(home, seed):
    r = draw(seed)
    shape = [int(r.integers(1, 6)) for _ in range(int(r.integers(0, 3)))] + [2 * int(r.choice([1, 33, 64, 300]))]
    x = r.standard_normal(shape, np.float32)
    wide, half = x.astype(np.float64), shape[-1] // 2
    g, u = wide[..., :half], wide[..., half:]
    erf = np.vectorize(__import__("math").erf)
    for call, want in ((flashinfer.silu_and_mul, g / (1 + np.exp(-g))), (flashinfer.gelu_and_mul, g / 2 * (1 + erf(g / np.sqrt(2)))),
                       (flashinfer.activation.gelu_tanh_and_mul, g / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))))):
        near(call(put(home, x)), want * u)
    out = put(home, np.zeros((*shape[:-1], half), np.float32))
    assert flashinfer.silu_and_mul(put(home, x), out=out) is out


def turned(x, pos, freqs, interleave):
    x, half = x.astype(np.float64).copy(), len(freqs)
    angle = (np.float32(pos)[:, None] * np.float32(freqs))[:, None].astype(np.float64)
    pair = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleave else (slice(0, half), slice(half, 2 * half))
    a, b = x[..., pair[0]].copy(), x[..., pair[1]].copy()
    x[..., pair[0]], x[..., pair[1]] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return x


@pytest.mark.parametrize("seed", range(12))
def test_rope(home, seed):
    r = draw(seed)
    lengths, D = r.integers(0, 9, int(r.integers(1, 6))), int(r.choice([64, 80, 128]))
    part, interleave, llama31 = int(r.choice([D, D // 2, 16])), bool(r.integers(2)), bool(r.integers(2))
    indptr, offsets = np.concatenate([[0], np.cumsum(lengths)]), r.integers(0, 900, len(lengths))
    pos = np.concatenate([np.arange(n) + o for n, o in zip(lengths, offsets)]).astype(np.int64)
    q, k = (r.standard_normal((len(pos), heads, D), np.float32) for heads in (6, 2))
    theta, scale = (5e5, 8.0) if llama31 else (1e4, float(r.choice([1.0, 2.5])))
    freqs = theta ** (-2 * np.arange(part // 2) / part)
    if llama31:
        wave = 2 * np.pi / freqs
        mixed = (1 - (8192 / wave - 1) / 3) * freqs / 8 + (8192 / wave - 1) / 3 * freqs
        freqs = np.where(wave < 8192 / 4, freqs, np.where(wave > 8192, freqs / 8, mixed))
    else:
        freqs = freqs / scale
    name, more = ("apply_llama31_rope" if llama31 else "apply_rope"), dict(rotary_dim=part, interleave=interleave, rope_scale=scale, rope_theta=theta)
    want = [turned(x, pos, freqs, interleave) for x in (q, k)]
    kind = np.int32 if r.integers(2) else np.int64
    by_request = [put(home, indptr.astype(kind)), put(home, offsets.astype(kind))]
    for form, where in ((name, by_request), (f"{name}_pos_ids", [put(home, pos.astype(kind))])):
        for got, w in zip(getattr(flashinfer, form)(put(home, q), put(home, k), *where, **more), want):
            near(got, w, 3e-4)
        both = put(home, np.concatenate([q, k], 1))  # rows that are parts of wider ones
        getattr(flashinfer, f"{form}_inplace")(both[:, :6], both[:, 6:], *where, **more)
        near(both, np.concatenate(want, 1), 3e-4)
    table = np.concatenate([np.cos(np.arange(1000)[:, None] * freqs), np.sin(np.arange(1000)[:, None] * freqs)], 1).astype(np.float32)
    flat = [x.reshape(len(pos), -1) for x in (q, k)]
    got = flashinfer.apply_rope_with_cos_sin_cache(put(home, pos), *(put(home, x) for x in flat), D, put(home, table), is_neox=not interleave)
    for g, w in zip(got, want):
        near(g, w.reshape(len(pos), -1), 3e-4)
    mine = [put(home, x.copy()) for x in flat]
    flashinfer.rope.apply_rope_with_cos_sin_cache_inplace(put(home, pos), *mine, D, put(home, table), is_neox=not interleave)
    assert all((back(a) == back(b)).all() for a, b in zip(mine, got))


def probs_of(seed, rows, V):
    p = draw(seed).dirichlet(np.full(V, 0.5), rows)
    return np.float32(p)


def allowed(p, top_k=None, top_p=None, joint=False):
    """Which tokens of a row both limits keep, ties aside."""
    order = np.argsort(-p, kind="stable")
    keep = np.zeros(len(p), bool)
    first = order[: top_k or len(p)]
    base = p.sum() if joint else p[first].sum()
    ahead = np.cumsum(p[first]) - p[first]
    keep[first[ahead < (top_p or 1) * base * (1 + 1e-6)]] = True
    return keep


@pytest.mark.parametrize("seed", range(10))
def test_draws_stay_within_their_limits(home, seed):
    r = draw(seed)
    rows, V = int(r.integers(1, 30)), int(r.choice([5, 33, 111, 1000]))
    p = probs_of(seed, rows, V)
    ks, ps = r.integers(1, V + 3, rows).astype(np.int32), r.uniform(0.05, 1, rows).astype(np.float32)
    limits = [(int(ks[0]), float(ps[0]))] * rows if seed % 2 else list(zip(ks.tolist(), ps.tolist()))
    k, q = (limits[0][0], limits[0][1]) if seed % 2 else (put(home, ks), put(home, ps))
    x, logits = put(home, p), put(home, np.log(np.maximum(p, 1e-30)))
    noise = dict(seed=int(r.integers(1 << 62)), offset=int(r.integers(1 << 40)))
    joint = dict(filter_apply_order="joint")
    drawn = {
        "p": (flashinfer.top_p_sampling_from_probs(x, q, **noise), lambda i: allowed(p[i], top_p=limits[i][1])),
        "k": (flashinfer.top_k_sampling_from_probs(x, k, **noise), lambda i: allowed(p[i], top_k=limits[i][0])),
        "min": (flashinfer.min_p_sampling_from_probs(x, q, **noise), lambda i: p[i] >= p[i].max() * np.float32(limits[i][1])),
        "first": (flashinfer.top_k_top_p_sampling_from_probs(x, k, q, **noise), lambda i: allowed(p[i], *limits[i])),
        "joint": (flashinfer.top_k_top_p_sampling_from_probs(x, k, q, **joint, **noise), lambda i: allowed(p[i], *limits[i], joint=True)),
        "logits": (flashinfer.top_k_top_p_sampling_from_logits(logits, k, q, **noise), lambda i: allowed(p[i], *limits[i])),
        "both": (flashinfer.top_k_top_p_sampling_from_logits(logits, k, q, **joint, **noise), lambda i: allowed(p[i], *limits[i], joint=True)),
    }
    for name, (tokens, keeps) in drawn.items():
        tokens = back(tokens)
        assert tokens.shape == (rows,) and tokens.dtype == np.int32
        assert all(keeps(i)[t] for i, t in enumerate(tokens)), name
    again = flashinfer.top_p_sampling_from_probs(x, q, **noise)
    assert (back(again) == back(drawn["p"][0])).all()


def test_draws_come_as_often_as_their_probability(home):
    p, n = np.float32([0.5, 0.25, 0.125, 0.0, 0.125]), 40_000
    where = put(home, np.zeros(n, np.int64))
    for tokens, want in ((flashinfer.sampling_from_probs(put(home, p[None]), indices=where, seed=7, offset=0), p),
                         (flashinfer.sampling_from_logits(put(home, np.log(np.maximum(p, 1e-37))[None]), indices=where, seed=7, offset=1), p),
                         (flashinfer.top_k_sampling_from_probs(put(home, p[None]), 2, indices=where, seed=7, offset=2), np.float32([2 / 3, 1 / 3, 0, 0, 0]))):
        assert back(tokens).dtype == np.int64  # as the indices
        assert np.abs(np.bincount(back(tokens), minlength=5) / n - want).max() < 0.012
    x = put(home, np.tile(p, (512, 1)))
    seen = [back(flashinfer.sampling_from_probs(x, seed=s, offset=o)) for s, o in ((1, 0), (2, 0), (1, 1), (1, 1 << 31), (1, 0))]
    assert (seen[0] == seen[4]).all() and all((seen[i] != seen[j]).any() for i in range(4) for j in range(i))
    assert (back(flashinfer.sampling_from_probs(x)) != back(flashinfer.sampling_from_probs(x))).any()  # seeds of their own


def test_a_row_of_nothing(home):
    p = np.float32([[0, 0, 0], [0, 1, 0]])
    tokens, valid = flashinfer.sampling_from_probs(put(home, p), return_valid=True)
    assert back(tokens).tolist() == [0, 1] and back(valid).tolist() == [False, True]  # as FlashInfer's: 0 and not valid
    assert back(flashinfer.sampling_from_probs(put(home, p))).tolist() == [-1, 1]
    p = np.float32([[0.5, np.nan, 0.5], [0, 1, 0]])
    for call, limit in ((flashinfer.top_k_sampling_from_probs, 2), (flashinfer.top_p_sampling_from_probs, 0.5), (flashinfer.min_p_sampling_from_probs, 0.5)):
        tokens, valid = call(put(home, p), limit, return_valid=True)
        assert back(tokens).tolist() == [0, 1] and back(valid).tolist() == [False, True]


def test_limits_tell_probabilities_apart_whose_logarithms_are_equal(home):
    V, n = 200, 4000
    p = np.float32(1e-5) * (1 + draw(3).permutation(V).astype(np.float32) * 2.0**-23)
    assert len(np.unique(p)) > 100 > len(np.unique(np.log(p)))
    x, rows = put(home, p[None]), put(home, np.zeros(n, np.int64))
    least = np.sort(p)[::-1][19]
    assert set(p[back(flashinfer.top_k_sampling_from_probs(x, 20, indices=rows, seed=1, offset=0))]) <= set(p[p >= least])
    min_p = np.float32(1 - 2.0**-20)
    tokens = back(flashinfer.min_p_sampling_from_probs(x, float(min_p), indices=rows, seed=1, offset=0))
    assert (p[tokens] >= p.max() * min_p).all() and (p < p.max() * min_p).any()
    assert (p[back(flashinfer.min_p_sampling_from_probs(x, 2.0, indices=rows, seed=1, offset=0))] == p.max()).all()  # the most probable always stays


def test_draws_by_index_do_not_know_how_many_rows_are_gathered(home, monkeypatch):
    x, rows, k = put(home, probs_of(1, 3, 50)), put(home, draw(2).integers(0, 3, 37)), put(home, draw(4).integers(1, 50, 37).astype(np.int32))
    calls = (lambda: flashinfer.sampling_from_probs(x, indices=rows, seed=5, offset=1), lambda: flashinfer.top_k_sampling_from_probs(x, k, indices=rows, seed=5, offset=1),
             lambda: flashinfer.top_k_top_p_sampling_from_logits(x, k, 0.5, indices=rows, seed=5, offset=1))
    whole = [back(c()) for c in calls]
    monkeypatch.setattr("vivace.compat.flashinfer.sampling.GATHERED", 200)  # four rows of 50
    assert all((back(c()) == w).all() for c, w in zip(calls, whole))


@pytest.mark.parametrize("seed", range(6))
def test_renormed_and_masked(home, seed):
    r = draw(seed)
    rows, V = int(r.integers(1, 12)), int(r.choice([7, 100, 1000]))
    p, k, q = probs_of(seed, rows, V), r.integers(1, V + 1, rows).astype(np.int32), r.uniform(0.1, 1, rows).astype(np.float32)
    for got, keeps in ((flashinfer.top_k_renorm_probs(put(home, p), put(home, k)), lambda i: allowed(p[i], top_k=k[i])),
                       (flashinfer.top_p_renorm_probs(put(home, p), put(home, q)), lambda i: allowed(p[i], top_p=q[i]))):
        near(got, np.stack([np.where(keeps(i), p[i], 0).astype(np.float64) / p[i][keeps(i)].sum(dtype=np.float64) for i in range(rows)]))
    logits = r.standard_normal((rows, V), np.float32)
    masked = np.where(r.random((rows, V)) < 0.2, np.float32(-np.inf), logits)  # tokens that cannot come stay so
    got = back(flashinfer.top_k_mask_logits(put(home, masked), put(home, k)))
    assert (got == np.where(masked >= np.take_along_axis(np.sort(masked, -1)[:, ::-1], k[:, None] - 1, 1), masked, -np.inf)).all()
    got = back(flashinfer.top_k_mask_logits(put(home, logits), put(home, k)))
    want = np.where(logits >= np.take_along_axis(np.sort(logits, -1)[:, ::-1], k[:, None] - 1, 1), logits, -np.inf)
    assert (got == want).all()
    temperature = r.uniform(0.3, 2, rows).astype(np.float32)
    e = np.exp(logits / temperature[:, None].astype(np.float64))
    near(flashinfer.softmax(put(home, logits), put(home, temperature)), e / e.sum(-1, keepdims=True))
    e = np.exp(logits / np.float64(0.7))
    near(flashinfer.sampling.softmax(put(home, logits), 0.7), e / e.sum(-1, keepdims=True))


def test_chains(home):
    """Accepted as often as min(1, p/q) says; the token after the prefix by p less q; counts add up."""
    B, N, V = 4000, 3, 4
    r = draw(5)
    q1, p1 = np.float32([0.4, 0.3, 0.2, 0.1]), np.float32([0.1, 0.3, 0.2, 0.4])
    draft = r.choice(V, (B, N), p=q1 / q1.sum())
    q, p = np.tile(q1, (B, N, 1)), np.tile(p1, (B, N + 1, 1))
    held = [put(home, np.full(B, 5, np.int32)) for _ in range(2)]
    tokens, accepted, emitted = flashinfer.chain_speculative_sampling(put(home, q), put(home, draft), put(home, p), *held, seed=9, offset=4)
    assert accepted is held[0] and emitted is held[1]
    tokens, accepted, emitted = back(tokens), back(accepted) - 5, back(emitted) - 5
    rate = np.minimum(p1, q1).sum()
    assert abs(accepted.mean() / N - rate) < 0.02 and abs((emitted > 0).mean() - rate) < 0.03 and (accepted >= emitted).all()
    assert ((tokens >= 0).sum(1) == emitted + 1).all()
    for row in range(B):
        n = emitted[row]
        assert (tokens[row, :n] == draft[row, :n]).all() and (tokens[row, n + 1:] == -1).all()
    assert np.abs(np.bincount(tokens[:, 0], minlength=V) / B - p1).max() < 0.03  # the first token is distributed as p
    sure = np.zeros((B, N + 1, V), np.float32)
    np.put_along_axis(sure, np.concatenate([draft, draft[:, :1]], 1)[..., None], 1, 2)
    tokens, accepted, emitted = flashinfer.sampling.chain_speculative_sampling(put(home, q), put(home, draft), put(home, sure))
    assert (back(emitted) == N).all() and (back(accepted) == N).all() and (back(tokens)[:, :N] == draft).all() and (back(tokens)[:, N] == draft[:, 0]).all()


@pytest.mark.parametrize("seed", range(6))
def test_products(home, seed):
    r = draw(seed)
    b, m, n, k = (int(v) for v in r.integers([1, 1, 1, 1], [4, 70, 40, 70]))
    kind = ml_dtypes.bfloat16
    a, w = r.standard_normal((b, m, k), np.float32).astype(kind), r.standard_normal((b, n, k), np.float32).astype(kind)
    bias = r.standard_normal(n, np.float32)

    def place(x, form="bfloat16"):
        return x if home == "numpy" else put(home, x.view(np.uint8 if x.itemsize == 1 else np.int16)).view(getattr(torch, form))

    x, y = place(a), place(w)
    want = a.astype(np.float64) @ w.astype(np.float64).swapaxes(1, 2)
    turned_w = y.swapaxes(1, 2) if home == "numpy" else y.transpose(1, 2)
    rough = np.abs(want).max() * 2.0**-8 + 1e-6
    assert np.abs(to_f64(flashinfer.bmm_bf16(x, turned_w)) - want).max() <= rough
    f32 = np.dtype(np.float32) if home == "numpy" else torch.float32
    near(flashinfer.gemm.mm_bf16(x[0], turned_w[0], bias=put(home, bias), out_dtype=f32), want[0] + bias, 1e-4)
    row_major = turned_w.copy() if home == "numpy" else turned_w.contiguous()
    near(flashinfer.bmm_bf16(x, row_major, out_dtype=f32), want, 1e-4)
    for forms in (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn")):
        a8, w8 = a.astype(getattr(ml_dtypes, forms[0])), w.astype(getattr(ml_dtypes, forms[1]))
        x8, y8 = place(a8, forms[0]), place(w8, forms[1])
        y8 = y8.swapaxes(1, 2) if home == "numpy" else y8.transpose(1, 2)
        got = flashinfer.bmm_fp8(x8, y8, put(home, np.float32([0.5])), put(home, np.float32([3.0])), f32)
        a64, w64 = a8.astype(np.float64), w8.astype(np.float64)
        lost = np.stack([tensor_unit_error(*pair, fast=False) for pair in zip(a64, w64)])  # a GPU's tensor core keeps 14 bits
        near(got, 1.5 * (a64 @ w64.swapaxes(1, 2)), 1e-3 + 1.5 * lost)


@pytest.mark.parametrize("mode", ["K", "MN"])
def test_groupwise_products(home, mode):
    r, m, n, k = draw(1), 130, 256, 384
    form = ml_dtypes.float8_e4m3fn
    a, w = (r.standard_normal(s, np.float32).astype(form) for s in ((m, k), (n, k)))
    xs, ws, blocks = (r.uniform(0.5, 2, s).astype(np.float32) for s in ((m, k // 128), (n // 128, k // 128), ((m + 127) // 128, k // 128)))

    def place(x):
        return x if home == "numpy" else put(home, x.view(np.uint8)).view(torch.float8_e4m3fn)

    def order(s):
        return put(home, np.ascontiguousarray(s.T) if mode == "MN" else s)

    f32 = np.dtype(np.float32) if home == "numpy" else torch.float32
    wide = np.repeat(np.repeat(ws, 128, 0), 128, 1) * w.astype(np.float64)
    near(flashinfer.gemm.gemm_fp8_nt_groupwise(place(a), place(w), order(xs), order(ws), mode, out_dtype=f32), (np.repeat(xs, 128, 1) * a.astype(np.float64)) @ wide.T, 2e-3)
    near(flashinfer.gemm.gemm_fp8_nt_blockscaled(place(a), place(w), order(blocks), order(ws), mode, out_dtype=f32),
         (np.repeat(np.repeat(blocks, 128, 0)[:m], 128, 1) * a.astype(np.float64)) @ wide.T, 2e-3)


@pytest.mark.parametrize("seed", range(6))
def test_segments(home, seed):
    r = draw(seed)
    lengths, E, n, k = r.integers(0, 20, int(r.integers(1, 6))), 7, int(r.integers(1, 50)), int(r.integers(1, 50))
    indptr, which = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), r.integers(0, E, len(lengths))
    x, w = r.standard_normal((int(indptr[-1]), k), np.float32), r.standard_normal((E, n, k), np.float32)
    want = np.concatenate([x[b:e].astype(np.float64) @ w[i].astype(np.float64).T for b, e, i in zip(indptr, indptr[1:], which)])
    run = flashinfer.SegmentGEMMWrapper(None).run
    near(run(put(home, x), put(home, w), len(lengths), True, seg_indptr=put(home, indptr), weight_indices=put(home, which)), want, 1e-4)
    near(run(put(home, x), put(home, np.ascontiguousarray(w.swapaxes(1, 2))), len(lengths), False, seg_lens=put(home, lengths), weight_indices=put(home, which)), want, 1e-4)
    at = "torch" if home == "cuda" else home  # lengths on the host, as FlashInfer's own tests give them
    near(run(put(home, x), put(home, w), len(lengths), True, seg_lens=put(at, lengths), weight_indices=put(at, which)), want, 1e-4)


def bad_calls(home):
    x, p = put(home, np.ones((2, 8), np.float32)), put(home, np.full((2, 4), 0.25, np.float32))
    q = put(home, np.ones((3, 2, 64), np.float32))
    two = put(home, np.ones((2, 1), np.float32))
    return {
        "out of another shape": (lambda: flashinfer.rmsnorm(x, x[0], out=p), "wanted the same"),
        "out is not float8": (lambda: flashinfer.norm.rmsnorm_quant(x, x, x[0], 1.0), "float8_e4m3fn or float8_e5m2"),
        "an odd width": (lambda: flashinfer.silu_and_mul(x[:, :7]), "2 \\* hidden_size"),
        "rotary_dim": (lambda: flashinfer.apply_rope_pos_ids(q, q, put(home, np.arange(3)), rotary_dim=65), "rotary_dim 65"),
        "offsets": (lambda: flashinfer.apply_rope(q, q, put(home, np.array([0, 3])), put(home, np.array([0, 0]))), "one more"),
        "top_p of two axes": (lambda: flashinfer.top_p_sampling_from_probs(p, two), "Expected a 1D tensor or scalar for top_p"),
        "top_k of three rows": (lambda: flashinfer.top_k_sampling_from_probs(p, put(home, np.ones(3, np.int32))), "3 entries for 2 rows"),
        "offset alone": (lambda: flashinfer.sampling_from_probs(p, offset=1), "offset without seed"),
        "NaN": (lambda: flashinfer.sampling_from_probs(p * np.nan, check_nan=True), "contains NaN"),
        "order": (lambda: flashinfer.top_k_top_p_sampling_from_probs(p, 2, 0.5, filter_apply_order="p"), "top_k_first or joint"),
        "temperature": (lambda: flashinfer.softmax(p, 0.0), "more than 0"),
        "granularity": (lambda: flashinfer.gemm_fp8_nt_groupwise(x, x, x, x, "K", scale_granularity_mnk=(128, 128, 128)), "is served"),
        "mode": (lambda: flashinfer.gemm_fp8_nt_groupwise(x, x, x, x, None), "K or MN"),
        "both lengths": (lambda: flashinfer.SegmentGEMMWrapper().run(x, x[None], 1, True), "one of seg_lens"),
        "a list": (lambda: flashinfer.rmsnorm([1.0], x[0]), "torch tensor or a NumPy array"),
    }


@pytest.mark.parametrize("what", bad_calls("numpy"))
def test_bad_calls(home, what):
    call, said = bad_calls(home)[what]
    with pytest.raises(vivace.Error, match=said):
        call()
