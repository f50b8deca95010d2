"""FlashInfer's names of latent attention, against a float64 reference written here, of drawn requests."""
import ml_dtypes
import numpy as np
import pytest

import vivace
from tests.test_compat_flashinfer import HOMES, back, put, torch
from tests.test_compat_flashinfer_experts import give
from tests.test_compat_flashinfer_names import near
from vivace.compat import flashinfer

pytestmark = pytest.mark.parametrize("home", HOMES)
SCALE = 192**-0.5


def reference(q, rows, width, pos):
    """(out, lse to base 2) of q [T, H, E] over rows [L, E], of which query t sees those up to pos[t]."""
    s = np.einsum("the,je->thj", q.astype(np.float64), rows.astype(np.float64)) * SCALE
    s = np.where(np.arange(len(rows))[None, None] <= pos[:, None, None], s, -np.inf)
    top = np.where(np.isfinite(s.max(-1, initial=-np.inf)), s.max(-1, initial=-np.inf), 0)
    p = np.exp(s - top[..., None])
    mass = p.sum(-1)
    with np.errstate(divide="ignore"):
        return np.einsum("thj,jc->thc", p / np.where(mass > 0, mass, 1)[..., None], rows[:, :width].astype(np.float64)), (top + np.log(mass)) / np.log(2)


