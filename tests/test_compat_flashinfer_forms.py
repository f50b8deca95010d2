"""Forms of keys and of calls that vivace.compat.flashinfer makes copies or several ops for, against float64 math:
rotation, strided keys, NVFP4 and float8 caches, shared prefixes, plans of captured graphs, composed wrappers."""
import ml_dtypes
import numpy as np
import pytest

import vivace
from tests.test_compat_flashinfer import HOMES, KEYS, QUERIES, Pages, back, draw, near, order, put, reference, torch
from vivace.compat import flashinfer

pytestmark = pytest.mark.parametrize("home", HOMES)
QO = np.cumsum([0, *QUERIES]).astype(np.int32)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def turned(x, pos, theta=1e4, scale=1.0):
    """x [T, H, D] in float64 turned by halves."""
    half = x.shape[-1] // 2
    angle = np.asarray(pos)[:, None] * theta ** (-np.arange(half) / half) / scale
    c, s, a, b = np.cos(angle)[:, None], np.sin(angle)[:, None], x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def give(home, x, dtype):
    """x in that type, which NumPy has from ml_dtypes."""
    return x.astype(getattr(ml_dtypes, dtype, dtype)) if home == "numpy" else put(home, x).to(getattr(torch, dtype))


def wide(x):
    """Float64 values of an array of any type, of either library."""
    return (x if isinstance(x, np.ndarray) else x.float().cpu().numpy()).astype(np.float64)


def causal(n, L):
    return np.arange(L) <= np.arange(L - n, L)[:, None]


def plan_and_run(home, which, p, q, layout="NHD", settings={}, more={}, **run):
    """A batch of QUERIES and KEYS through a paged or ragged wrapper, causal."""
    args = (put(home, QO), *p.tables(home), 4, 2, q.shape[-1], p.size) if which == "paged" else (put(home, QO), put(home, np.cumsum([0, *KEYS]).astype(np.int32)), 4, 2, q.shape[-1])
    w = (flashinfer.BatchPrefillWithPagedKVCacheWrapper if which == "paged" else flashinfer.BatchPrefillWithRaggedKVCacheWrapper)(put(home, np.zeros(1, np.uint8)), layout, **more)
    w.plan(*args, causal=True, **settings)
    kv = (put(home, order(p.cache, layout)),) if which == "paged" else (put(home, np.concatenate(p.k)), put(home, np.concatenate(p.v)))
    return w.run(put(home, q), *kv, return_lse=True, **run)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("rope", [{}, {"rope_theta": 5e5, "rope_scale": 4.0}], ids=str)
def test_rotation_of_one_request(home, rope, layout):
    q, k, v = draw(0, 11, 4, 16), draw(1, 25, 2, 16), draw(2, 25, 2, 16)
    out, lse = flashinfer.single_prefill_with_kv_cache_return_lse(put(home, q), *(put(home, order(a, layout)) for a in (k, v)), kv_layout=layout, causal=True, pos_encoding_mode="ROPE_LLAMA", **rope)
    how = (rope.get("rope_theta", 1e4), rope.get("rope_scale", 1.0))
    want = reference(turned(q, np.arange(14, 25), *how), turned(k, np.arange(25), *how), v, causal(11, 25))
    near(out, want[0]), near(lse, want[1])
    out = flashinfer.single_decode_with_kv_cache(put(home, q[0]), *(put(home, order(a, layout)) for a in (k, v)), kv_layout=layout, pos_encoding_mode="ROPE_LLAMA", **rope)
    near(out, reference(turned(q[:1], [24], *how), turned(k, np.arange(25), *how), v, np.ones((1, 25), bool))[0][0])


@pytest.mark.parametrize("which,layout", [("paged", "NHD"), ("paged", "HND"), ("ragged", "NHD")])
def test_rotation_of_a_batch(home, which, layout):
    p, q = Pages(KEYS), draw(0, sum(QUERIES), 4, 16)
    out, lse = plan_and_run(home, which, p, q, layout, {"pos_encoding_mode": "ROPE_LLAMA"})
    for r, (n, L) in enumerate(zip(QUERIES, KEYS)):
        rows = slice(QO[r], QO[r + 1])
        want = reference(turned(q[rows], np.arange(L - n, L)), turned(p.k[r], np.arange(L)), p.v[r], causal(n, L))
        near(out[rows], want[0]), near(lse[rows], want[1])


def test_strided_keys(home):
    """Keys and values of one packed array, of one request, of several, and in pages."""
    q, kv = draw(0, 5, 4, 16), draw(1, 9, 2, 2, 16)
    k, v = put(home, kv)[:, 0], put(home, kv)[:, 1]
    near(flashinfer.single_prefill_with_kv_cache(put(home, q), k, v, causal=True), reference(q, kv[:, 0], kv[:, 1], causal(5, 9))[0])
    w = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    w.plan(put(home, np.array([0, 2, 5], np.int32)), put(home, np.array([0, 4, 9], np.int32)), 4, 2, 16)
    out = w.run(put(home, q), k, v)
    for a, b, c, d in ((0, 2, 0, 4), (2, 5, 4, 9)):
        near(out[a:b], reference(q[a:b], kv[c:d, 0], kv[c:d, 1], np.ones((b - a, d - c), bool))[0])
    p, q = Pages(KEYS), draw(0, sum(QUERIES), 4, 16)
    spread = np.full((len(p.cache), 2, 4, 2, 3, 2, 16), np.nan, np.float32)  # other pages' places and heads in between
    spread[:, :, :, 1, :2, 1] = p.cache
    w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    w.plan(put(home, QO), *p.tables(home), 4, 2, 16, 4, causal=True)
    out = w.run(put(home, q), put(home, spread)[:, :, :, 1, :2, 1])
    for r, (n, L) in enumerate(zip(QUERIES, KEYS)):
        near(out[QO[r] : QO[r + 1]], reference(q[QO[r] : QO[r + 1]], p.k[r], p.v[r], causal(n, L))[0])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("seed", range(3))
