"""vivace.compat.flashinfer against float64 references written here, with NumPy arrays and, where it is installed, torch."""
import numpy as np
import pytest

import vivace
from vivace.compat import flashinfer

try:
    import torch
except ImportError:
    torch = None

HOMES = ["numpy", *(["torch"] if torch else []), *(["cuda"] if torch and torch.cuda.is_available() else [])]
pytestmark = pytest.mark.parametrize("home", HOMES)


def put(home, x):
    return x if home == "numpy" else torch.from_numpy(np.ascontiguousarray(x)).to("cpu" if home == "torch" else "cuda")


def back(x):
    return x if isinstance(x, np.ndarray) else x.cpu().numpy()


def reference(q, k, v, see, scale=None, softcap=0.0, slopes=None, pos=None):
    """(out, log2-sum-exp) of q [T, Hq, D] over k, v [L, Hkv, D], see [T, L]."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[1] // k.shape[1], 1) for a in (k, v))
    s = np.einsum("thd,jhd->thj", q, k) * (scale or q.shape[-1] ** -0.5)
    if slopes is not None:
        s = s + slopes[None, :, None] * (np.arange(len(k)) - pos[:, None])[:, None]
    if softcap:
        s = softcap * np.tanh(s / softcap)
    s = np.where(see[:, None], s, -np.inf)
    with np.errstate(all="ignore"):
        top = s.max(-1, initial=-np.inf)
        p = np.exp(s - np.where(np.isinf(top), 0, top)[..., None])
        mass = p.sum(-1)
        return np.einsum("thj,jhd->thd", np.where(mass[..., None] > 0, p / mass[..., None], 0), v), (np.where(np.isinf(top), 0, top) + np.log(mass)) / np.log(2)


def near(got, want, bound=2e-5):
    got = back(got)
    assert got.shape == want.shape
    assert np.allclose(got, want, atol=bound, rtol=bound), float(np.nanmax(np.abs(got - want)))


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def order(x, layout):
    """[L, Hkv, D] or [pages, 2, L, Hkv, D] as the layout wants it."""
    return np.ascontiguousarray(x.swapaxes(-3, -2)) if layout == "HND" else x


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("settings", [{}, {"window_left": 9}, {"logits_soft_cap": 3.0, "sm_scale": 0.3}, {"pos_encoding_mode": "ALIBI"}, {"q_scale": 2.0, "k_scale": 0.5, "v_scale": 3.0}], ids=str)
def test_single_decode(home, settings, layout):
    q, k, v = draw(0, 6, 32), draw(1, 40, 2, 32), draw(2, 40, 2, 32)
    out, lse = flashinfer.single_decode_with_kv_cache(put(home, q), *(put(home, order(a, layout)) for a in (k, v)), kv_layout=layout, return_lse=True, **settings)
    see = np.ones((1, 40), bool)
    if "window_left" in settings:
        see = np.arange(40)[None] >= 39 - 9
    slopes = np.array([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]) if "pos_encoding_mode" in settings else None
    want = reference(q[None], k, v, see, settings.get("sm_scale"), settings.get("logits_soft_cap", 0), slopes, np.array([39]))
    near(out, want[0][0] * settings.get("v_scale", 1))
    near(lse, want[1][0])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kind", ["full", "causal", "custom", "packed"])
def test_single_prefill(home, kind, layout):
    q, k, v = draw(0, 11, 4, 16), draw(1, 25, 2, 16), draw(2, 25, 2, 16)
    see = np.ones((11, 25), bool)
    if kind == "causal":
        see = np.arange(25) <= np.arange(14, 25)[:, None]
    settings = {"causal": kind == "causal"}
    if kind in ("custom", "packed"):
        see = np.random.default_rng(3).random((11, 25)) < 0.4
        see[4] = False
        settings = {"custom_mask": put(home, see.reshape(-1))} if kind == "custom" else {"packed_custom_mask": flashinfer.packbits(put(home, see), "little")}
    out, lse = flashinfer.single_prefill_with_kv_cache_return_lse(put(home, q), *(put(home, order(a, layout)) for a in (k, v)), kv_layout=layout, **settings)
    want = reference(q, k, v, see)
    near(out, want[0])
    near(lse, want[1])


class Pages:
    """Requests of some lengths over shuffled pages; a page that no request has holds NaN."""

    def __init__(self, lengths, size=4, Hkv=2, D=16, seed=5):
        rng = np.random.default_rng(seed)
        counts = [-(-n // size) for n in lengths]
        self.indptr = np.cumsum([0, *counts]).astype(np.int32)
        self.indices = rng.permutation(self.indptr[-1] + 1)[: self.indptr[-1]].astype(np.int32)
        self.last = np.array([n - (c - 1) * size if n else 0 for n, c in zip(lengths, counts)], np.int32)
        self.k, self.v = ([draw(seed + 10 * which + i, n, Hkv, D) for i, n in enumerate(lengths)] for which in (1, 2))
        self.cache = np.full((self.indptr[-1] + 1, 2, size, Hkv, D), np.nan, np.float32)
        self.lengths, self.size = lengths, size
        for r, n in enumerate(lengths):
            for j in range(n):
                page = self.indices[self.indptr[r] + j // size]
                self.cache[page, 0, j % size], self.cache[page, 1, j % size] = self.k[r][j], self.v[r][j]

    def tables(self, home):
        return tuple(put(home, a) for a in (self.indptr, self.indices, self.last))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("pair", [False, True], ids=["one", "pair"])
def test_batch_decode(home, layout, pair):
    p = Pages([9, 0, 4, 17])
    q = draw(0, 4, 6, 16)
    w = flashinfer.BatchDecodeWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)), layout)
    w.plan(*p.tables(home), 6, 2, 16, 4)
    cache = put(home, order(p.cache, layout))
    out, lse = w.run(put(home, q), (cache[:, 0], cache[:, 1]) if pair else cache, return_lse=True)
    for r, n in enumerate(p.lengths):
        want = reference(q[r : r + 1], p.k[r], p.v[r], np.ones((1, n), bool))
        near(out[r : r + 1], want[0])
        near(lse[r : r + 1], want[1])


def test_a_new_plan_changes_what_a_captured_call_does(home):
    """plan() writes into the buffers that the first one made."""
    w = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
    p, q = Pages([9, 8, 4]), draw(0, 3, 2, 16)
    w.plan(*p.tables(home), 2, 2, 16, 4)
    before = {n: back(b).copy() for n, b in w._buffers.items()}
    buffers = dict(w._buffers)
    other = Pages([5, 1, 7], seed=9)
    w.plan(*other.tables(home), 2, 2, 16, 4)
    assert all(w._buffers[n] is b for n, b in buffers.items()) and any((back(buffers[n]) != before[n]).any() for n in before)
    out = w.run(put(home, q), put(home, other.cache))
    for r, n in enumerate(other.lengths):
        near(out[r : r + 1], reference(q[r : r + 1], other.k[r], other.v[r], np.ones((1, n), bool))[0])
    with pytest.raises(vivace.errors.LimitExceededError, match="plan the largest first"):
        w.plan(*Pages([50, 1, 1]).tables(home), 2, 2, 16, 4)


QUERIES, KEYS = [3, 0, 7, 1], [9, 2, 7, 12]


def spans(kind):
    """What each query of each request sees."""
    for n, L in zip(QUERIES, KEYS):
        if kind == "causal":
            yield np.arange(L) <= np.arange(L - n, L)[:, None]
        elif kind == "window":
            at = np.arange(L - n, L)[:, None]
            yield (np.arange(L) <= at) & (np.arange(L) >= at - 3)
        else:
            yield np.random.default_rng(n).random((n, L)) < 0.6


@pytest.mark.parametrize("which", ["paged", "ragged"])
@pytest.mark.parametrize("kind", ["causal", "window", "custom"])
def test_batch_prefill(home, kind, which):
    p, q = Pages(KEYS), draw(0, sum(QUERIES), 4, 16)
    qo = np.cumsum([0, *QUERIES]).astype(np.int32)
    settings = {"causal": kind != "custom", "window_left": 3 if kind == "window" else -1}
    if kind == "custom":
        settings["custom_mask"] = put(home, np.concatenate([m.reshape(-1) for m in spans(kind)]))
    if which == "paged":
        w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
        w.plan(put(home, qo), *p.tables(home), 4, 2, 16, 4, **settings)
        out, lse = w.run_return_lse(put(home, q), put(home, p.cache))
    else:
        w = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(put(home, np.zeros(1, np.uint8)))
        w.plan(put(home, qo), put(home, np.cumsum([0, *KEYS]).astype(np.int32)), 4, 2, 16, **settings)
        out, lse = w.run_return_lse(put(home, q), put(home, np.concatenate(p.k)), put(home, np.concatenate(p.v)))
    for r, see in enumerate(spans(kind)):
        want = reference(q[qo[r] : qo[r + 1]], p.k[r], p.v[r], see)
        near(out[qo[r] : qo[r + 1]], want[0])
        near(lse[qo[r] : qo[r + 1]], want[1])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_append(home, layout):
    p = Pages([9, 3, 8])
    added = [2, 3, 5]  # the last of each request's keys
    bounds = np.cumsum([0, *added]).astype(np.int32)
    new = [np.concatenate([a[r][p.lengths[r] - n :] for r, n in enumerate(added)]) for a in (p.k, p.v)]
    start = p.cache.copy()
    for r, n in enumerate(added):
        for j in range(p.lengths[r] - n, p.lengths[r]):
            start[p.indices[p.indptr[r] + j // 4], :, j % 4] = 77
    cache, tables = put(home, order(start, layout)), p.tables(home)
    lens = flashinfer.get_seq_lens(tables[0], tables[2], 4)
    assert back(lens).tolist() == p.lengths
    batch, pos = flashinfer.get_batch_indices_positions(put(home, bounds), lens, 12)
    assert back(batch).tolist() == [0] * 2 + [1] * 3 + [2] * 5 + [-1] * 2 and back(pos)[:5].tolist() == [7, 8, 0, 1, 2]
    rows = [put(home, np.concatenate([a, np.full((2, 2, 16), 55, np.float32)])) for a in new]
    flashinfer.append_paged_kv_cache(*rows, batch, pos, cache, tables[1], tables[0], tables[2], kv_layout=layout)
    assert np.array_equal(back(cache), order(p.cache, layout), equal_nan=True)


def test_merge(home):
    q, k, v = draw(0, 5, 4, 16), draw(1, 30, 4, 16), draw(2, 30, 4, 16)
    cuts = [(0, 11), (11, 12), (12, 30)]
    parts = [flashinfer.single_prefill_with_kv_cache_return_lse(put(home, q), put(home, k[a:b]), put(home, v[a:b])) for a, b in cuts]
    want = reference(q, k, v, np.ones((5, 30), bool))
    stack = np.stack if home == "numpy" else torch.stack
    out, lse = flashinfer.merge_states(stack([p[0] for p in parts], 1), stack([p[1] for p in parts], 1))
    near(out, want[0]), near(lse, want[1])
    out, lse = flashinfer.merge_state(*flashinfer.merge_state(*parts[0], *parts[1]), *parts[2])
    near(out, want[0]), near(lse, want[1])
    kept = back(parts[0][0]).copy()
    mask = np.array([1, 0, 1, 0, 0], bool)
    flashinfer.merge_state_in_place(*parts[0], *parts[1], mask=put(home, mask))
    both = reference(q, k[:12], v[:12], np.ones((5, 12), bool))
    near(back(parts[0][0])[mask], both[0][mask]), near(back(parts[0][0])[~mask], kept[~mask], 1e-6)


def test_cascade(home):
    """Three requests over one prefix, against each over prefix and own keys."""
    own, q = Pages([5, 9, 2]), draw(0, 6, 4, 16)
    prefix = Pages([14], seed=50)
    qo = np.array([0, 2, 5, 6], np.int32)
    cache = np.concatenate([own.cache, prefix.cache])
    w = flashinfer.MultiLevelCascadeAttentionWrapper(2, put(home, np.zeros(1, np.uint8)))
    shift = np.int32(len(own.cache))
    w.plan([put(home, np.array([0, 6], np.int32)), put(home, qo)], [put(home, prefix.indptr), put(home, own.indptr)], [put(home, prefix.indices + shift), put(home, own.indices)],
           [put(home, prefix.last), put(home, own.last)], 4, 2, 16, 4, causal=True)
    out = w.run(put(home, q), put(home, cache))
    for r in range(3):
        n, L = qo[r + 1] - qo[r], own.lengths[r]
        see = np.concatenate([np.ones((n, 14), bool), np.arange(L) <= np.arange(L - n, L)[:, None]], 1)
        near(out[qo[r] : qo[r + 1]], reference(q[qo[r] : qo[r + 1]], np.concatenate([prefix.k[0], own.k[r]]), np.concatenate([prefix.v[0], own.v[r]]), see)[0])


def test_packbits(home):
    x = np.random.default_rng(0).random(37) < 0.5
    assert np.array_equal(back(flashinfer.packbits(put(home, x))), np.packbits(x))
    packed, bounds = flashinfer.segment_packbits(put(home, x), put(home, np.array([0, 5, 5, 37], np.int32)), "little")
    assert back(bounds).tolist() == [0, 1, 1, 5] and np.array_equal(back(packed), np.concatenate([np.packbits(x[:5], bitorder="little"), np.packbits(x[5:], bitorder="little")]))


def test_what_is_not_there_says_so(home):
    q, k = put(home, draw(0, 2, 16)), put(home, draw(1, 5, 2, 16))
    with pytest.raises(vivace.InvalidArgumentError, match="ROPE_LLAMA or ALIBI"):
        flashinfer.single_decode_with_kv_cache(q, k, k, pos_encoding_mode="ROPE")
    with pytest.raises(vivace.UnsupportedError, match="another is not served"):
        flashinfer.BatchPrefillWithPagedKVCacheWrapper(None).plan(*(put(home, np.zeros(n, np.int32)) for n in (1, 1, 0, 0)), 2, 2, 16, 4, another=k)
    with pytest.raises(vivace.UnsupportedError, match="attention-variants"):
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper(q, jit_args=["name"])
    with pytest.raises(vivace.InvalidArgumentError, match="NHD or HND"):
        flashinfer.single_decode_with_kv_cache(q, k, k, kv_layout="DHN")
    with pytest.raises(vivace.FailedPreconditionError, match="run before plan"):
        flashinfer.BatchDecodeWithPagedKVCacheWrapper(None).run(q[None], (k[None], k[None]))
    with pytest.raises(vivace.InvalidShapeError, match="custom_mask"):
        flashinfer.single_prefill_with_kv_cache(q[None], k, k, custom_mask=put(home, np.ones(4, bool)))
    with pytest.raises(vivace.InvalidDTypeError, match="list"):
        flashinfer.single_decode_with_kv_cache([1.0], k, k)