class Requests:
    """Drawn lengths and queries, their pages in a drawn order, and a cache of NaN where nothing is."""

    def __init__(self, seed, size=None, lengths=None, queries=None, longest=90):
        r = self.r = np.random.default_rng(seed)
        self.ckv, self.kpe = [(64, 32), (512, 64), (40, 8)][seed % 3]
        self.heads, self.size = int(r.choice([1, 3, 16])), int(r.choice([1, 4, 16])) if size is None else size
        n = int(r.integers(1, 5)) if lengths is None else len(lengths)
        self.lengths = r.integers(0, longest, n) if lengths is None else np.array(lengths)
        self.queries = np.minimum(r.integers(0, 5, n), self.lengths) if queries is None else np.array(queries)
        pages = -(-self.lengths // self.size)
        self.bounds, self.qo = (np.cumsum([0, *x]).astype(np.int32) for x in (pages, self.queries))
        self.indices = r.permutation(self.bounds[-1] + 2)[: self.bounds[-1]].astype(np.int32)
        self.cache = np.full((self.bounds[-1] + 2, self.size, self.ckv + self.kpe), np.nan, np.float32)
        self.rows = [r.standard_normal((n, self.ckv + self.kpe), np.float32) for n in self.lengths]
        for i, rows in enumerate(self.rows):
            for j, row in enumerate(rows):
                self.cache[self.indices[self.bounds[i] + j // self.size], j % self.size] = row
        self.q = r.standard_normal((self.qo[-1], self.heads, self.ckv + self.kpe), np.float32)

    def plan(self, home, wrapper, causal):
        wrapper.plan(*(put(home, x) for x in (self.qo, self.bounds, self.indices, self.lengths.astype(np.int32))), self.heads, self.ckv, self.kpe, self.size, causal, SCALE)

    def halves(self, home, x, apart):
        x = put(home, x)
        a, b = x[..., : self.ckv], x[..., self.ckv :]
        return (a + 0, b + 0) if apart else (a, b)

    def want(self, causal):
        out, lse = zip(*(reference(self.q[a:b], rows, self.ckv, np.arange(len(rows) - (b - a), len(rows)) if causal else np.full(b - a, len(rows)))
                         for a, b, rows in zip(self.qo[:-1], self.qo[1:], self.rows)))
        return np.concatenate(out), np.concatenate(lse)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(9))
def test_requests(home, seed, causal, apart):
    p, w = Requests(seed), flashinfer.mla.BatchMLAPagedAttentionWrapper(put(home, np.zeros(1, np.uint8)))
    p.plan(home, w, causal)
    out, lse = w.run(*p.halves(home, p.q, True), *p.halves(home, p.cache, apart), return_lse=True)
    want = p.want(causal)
    near(out, want[0], 2e-5), near(lse, want[1], 2e-5)
    given = put(home, np.zeros(want[0].shape, np.float32)), put(home, np.zeros(want[1].shape, np.float32))
    got = w.run(*p.halves(home, p.q, False), *p.halves(home, p.cache, apart), out=given[0], lse=given[1], return_lse=True, return_lse_base_on_e=True)
    assert got[0] is given[0] and got[1] is given[1]
    near(given[0], want[0], 2e-5), near(given[1], want[1] * np.log(2), 2e-5)


def test_long_requests_run_in_parts(home, monkeypatch):
    """Few tokens over many places are several runs, which one merge makes one."""
    p, runs = Requests(0, 16, [700, 0, 300], [2, 0, 1]), []
    real = vivace.ops.latent_attention
    monkeypatch.setattr(vivace.ops, "latent_attention", lambda q, cache, **more: (runs.append(more["out"].shape[1]), real(q, cache, **more))[1])
    w = flashinfer.BatchMLAPagedAttentionWrapper(put(home, np.zeros(1, np.uint8)))
    p.plan(home, w, True)
    out, lse = w.run(*p.halves(home, p.q, False), *p.halves(home, p.cache, False), return_lse=True)
    want = p.want(True)
    near(out, want[0], 2e-5), near(lse, want[1], 2e-5)
    assert runs == [5]


def test_one_array_is_read_as_it_lies(home, monkeypatch):
    p, seen = Requests(1), []
    real = vivace.ops.latent_attention
    monkeypatch.setattr(vivace.ops, "latent_attention", lambda q, cache, **more: (seen.append(cache), real(q, cache, **more))[1])
    w = flashinfer.BatchMLAPagedAttentionWrapper(put(home, np.zeros(1, np.uint8)))
    p.plan(home, w, False)
    cache = put(home, p.cache)
    halves = cache[..., : p.ckv], cache[..., p.ckv :]
    place = (lambda x: x.__array_interface__["data"][0]) if home == "numpy" else (lambda x: x.data_ptr())
    w.run(*p.halves(home, p.q, True), *halves)
    assert place(seen[0]) == place(cache) and tuple(seen[0].shape) == tuple(cache.shape)
    w.run(*p.halves(home, p.q, True), halves[0] + 0, halves[1])
    assert place(seen[1]) != place(cache) and seen[1].shape[0] == p.bounds[-1]


def test_plans_of_a_graph_keep_their_addresses(home):
    first, later = Requests(3, 4, [30, 61], [1, 1]), Requests(3, 4, [44, 80], [1, 1])
    later.q = first.q
    like = put(home, np.zeros(1, np.uint8))
    w = flashinfer.BatchMLAPagedAttentionWrapper(like, True, kv_indices=put(home, np.zeros(64, np.int32)))
    first.plan(home, w, True)
    near(w.run(*first.halves(home, first.q, True), *first.halves(home, first.cache, True)), first.want(True)[0], 2e-5)
    place = (lambda x: x.__array_interface__["data"][0]) if home == "numpy" else (lambda x: x.data_ptr())
    held = {name: place(x) for d in (w._buffers, w._separate) for name, x in d.items()}
    later.plan(home, w, True)
    assert held == {name: place(x) for d in (w._buffers, w._separate) for name, x in d.items()}
    for apart in (False, True):
        near(w.run(*later.halves(home, later.q, True), *later.halves(home, later.cache, apart)), later.want(True)[0], 2e-5)


@pytest.mark.parametrize("seed", range(6))
def test_decode_by_a_page_table(home, seed):
    r, p = np.random.default_rng(seed), Requests(seed, 4)
    n, B = int(r.integers(1, 4)), len(p.lengths)
    wide = max(1, int(np.diff(p.bounds).max()))
    table = np.full((B, wide), -1, np.int32)
    for b in range(B):
        table[b, : p.bounds[b + 1] - p.bounds[b]] = p.indices[p.bounds[b] : p.bounds[b + 1]]
    q = r.standard_normal((B, n, p.heads, p.ckv + p.kpe), np.float32)
    want = np.stack([reference(q[b], rows, p.ckv, np.arange(len(rows) - n, len(rows)))[0] for b, rows in enumerate(p.rows)])
    cache = p.cache[:, None] if seed % 2 else p.cache
    args = (put(home, q), put(home, cache), None, 128, p.ckv, p.kpe, put(home, table), put(home, p.lengths.astype(np.int32)), 90)
    near(flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla(*args, bmm1_scale=SCALE), want, 2e-5)
    out = put(home, np.zeros(want.shape, np.float32))
    assert flashinfer.trtllm_batch_decode_with_kv_cache_mla(*args, bmm1_scale=SCALE, bmm2_scale=0.5, out=out) is out
    near(out, want / 2, 2e-5)


def test_keys_of_latents(home):
    k, nope, rope = (put(home, np.random.default_rng(i).standard_normal(s, np.float32)) for i, s in enumerate([(5, 3, 24), (5, 3, 16), (5, 1, 8)]))
    assert flashinfer.mla.concat_mla_k(k, nope, rope) is None
    assert (back(k)[..., :16] == back(nope)).all() and (back(k)[..., 16:] == back(rope)).all()


def bad_calls(home):
    p = Requests(0, 4, [9], [2])
    w, new = (flashinfer.BatchMLAPagedAttentionWrapper(put(home, np.zeros(1, np.uint8))) for _ in range(2))
    p.plan(home, w, True)
    (q, pe), (ckv, kpe) = p.halves(home, p.q, True), p.halves(home, p.cache, True)
    tables = [put(home, x) for x in (p.qo, p.bounds, p.indices)]
    plan = lambda lens=9, scale=1.0: new.plan(*tables, put(home, np.array([lens], np.int32)), p.heads, p.ckv, p.kpe, 4, True, scale)  # noqa: E731
    i32 = put(home, np.zeros((1, 2), np.int32))
    decode = lambda **more: flashinfer.trtllm_batch_decode_with_kv_cache_mla(put(home, p.q[None]), put(home, p.cache), None, 128, p.ckv, p.kpe, i32, i32[0, :1], 9, **more)  # noqa: E731
    half = ckv.astype(np.float16) if home == "numpy" else ckv.half()
    return {
        "backend": (lambda: flashinfer.BatchMLAPagedAttentionWrapper(q, backend="cutlass"), vivace.UnsupportedError, "plan with any other"),
        "no plan": (lambda: new.run(q, pe, ckv, kpe), vivace.FailedPreconditionError, "run before plan"),
        "scale": (lambda: plan(scale=0.0), vivace.InvalidArgumentError, "sm_scale must be positive"),
        "lengths": (lambda: plan(13), vivace.InvalidShapeError, "does not fit into \\[3\\] pages of 4"),
        "queries": (lambda: w.run(q[:1], pe[:1], ckv, kpe), vivace.InvalidShapeError, "q_nope is"),
        "rotated": (lambda: w.run(q, pe[..., 1:], ckv, kpe), vivace.InvalidShapeError, "q_pe is"),
        "pages": (lambda: w.run(q, pe, ckv[:, 1:], kpe), vivace.InvalidShapeError, "ckv_cache is"),
        "fewer pages": (lambda: w.run(q, pe, ckv, kpe[1:]), vivace.InvalidShapeError, "5 pages and kpe_cache 4"),
        "types": (lambda: w.run(q, pe, half, kpe), vivace.InvalidDTypeError, "ckv_cache is float16"),
        "out": (lambda: w.run(q, pe, ckv, kpe, out=q[:1]), vivace.InvalidShapeError, "out is"),
        "tables": (lambda: w.run(q, pe, ckv, kpe, page_table=i32), vivace.UnsupportedError, "page_table is not served"),
        "sinks": (lambda: decode(sinks=i32), vivace.UnsupportedError, "sinks is not served"),
        "sparse": (lambda: decode(sparse_mla_top_k=64), vivace.UnsupportedError, "sparse_mla_top_k"),
        "a scale on the device": (lambda: decode(bmm1_scale=q), vivace.UnsupportedError, "it is a number here"),
        "queries of one request": (lambda: flashinfer.trtllm_batch_decode_with_kv_cache_mla(q, ckv, None, 128, 64, 32, i32, i32[0], 9), vivace.InvalidShapeError, "query is"),
        "concat": (lambda: flashinfer.concat_mla_k(q, q, q), vivace.InvalidShapeError, "concat_mla_k"),
    }


@pytest.mark.parametrize("what", bad_calls("numpy"))
def test_bad_calls(home, what):
    call, error, said = bad_calls(home)[what]
    with pytest.raises(error, match=said):
        call()


@pytest.mark.skipif(not (torch and torch.cuda.is_available()), reason="tensor cores are on a GPU")
def test_rows_of_sixteen_bits(home):
    if home != "cuda":
        pytest.skip("tensor cores are on a GPU")
    p, w = Requests(1, 64, [900, 70, 3], [1, 1, 1]), flashinfer.BatchMLAPagedAttentionWrapper(put(home, np.zeros(1, np.uint8)))
    p.q, p.cache = (torch.from_numpy(x).bfloat16().float().numpy() for x in (p.q, p.cache))
    p.rows = [torch.from_numpy(x).bfloat16().float().numpy() for x in p.rows]
    p.plan(home, w, True)
    cache = put(home, p.cache).bfloat16()
    out = w.run(*(x.bfloat16() for x in p.halves(home, p.q, True)), cache[..., : p.ckv], cache[..., p.ckv :])
    near(out, p.want(True)[0], 2.0**-6)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_latents_of_e4m3(home, dtype, seed):
    """Copied, times a scale of the tensor or one of each place and 128 columns."""
    p, w = Requests(seed), flashinfer.BatchMLAPagedAttentionWrapper(put(home, np.zeros(1, np.uint8)))
    codes = np.clip(p.cache, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    by_group = p.ckv % 128 == 0
    scale = p.r.random((*codes.shape[:2], p.ckv // 128), np.float32) + 0.5 if by_group else np.float32(0.375)
    rounded = lambda x: x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32).astype(np.float32)  # noqa: E731
    ckv = rounded(codes[..., : p.ckv].astype(np.float32) * (scale.repeat(128, -1) if by_group else scale))
    p.cache, p.q = np.concatenate([ckv, rounded(codes[..., p.ckv :].astype(np.float32) * np.float32(0.75))], -1), rounded(p.q)
    p.rows = [p.cache[p.indices[a:b]].reshape(-1, p.ckv + p.kpe)[:n] for a, b, n in zip(p.bounds[:-1], p.bounds[1:], p.lengths)]
    p.plan(home, w, True)
    q = [give(home, x.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else x) for x in (p.q[..., : p.ckv], p.q[..., p.ckv :])]
    scales = {"ckv_scale_arr": put(home, scale)} if by_group else {"ckv_scale": float(scale)}
    out, lse = w.run(*q, give(home, codes[..., : p.ckv]), give(home, codes[..., p.ckv :]), return_lse=True, kpe_scale=0.75, **scales)
    want, bound = p.want(True), 2e-2 if dtype == "bfloat16" else 2e-5
    near(out, want[0], bound), near(lse, want[1], bound)


def test_bad_latents_of_e4m3(home):
    p, w = Requests(1, 4, [9, 8], [1, 1]), flashinfer.BatchMLAPagedAttentionWrapper(put(home, np.zeros(1, np.uint8)))
    p.plan(home, w, False)
    codes = np.nan_to_num(p.cache).astype(ml_dtypes.float8_e4m3fn)
    q, latents = p.halves(home, p.q, True), [give(home, x) for x in (codes[..., : p.ckv], codes[..., p.ckv :])]
    arr = put(home, np.ones((*codes.shape[:2], 4), np.float32))
    for more, error, said in (({}, vivace.InvalidArgumentError, "Exactly one of ckv_scale or ckv_scale_arr"), ({"ckv_scale": 1.0}, vivace.InvalidArgumentError, "and kpe_scale"),
                              ({"ckv_scale": 1.0, "ckv_scale_arr": arr, "kpe_scale": 1.0}, vivace.InvalidArgumentError, "Exactly one"), ({"ckv_scale": -1.0, "kpe_scale": 1.0}, vivace.InvalidArgumentError, "ckv_scale must be positive"),
                              ({"ckv_scale": 1.0, "kpe_scale": float("nan")}, vivace.InvalidArgumentError, "kpe_scale must be"), ({"ckv_scale_arr": arr[:, :, :3], "kpe_scale": 1.0}, vivace.InvalidShapeError, "Invalid shape of ckv_scale_arr")):
        with pytest.raises(error, match=said):
            w.run(*q, *latents, **more)
    with pytest.raises(vivace.InvalidDTypeError, match="kpe_cache is float32"):
        w.run(*q, latents[0], p.halves(home, p.cache, True)[1], ckv_scale=1.0, kpe_scale=1.0)
    with pytest.raises(vivace.InvalidArgumentError, match="belong to latents of e4m3, ckv_cache is float32"):
        w.run(*q, *p.halves(home, p.cache, True), ckv_scale=1.0)
    with pytest.raises(vivace.UnsupportedError, match="o_scale"):
        w.run(*q, *p.halves(home, p.cache, True), o_scale=1.0)