def test_append_to_a_strided_cache(home, layout, seed):
    """Rows whose request is negative write nothing, wherever they stand; also a call whose rows all do."""
    rng, p = np.random.default_rng(seed), Pages([9, 3, 8])
    start = np.full((*order(p.cache, layout).shape[:-1], 2, 16), 7, np.float32)
    cache, tables = put(home, start.copy()), p.tables(home)
    batch = np.repeat([0, 1, 2], [9, 3, 8]).astype(np.int32)
    pos = np.concatenate([np.arange(n) for n in (9, 3, 8)]).astype(np.int32)
    batch[rng.random(20) < (1 if seed == 2 else 0.4)] = -1
    mix = rng.permutation(20)
    rows = [np.concatenate(a) for a in (p.k, p.v)]
    flashinfer.append_paged_kv_cache(*(put(home, a[mix]) for a in rows), put(home, batch[mix]), put(home, pos[mix]), cache[..., 1, :], tables[1], tables[0], tables[2], kv_layout=layout)
    want = start.copy()
    for i in np.flatnonzero(batch >= 0):
        page, place = p.indices[p.indptr[batch[i]] + pos[i] // 4], pos[i] % 4
        for half in (0, 1):
            want[(page, half, slice(None), place, 1) if layout == "HND" else (page, half, place, slice(None), 1)] = rows[half][i]
    assert np.array_equal(back(cache), want)


def values_of(codes, scales):
    """Float64 values of NVFP4 codes with scales as bytes."""
    pairs = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
    return E2M1[pairs] * np.repeat(scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64), 16, -1)


def nvfp4_pages(layout, size=4, D=32, seed=3):
    """Tables of KEYS, codes and scales of a cache, its float64 values."""
    p, rng = Pages(KEYS, size, 2, D), np.random.default_rng(seed)
    shape = order(p.cache, layout).shape
    codes = rng.integers(0, 256, (*shape[:-1], D // 2), np.uint8)
    scales = rng.uniform(0.1, 1.5, (*shape[:-1], D // 16)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    values = values_of(codes, scales)
    values = values.swapaxes(2, 3) if layout == "HND" else values
    rows = [[np.array([values[p.indices[p.indptr[r] + j // size], half, j % size] for j in range(n)]) for r, n in enumerate(KEYS)] for half in (0, 1)]
    return p, codes, scales, rows


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("mode", ["NONE", "ROPE_LLAMA"])
def test_nvfp4_cache(home, layout, mode):
    p, codes, scales, (keys, values) = nvfp4_pages(layout)
    q = draw(0, sum(QUERIES), 4, 32)
    w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)), layout)
    w.plan(put(home, QO), *p.tables(home), 4, 2, 32, 4, causal=True, kv_data_type="uint8", pos_encoding_mode=mode)
    out = w.run(put(home, q), put(home, codes), k_scale=0.5, v_scale=3.0, kv_cache_sf=put(home, scales))
    for r, (n, L) in enumerate(zip(QUERIES, KEYS)):
        rows = slice(QO[r], QO[r + 1])
        a, b = (turned(q[rows], np.arange(L - n, L)), turned(keys[r], np.arange(L))) if mode == "ROPE_LLAMA" else (q[rows], keys[r])
        near(out[rows], 3 * reference(a, b * 0.5, values[r], causal(n, L))[0], 1e-4)


def test_nvfp4_of_one_request(home):
    rng, q = np.random.default_rng(1), draw(0, 5, 4, 32)
    codes, scales = rng.integers(0, 256, (2, 9, 2, 16), np.uint8), rng.uniform(0.1, 1.5, (2, 9, 2, 2)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    k, v = values_of(codes, scales)
    out = flashinfer.single_prefill_with_kv_cache(put(home, q), *(put(home, c) for c in codes), kv_cache_sf=tuple(put(home, s) for s in scales), k_scale=0.25, v_scale=2.0, causal=True)
    near(out, 2 * reference(q, k * 0.25, v, causal(5, 9))[0], 1e-4)
    w = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    w.plan(put(home, np.array([0, 5], np.int32)), put(home, np.array([0, 9], np.int32)), 4, 2, 32, causal=True)
    near(w.run(put(home, q), *(put(home, c) for c in codes), kv_cache_sf=tuple(put(home, s) for s in scales), k_scale=0.25, v_scale=2.0), 2 * reference(q, k * 0.25, v, causal(5, 9))[0], 1e-4)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("by", ["tables", "slots"])
def test_nvfp4_append(home, layout, by):
    """Values within a code's step of what was appended; bytes of places that no row names stay."""
    p, D = Pages(KEYS, 4, 2, 32), 32
    shape = order(p.cache, layout).shape
    caches = [put(home, np.full((shape[0], *shape[2:-1], D // 2), 9, np.uint8)) for _ in range(2)]
    scales = [give(home, np.full((shape[0], *shape[2:-1], D // 16), 1.0, np.float32), "float8_e4m3fn") for _ in range(2)]
    batch = np.repeat(np.arange(4), KEYS).astype(np.int32)
    pos = np.concatenate([np.arange(n) for n in KEYS]).astype(np.int32)
    batch[[1, 12]] = -1
    rows = [give(home, np.concatenate(a), "float16") for a in (p.k, p.v)]
    k_scale, v_scale = 0.25, 0.5
    if by == "tables":
        indptr, indices, last = p.tables(home)
        flashinfer.nvfp4_quantize_append_paged_kv_cache(*rows, put(home, batch), put(home, pos), tuple(caches), tuple(scales), indices, indptr, last, k_scale, v_scale, kv_layout=layout)
    else:
        slots = np.where(batch >= 0, p.indices[np.where(batch >= 0, p.indptr[batch] + pos // 4, 0)] * 4 + pos % 4, 10**6)
        flashinfer.nvfp4_quantize_append_paged_kv_cache_with_slot_mapping(*rows, put(home, slots.astype(np.int64)), tuple(caches), tuple(scales), k_scale, put(home, np.array([v_scale], np.float32)), kv_layout=layout)
    for cache, sf, row, scale in zip(caches, scales, rows, (k_scale, v_scale)):
        codes = back(cache)
        factor = sf.view(np.uint8) if home == "numpy" else back(sf.view(torch.uint8))
        x, f = values_of(codes, factor) * scale, np.repeat(factor.view(ml_dtypes.float8_e4m3fn).astype(np.float64), 16, -1) * scale
        written = np.zeros(codes.shape[:-1], bool)
        want = wide(row)
        for i in np.flatnonzero(batch >= 0):
            at = (p.indices[p.indptr[batch[i]] + pos[i] // 4], pos[i] % 4)
            at = (at[0], slice(None), at[1]) if layout == "HND" else at
            written[at] = True
            # Half the widest step of e2m1, 2, in units of the block's scale, which e4m3 rounds by 1/16 at most.
            assert (np.abs(x[at] - want[i]) <= 1.1 * f[at]).all()
        assert (codes[~written] == 9).all() and (f[~written] == scale).all() and written.sum() == 2 * (batch >= 0).sum()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(home, dtype):
    """Keys, values and queries of float8, with scales a tensor and a head; the values are float8's, the bound float16's."""
    q, k, v = (give(home, x, dtype) for x in (draw(0, 5, 4, 16), draw(1, 9, 2, 16), draw(2, 9, 2, 16)))
    s = [np.array(a, np.float32) for a in ([0.5, 1, 2, 0.25], [1.5, 0.75], [2, 0.5])]
    out = flashinfer.single_prefill_with_kv_cache(q, k, v, *(put(home, a) for a in s), o_dtype=np.dtype("float16") if home == "numpy" else torch.float16, causal=True)
    near(wide(out), reference(*(wide(x) * a[:, None] for x, a in zip((q, k, v), s)), causal(5, 9))[0], 3e-3)
    half, p = give(home, draw(0, 5, 4, 16), "float16"), Pages([9])
    w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    w.plan(put(home, np.array([0, 5], np.int32)), *p.tables(home), 4, 2, 16, 4, causal=True)
    out = w.run(half, give(home, np.nan_to_num(p.cache), dtype), k_scale=0.5, v_scale=2.0)
    near(wide(out), 2 * reference(wide(half), wide(give(home, p.k[0], dtype)) * 0.5, wide(give(home, p.v[0], dtype)), causal(5, 9))[0], 3e-3)


@pytest.mark.parametrize("which", ["decode", "prefill"])
def test_shared_prefix(home, which):
    own, q = Pages([5, 9, 2]), draw(0, 3 if which == "decode" else 6, 4, 16)
    k, v = draw(7, 14, 2, 16), draw(8, 14, 2, 16)
    qo = np.arange(4, dtype=np.int32) if which == "decode" else np.array([0, 2, 5, 6], np.int32)
    w = (flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper if which == "decode" else flashinfer.BatchPrefillWithSharedPrefixPagedKVCacheWrapper)(put(home, np.zeros(1, np.uint8)))
    w.begin_forward(*([] if which == "decode" else [put(home, qo)]), *own.tables(home), 4, 2, 16, 4)
    out = w.forward(put(home, q), put(home, k), put(home, v), put(home, own.cache), **({} if which == "decode" else {"causal": True}))
    for r, L in enumerate(own.lengths):
        rows = slice(qo[r], qo[r + 1])
        n = qo[r + 1] - qo[r]
        near(out[rows], reference(q[rows], np.concatenate([k, own.k[r]]), np.concatenate([v, own.v[r]]), np.concatenate([np.ones((n, 14), bool), causal(n, L)], 1))[0])


@pytest.mark.parametrize("mode", ["NONE", "ROPE_LLAMA"])
def test_plans_of_a_captured_graph(home, mode):
    """A first plan of short requests, then longer ones within the index buffer: the same buffers, as a graph wants, and right results."""
    w = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)), indices_buffer=put(home, np.zeros(20, np.int32)))
    q, seen = draw(0, 3, 4, 16), None
    for lengths in ([1, 1, 1], [9, 30, 4], [2, 1, 17], [1, 50, 3]):
        p = Pages(lengths)
        w.plan(*p.tables(home), 4, 2, 16, 4, pos_encoding_mode=mode)
        buffers = [*w._buffers.values(), *w._gather.values()]
        assert seen is None or len(seen) == len(buffers) and all(a is b for a, b in zip(seen, buffers))
        seen = buffers
        out = w.run(put(home, q), put(home, p.cache))
        for r, n in enumerate(lengths):
            a, b = (turned(q[r : r + 1], [n - 1]), turned(p.k[r], np.arange(n))) if mode == "ROPE_LLAMA" else (q[r : r + 1], p.k[r])
            near(out[r : r + 1], reference(a, b, p.v[r], np.ones((1, n), bool))[0])
    with pytest.raises(vivace.errors.LimitExceededError, match="plan the largest first"):
        w.plan(*Pages([90, 1, 1]).tables(home), 4, 2, 16, 4, pos_encoding_mode=mode)
    with pytest.raises(vivace.errors.LimitExceededError):
        w.plan(*Pages([1, 1, 1, 1]).tables(home), 4, 2, 16, 4, pos_encoding_mode=mode)


def test_fewer_queries_than_a_graph_was_made_for(home):
    w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)), use_cuda_graph=True, paged_kv_indices_buf=put(home, np.zeros(20, np.int32)))
    p, q = Pages([9, 7]), draw(0, 8, 4, 16)
    for qo in ([0, 3, 8], [0, 1, 6]):
        w.plan(put(home, np.array(qo, np.int32)), *p.tables(home), 4, 2, 16, 4, causal=True)
        out = w.run(put(home, q), put(home, p.cache))
        for r, L in enumerate(p.lengths):
            near(out[qo[r] : qo[r + 1]], reference(q[qo[r] : qo[r + 1]], p.k[r], p.v[r], causal(qo[r + 1] - qo[r], L))[0])
        assert (back(out[qo[-1] :]) == 0).all()


def test_several_queries_a_request(home):
    p, q = Pages([9, 4, 17]), draw(0, 6, 4, 16)
    w = flashinfer.BatchDecodeWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    w.plan(*p.tables(home), 4, 2, 16, 4, q_len_per_req=2)
    flashinfer.fast_decode_plan(w, p.tables(home)[0], *p.tables(home)[1:], 4, 2, 16, 4, q_len_per_req=2, global_override_indptr_cpu=p.indptr)
    out = w.run(put(home, q), put(home, p.cache))
    for r, n in enumerate(p.lengths):
        near(out[2 * r : 2 * r + 2], reference(q[2 * r : 2 * r + 2], p.k[r], p.v[r], causal(2, n))[0])
    with pytest.raises(vivace.InvalidArgumentError, match="empty KV range"):
        w.plan(*p.tables(home), 4, 2, 16, 4, q_len_per_req=5)
    with pytest.raises(vivace.FailedPreconditionError, match="prior plan"):
        flashinfer.fast_decode_plan(flashinfer.BatchDecodeWithPagedKVCacheWrapper(None), *p.tables(home), 4, 2, 16, 4)


def test_mixed_batch_and_sinks(home):
    p, q, sinks = Pages(KEYS), draw(0, sum(QUERIES), 4, 16), draw(9, 4)
    w = flashinfer.BatchAttention()
    w.plan(put(home, QO), *p.tables(home)[:2], put(home, np.array(KEYS, np.int32)), 4, 2, 16, 16, 4, causal=True)
    out, lse = w.run(put(home, q), put(home, p.cache), v_scale=2.0)
    s = flashinfer.BatchAttentionWithAttentionSinkWrapper(put(home, np.zeros(1, np.uint8)), window_left=3)
    s.plan(put(home, QO), *p.tables(home), 4, 2, 16, 4, causal=True)
    sunk = s.run(put(home, q), put(home, p.cache), put(home, sinks), 0.3)
    for r, (n, L) in enumerate(zip(QUERIES, KEYS)):
        rows = slice(QO[r], QO[r + 1])
        want = reference(q[rows], p.k[r], p.v[r], causal(n, L))
        near(out[rows], 2 * want[0]), near(lse[rows], want[1])
        value, mass = reference(q[rows], p.k[r], p.v[r], causal(n, L) & (np.arange(L) >= np.arange(L - n, L)[:, None] - 3), 0.3)
        near(sunk[rows], value / (1 + np.exp2(sinks / np.log(2) - mass))[..., None])


def test_prefill_beside_decode(home):
    p, q, qp, k, v = Pages([9, 4]), draw(0, 2, 4, 16), draw(1, 5, 4, 16), draw(2, 8, 2, 16), draw(3, 8, 2, 16)
    w = flashinfer.PODWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    w.plan(*p.tables(home), 4, 2, 16, 4)
    prefill, decode = w.run(put(home, qp), put(home, k), put(home, v), put(home, q), put(home, p.cache), causal_p=True)
    near(prefill, reference(qp, k, v, causal(5, 8))[0])
    both = flashinfer.BatchPODWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    qo = np.array([0, 3, 5], np.int32)
    both.plan(put(home, qo), *p.tables(home), put(home, np.arange(3, dtype=np.int32)), *p.tables(home), 4, 2, 16, 4)
    parts = both.run(put(home, qp), put(home, p.cache), put(home, q), put(home, p.cache), causal_p=True)
    for r, n in enumerate(p.lengths):
        want = reference(q[r : r + 1], p.k[r], p.v[r], np.ones((1, n), bool))[0]
        near(decode[r : r + 1], want), near(parts[1][r : r + 1], want)
        near(parts[0][qo[r] : qo[r + 1]], reference(qp[qo[r] : qo[r + 1]], p.k[r], p.v[r], causal(qo[r + 1] - qo[r], n))[0])


@pytest.mark.parametrize("inside", [False, True])
def test_block_sparse(home, inside):
    R, C, rng = 3, 4, np.random.default_rng(2)
    blocks = rng.random((4, 5)) < 0.5
    blocks[2] = False
    q, k, v = draw(0, 12, 4, 16), draw(1, 20, 2, 16), draw(2, 20, 2, 16)
    indptr, indices = np.cumsum([0, *blocks.sum(1)]).astype(np.int32), np.nonzero(blocks)[1].astype(np.int32)
    mask = rng.random((len(indices), R, C)) < 0.6
    see = np.zeros((12, 20), bool)
    for i, (r, c) in enumerate(zip(*np.nonzero(blocks))):
        see[r * R : r * R + R, c * C : c * C + C] = mask[i] if inside else True
    w = flashinfer.BlockSparseAttentionWrapper(put(home, np.zeros(1, np.uint8)))
    w.plan(put(home, indptr), put(home, indices), 12, 20, R, C, 4, 2, 16, mask=put(home, mask) if inside else None)
    near(w.run(put(home, q), put(home, k), put(home, v)), reference(q, k, v, see)[0])


def test_variable_blocks(home):
    """Each kv head has block sizes and a map of its own."""
    rng, q, k, v = np.random.default_rng(4), draw(0, 4, 9, 16), draw(1, 2, 14, 16), draw(2, 2, 14, 16)
    rows, columns, blocks = np.array([[2, 4, 3], [5, 1, 3]], np.int32), np.array([[1, 6, 4, 3], [2, 2, 2, 8]], np.int32), rng.random((2, 3, 4)) < 0.6
    w = flashinfer.VariableBlockSparseAttentionWrapper(put(home, np.zeros(1, np.uint8)))
    w.plan(put(home, blocks), put(home, rows), put(home, columns), 4, 2, 16)
    out, lse = w.run(*(put(home, x) for x in (q, k, v)), return_lse=True)
    for h in range(4):
        see = np.repeat(np.repeat(blocks[h // 2], columns[h // 2], 1), rows[h // 2], 0)
        want = reference(q[h][:, None], k[h // 2][:, None], v[h // 2][:, None], see)
        near(out[h], want[0][:, 0]), near(lse[h], want[1][:, 0])


def test_sinks_by_the_variants_name(home):
    args = ("uri", None, None, None, None, 16, 16, ["sink"], ["float"], ["sm_scale"], ["double"], "AttentionSink", "source")
    q, k, sinks = draw(0, 5, 4, 16), draw(1, 9, 2, 16), draw(2, 4)
    w = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(put(home, np.zeros(1, np.uint8)), jit_args=args, jit_kwargs={"use_sliding_window": False})
    w.plan(put(home, np.array([0, 5], np.int32)), put(home, np.array([0, 9], np.int32)), 4, 2, 16, causal=True)
    value, mass = reference(q, k, k, causal(5, 9), 0.3)
    near(w.run(put(home, q), put(home, k), put(home, k), put(home, sinks), 0.3), value / (1 + np.exp2(sinks / np.log(2) - mass))[..., None])
    with pytest.raises(vivace.UnsupportedError, match="attention-variants"):
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper(None, jit_args=(*args[:11], "Other", "source"))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_nvfp4_rows_and_pages(home, layout):
    x = draw(0, 7, 64)
    codes, scales = flashinfer.nvfp4_kv_quantize(put(home, x), put(home, np.array([0.5], np.float32)))
    want = values_of(back(codes), back(scales)) * 0.5
    step = np.repeat(back(scales).view(ml_dtypes.float8_e4m3fn).astype(np.float64), 16, -1) * 0.5
    assert (np.abs(want - x) <= 1.1 * step).all()
    dtype = np.dtype("float32") if home == "numpy" else torch.float32
    near(flashinfer.nvfp4_kv_dequantize(codes, scales, put(home, np.array([0.5], np.float32)), dtype), want, 1e-6)
    p, codes, scales, rows = nvfp4_pages(layout)
    tables = np.full((4, 3), 10**6, np.int32)
    for r in range(4):
        tables[r, : p.indptr[r + 1] - p.indptr[r]] = p.indices[p.indptr[r] : p.indptr[r + 1]]
    outs = [put(home, np.full((4, 12, 2, 32), 123, np.float32)) for _ in range(2)]
    flashinfer.nvfp4_kv_dequantize_paged(put(home, codes), put(home, scales), put(home, tables), put(home, np.array(KEYS, np.int32)), *(put(home, np.array([f], np.float32)) for f in (0.5, 3)), *outs, kv_layout=layout)
    for out, half, f in zip(outs, rows, (0.5, 3)):
        for r, n in enumerate(KEYS):
            near(out[r, :n], half[r] * f, 1e-5)
            assert (back(out[r, n:]) == 123).all()
    with pytest.raises(vivace.InvalidShapeError, match="block_tables"):
        flashinfer.nvfp4_kv_dequantize_paged(put(home, codes), put(home, scales), put(home, tables[:, :2]), put(home, np.array(KEYS, np.int32)), *(put(home, np.array([f], np.float32)) for f in (1, 1)), *outs, kv_layout=layout)


def test_append_of_latents(home):
    p = Pages([5, 3])
    indptr, indices, last = p.tables(home)
    batch, pos = flashinfer.get_batch_indices_positions(put(home, np.array([0, 5, 8], np.int32)), put(home, np.array([5, 3], np.int32)), 8, put(home, np.zeros(8, np.int32)), put(home, np.zeros(8, np.int32)))
    ckv, kpe = draw(0, 8, 12), draw(1, 8, 6)
    caches = [put(home, np.full((len(p.cache), 4, d), 7, np.float32)) for d in (12, 6)]
    flashinfer.append_paged_mla_kv_cache(put(home, ckv), put(home, kpe), batch, pos, *caches, indices, indptr, last)
    for cache, rows in zip(caches, (ckv, kpe)):
        want = np.full(cache.shape, 7, np.float32)
        for i, (r, j) in enumerate([(0, j) for j in range(5)] + [(1, j) for j in range(3)]):
            want[p.indices[p.indptr[r] + j // 4], j % 4] = rows[i]
        assert np.array_equal(back(cache), want)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("pair", [False, True])
def test_pages_of_one_place_have_no_axis_for_it(home, layout, pair):
    p, q = Pages([5, 3], size=1), draw(0, 2, 4, 16)
    w = flashinfer.BatchDecodeWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)), layout)
    w.plan(*p.tables(home), 4, 2, 16, 1)
    cache = put(home, p.cache[:, :, 0])
    out = w.run(put(home, q), (cache[:, 0], cache[:, 1]) if pair else cache)
    for r, n in enumerate(p.lengths):
        near(out[r : r + 1], reference(q[r : r + 1], p.k[r], p.v[r], np.ones((1, n), bool))[0])


def test_bad_input(home):
    one, i32 = put(home, np.zeros(1, np.uint8)), lambda *x: put(home, np.array(x, np.int32))
    half, codes = give(home, draw(0, 1, 2, 32), "float16"), put(home, np.zeros((1, 1, 2, 16), np.uint8))
    scales = give(home, np.ones((1, 1, 2, 2), np.float32), "float8_e4m3fn")
    append = lambda **bad: flashinfer.nvfp4_quantize_append_paged_kv_cache_with_slot_mapping(**{  # noqa: E731
        "append_key": half, "append_value": half, "slot_mapping": i32(0), "paged_kv_cache": (codes, codes), "kv_cache_sf": (scales, scales), "k_scale": 1.0, "v_scale": 1.0} | bad)
    for bad, error, says in [({"k_scale": 0.0}, vivace.InvalidArgumentError, "k_scale: wanted a positive finite"), ({"v_scale": float("nan")}, vivace.InvalidArgumentError, "v_scale"),
                             ({"k_scale": put(home, np.array([-1], np.float32))}, vivace.InvalidArgumentError, "positive finite"), ({"kv_cache_sf": (codes, codes)}, vivace.InvalidDTypeError, "float8_e4m3fn"),
                             ({"append_key": put(home, draw(0, 1, 2, 32))}, vivace.InvalidDTypeError, "float16"), ({"slot_mapping": i32(0, 0)}, vivace.InvalidShapeError, "2 slots"),
                             ({"paged_kv_cache": (codes[..., :8], codes)}, vivace.InvalidShapeError, "16 bytes of FP4 values")]:
        with pytest.raises(error, match=says):
            append(**bad)
    assert (back(codes) == 0).all()
    q, k = put(home, draw(0, 3, 2, 32)), put(home, np.zeros((5, 2, 16), np.uint8))
    with pytest.raises(vivace.InvalidShapeError, match="want scales"):
        flashinfer.single_prefill_with_kv_cache(q, k, k, kv_cache_sf=(k, k))
    with pytest.raises(vivace.InvalidShapeError, match="even number"):
        flashinfer.single_prefill_with_kv_cache(q[..., :31], q[..., :31], q, pos_encoding_mode="ROPE_LLAMA")
    w = flashinfer.BatchDecodeWithPagedKVCacheWrapper(one, use_cuda_graph=True)
    w.plan(i32(0, 1), i32(0), i32(2), 2, 2, 16, 4, q_len_per_req=2)
    with pytest.raises(vivace.InvalidArgumentError, match="frozen"):
        w.plan(i32(0, 1), i32(0), i32(2), 2, 2, 16, 4)
    with pytest.raises(vivace.InvalidShapeError, match="page indices"):
        flashinfer.BatchDecodeWithPagedKVCacheWrapper(one).plan(i32(0, 3), i32(0), i32(1), 2, 2, 16, 4)
    with pytest.raises(vivace.InvalidShapeError, match="whole blocks"):
        flashinfer.BlockSparseAttentionWrapper(one).plan(i32(0, 1), i32(0), 5, 4, 3, 4, 2, 2, 16)
    with pytest.raises(vivace.UnsupportedError, match="position"):
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper(one).run(q, q, q, 1.0)


@pytest.fixture
def calls(monkeypatch):
    """Arguments of each call of ops.attention."""
    seen, real = [], vivace.ops.attention
    monkeypatch.setattr(vivace.ops, "attention", lambda q, k, v, **more: (seen.append({"q": q, "k": k, "v": v} | more), real(q, k, v, **more))[1])
    return seen


@pytest.mark.parametrize("rope", ["NONE", "ROPE_LLAMA"])
@pytest.mark.parametrize("how", [{"fixed_split_size": 2048}, {"disable_split_kv": True}], ids=str)
@pytest.mark.parametrize("which,n", [("decode", 1), ("paged", 1), ("paged", 3), ("ragged", 3)])
def test_bits_that_do_not_depend_on_the_batch(home, which, n, how, rope, calls):
    """Batches from one request to many are calls of one class, in which nothing splits keys, and a request's bits are the same."""
    L, size, most = 21, 4, 300
    pages = -(-L // size)
    q, cache = draw(1, most * n, 4, 16), draw(2, most * pages, 2, size, 2, 16)
    flat = cache.reshape(most, pages, 2, size, 2, 16).swapaxes(1, 2).reshape(most, 2, pages * size, 2, 16)[:, :, :L]
    wrapper = {"decode": flashinfer.BatchDecodeWithPagedKVCacheWrapper, "paged": flashinfer.BatchPrefillWithPagedKVCacheWrapper, "ragged": flashinfer.BatchPrefillWithRaggedKVCacheWrapper}[which]
    w, kept, kinds = wrapper(put(home, np.zeros(1, np.uint8))), None, set()
    for B in (1, 2, 30, 70, most):
        up = np.arange(B + 1, dtype=np.int32)
        tables = [put(home, x.astype(np.int32)) for x in (up * pages, np.arange(B * pages), np.full(B, L - (pages - 1) * size))]
        args = {"decode": tables, "paged": [put(home, up * n), *tables], "ragged": [put(home, up * n), put(home, up * L)]}[which]
        w.plan(*args, 4, 2, 16, *([] if which == "ragged" else [size]), pos_encoding_mode=rope, **({} if which == "decode" else {"causal": True}), **how)
        kv = [put(home, np.ascontiguousarray(flat[:B, i]).reshape(B * L, 2, 16)) for i in (0, 1)] if which == "ragged" else [put(home, cache)]
        given = put(home, np.zeros((B * n, 4, 16), np.float32))
        out, lse = w.run(put(home, q[: B * n]), *kv, out=given, return_lse=True)
        assert out is given and tuple(lse.shape) == (B * n, 4)
        got = back(out)[:n], back(lse)[:n]
        kept = got if kept is None else kept
        np.testing.assert_array_equal(got[0], kept[0]), np.testing.assert_array_equal(got[1], kept[1])
        call = calls[-1]
        slots = call["page_table"].shape[0] if "page_table" in call else call["k_offsets"].shape[0] - 1
        T = call["q"].shape[0]
        assert slots >= 264 and T <= slots if which == "decode" else T > 64 and T > slots
        if home == "numpy":
            kinds.add(vivace._core.row_class("attention", **{name: x for name, x in call.items() if name != "layout"}))
    assert len(kinds) == (home == "numpy")
    at = np.arange(L - n, L)
    turn = (lambda x, pos: turned(x, pos)) if rope != "NONE" else (lambda x, pos: x)
    want = reference(turn(q[:n], at), turn(flat[0, 0], np.arange(L)), flat[0, 1], causal(n, L))
    near(kept[0], want[0]), near(kept[1], want[1])


def test_strided_nvfp4_scales(home):
    """Scales with a stride between neighbours are an error, of pages as of dense rows."""
    w = flashinfer.BatchDecodeWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    w.plan(*[put(home, np.array(x, np.int32)) for x in ([0, 1], [0], [2])], 4, 2, 32, 4, kv_data_type="uint8")
    codes, scales = put(home, np.zeros((1, 4, 2, 16), np.uint8)), put(home, np.zeros((1, 4, 2, 4), np.uint8))
    with pytest.raises(vivace.InvalidArgumentError, match="innermost stride must be 1"):
        w.run(put(home, draw(0, 1, 4, 32)), (codes, codes), kv_cache_sf=(scales[..., ::2], scales[..., ::2]))
    assert w.run(put(home, draw(0, 1, 4, 32)), (codes, codes), kv_cache_sf=(scales[..., :2], scales[..., :2])).shape == (1, 4, 32)


def test_split_sizes_that_are_none(home):
    w = flashinfer.BatchDecodeWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    tables = [put(home, np.array(x, np.int32)) for x in ([0, 1], [0], [2])]
    with pytest.raises(vivace.InvalidArgumentError, match="fixed_split_size"):
        w.plan(*tables, 4, 2, 16, 4, fixed_split_size=0)


def scored(r):
    """(prefix, places in items, what each position sees) of a drawn prompt: a prefix, then items, each after a delimiter; one delimiter ends them."""
    prefix, items = int(r.integers(0, 12)), r.integers(0, 7, int(r.integers(1, 4)))
    places = np.concatenate([np.arange(n + 1) for n in items] + [[0]])
    start = prefix + np.concatenate([[0], np.cumsum(items + 1)])
    see = np.zeros((prefix + len(places),) * 2, bool)
    for p in range(len(see)):
        see[p, : min(p + 1, prefix)] = True
        for a, b in zip(start[:-1], start[1:]):
            if a < p < b:
                see[p, a + 1 : p + 1] = True
    return prefix, places, see


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("which", ["paged", "ragged"])
def test_items_after_a_prefix(home, which, seed):
    r = np.random.default_rng(seed)
    requests, window = [scored(r) for _ in range(3)], int(r.choice([-1, 5]))
    keys = [len(see) for _, _, see in requests]
    queries = [int(r.integers(1, n + 1)) for n in keys]
    qo, stride = np.cumsum([0, *queries]).astype(np.int32), max(len(x) for _, x, _ in requests) + 2
    p, q = Pages(keys), draw(seed, sum(queries), 4, 16)
    places = np.stack([np.pad(x, (0, stride - len(x))) for _, x, _ in requests]).astype(np.uint16)
    settings = {"prefix_len_ptr": put(home, np.array([x for x, _, _ in requests], np.uint32)), "token_pos_in_items_ptr": put(home, places.reshape(-1)), "token_pos_in_items_len": stride,
                "max_item_len_ptr": put(home, places.max(1))}
    args = (put(home, qo), *p.tables(home), 4, 2, 16, p.size) if which == "paged" else (put(home, qo), put(home, np.cumsum([0, *keys]).astype(np.int32)), 4, 2, 16)
    w = (flashinfer.BatchPrefillWithPagedKVCacheWrapper if which == "paged" else flashinfer.BatchPrefillWithRaggedKVCacheWrapper)(put(home, np.zeros(1, np.uint8)))
    w.plan(*args, causal=True, window_left=window, **settings)
    out, lse = w.run(put(home, q), *((put(home, p.cache),) if which == "paged" else (put(home, np.concatenate(p.k)), put(home, np.concatenate(p.v)))), return_lse=True)
    for i, (_, _, see) in enumerate(requests):
        n, L, rows = queries[i], keys[i], slice(qo[i], qo[i + 1])
        near_enough = np.arange(L)[None] >= np.arange(L - n, L)[:, None] - window if window >= 0 else True
        want = reference(q[rows], p.k[i], p.v[i], see[L - n :] & near_enough)
        near(out[rows], want[0]), near(lse[rows], want[1])


def test_bad_items(home):
    p, one = Pages([9, 8]), lambda *x: put(home, np.array(x, np.int32))  # noqa: E731
    w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    plan = lambda **more: w.plan(one(0, 2, 4), *p.tables(home), 4, 2, 16, p.size, **more)  # noqa: E731
    with pytest.raises(vivace.InvalidShapeError, match="prefix_len_ptr has 1 entries for 2 requests"):
        plan(prefix_len_ptr=one(3), token_pos_in_items_ptr=one(*range(12)), token_pos_in_items_len=6)
    with pytest.raises(vivace.InvalidShapeError, match="has 5 entries of request 1, which has 6 keys after its prefix"):
        plan(prefix_len_ptr=one(4, 2), token_pos_in_items_ptr=one(*range(11)), token_pos_in_items_len=6)
    with pytest.raises(vivace.InvalidArgumentError, match="go together"):
        plan(prefix_len_ptr=one(3, 3))
    with pytest.raises(vivace.InvalidArgumentError, match="no custom_mask"):
        plan(prefix_len_ptr=one(3, 3), token_pos_in_items_ptr=one(*range(12)), token_pos_in_items_len=6, custom_mask=one(1))


@pytest.mark.parametrize("seed", range(6))
def test_states_of_varying_number(home, seed, monkeypatch):
    r = np.random.default_rng(seed)
    lens, (H, D) = r.integers(0, 9, int(r.integers(1, 12))), (int(r.integers(1, 4)), int(r.choice([8, 64])))
    rows, dtype = int(lens.sum()) + 3, str(r.choice(["float32", "float16"]))
    v, s = give(home, r.standard_normal((rows, H, D), np.float32), dtype), r.standard_normal((rows, H), np.float32) * 4
    s[r.random(s.shape) < 0.1] = -np.inf
    s[[0, -1]] = np.nan  # rows of no state
    bounds = np.cumsum([1, *lens]).astype(np.int32)
    if seed % 2:
        monkeypatch.setattr("vivace.compat.flashinfer.cascade._PADDED", 1)
    out, lse = flashinfer.triton.cascade.variable_length_merge_states(v, put(home, s), put(home, bounds))
    for i, (a, b) in enumerate(zip(bounds[:-1], bounds[1:])):
        weight = np.exp2(s[a:b].astype(np.float64))
        mass = weight.sum(0)
        want = (weight[..., None] * np.nan_to_num(wide(v[a:b]))).sum(0) / np.where(mass > 0, mass, 1)[:, None]
        near(wide(out[i]), want, 2e-3 if dtype == "float16" else 2e-5)
        with np.errstate(divide="ignore"):
            near(lse[i], np.log2(mass))
    none = flashinfer.variable_length_merge_states(v[:0], put(home, s[:0]), put(home, np.zeros(3, np.int32)))
    assert (wide(none[0]) == 0).all() and tuple(none[0].shape) == (2, H, D) and (back(none[1]) == -np.inf).all()


def test_bad_states_of_varying_number(home):
    v, s, bounds = (put(home, x) for x in (draw(0, 5, 2, 8), draw(1, 5, 2), np.array([0, 3, 6], np.int32)))
    for call, error, said in (((v, s, bounds), vivace.InvalidArgumentError, "at most 5 rows"), ((v, s, bounds - 1), vivace.InvalidArgumentError, "rise from 0"),
                              ((v, s[:4], bounds), vivace.InvalidShapeError, r"s \[4, 2\]"), ((v, s, bounds[:0]), vivace.InvalidShapeError, r"indptr \[0\]")):
        with pytest.raises(error, match=said):
            flashinfer.variable_length_merge_states(*call)
