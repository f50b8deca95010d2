"""FlashInfer's call names for attention over Vivace's ops: single and batch, prefill and decode, append, merge, cascade.

    from vivace.compat import flashinfer
    o = flashinfer.single_decode_with_kv_cache(q, k, v)

torch tensors (on a GPU or not) and NumPy arrays alike. As there, a log-sum-exp is to base 2, tables are CSR (indptr,
indices, last_page_len), and causal queries are the last of their keys. plan() reads its small arrays on the host and
lays out page tables; run() plans nothing and never waits. Unlike there: workspaces are ignored (Vivace owns its own),
backends are one, and what the ops lack is UnsupportedError: rotation inside attention (rotate keys when they are
appended, with ops.qkv_rope), float8 queries. docs/flashinfer.md has the table.
"""
import math

import numpy as np

from vivace import ops
from vivace.compat import arrays
from vivace.compat.arrays import as_i32, beside, check, copy_into, empty, on_host
from vivace.errors import FailedPreconditionError, InvalidArgumentError, InvalidShapeError, LimitExceededError, UnsupportedError

_LOG2E = math.log2(math.e)


# The shared call

def _layout(kv_layout):
    if kv_layout not in ("NHD", "HND"):
        raise InvalidArgumentError(f"flashinfer: kv_layout is NHD or HND, got {kv_layout!r}")
    return kv_layout == "HND"


def _positions(mode, heads, like):
    """ALiBi slopes, or None."""
    if mode == "NONE":
        return None
    if mode != "ALIBI":
        raise UnsupportedError(f"flashinfer: pos_encoding_mode {mode!r}: attention does not rotate; rotate queries and keys before, with ops.rope or ops.qkv_rope")
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (i + 1) / whole) if i < whole else 2.0 ** (-4 * (2 * (i - whole) + 1) / whole) for i in range(heads)]
    return beside(np.array(slopes, np.float32), like)


def _attend(q, k, v, hnd, *, out=None, lse=None, return_lse=False, causal=False, sm_scale=None, window_left=-1, logits_soft_cap=None, slopes=None, sinks=None, v_scale=None, **ports):
    """q [T, Hq, D]; k, v [B, L, Hkv, D] or, hnd, [B, Hkv, L, D]; ports as those of ops.attention."""
    T, Hq, _ = q.shape
    out = empty((T, Hq, v.shape[-1]), q) if out is None else out
    lse = empty((T, Hq), q, f32=True) if return_lse and lse is None else lse
    settings = {"mask": "causal" if causal else "full", "window": window_left + 1 if window_left >= 0 else 0, "scale": sm_scale or 0.0, "softcap": logits_soft_cap or 0.0}
    ports = {n: p for n, p in ports.items() if p is not None}
    ops.attention(q, k, v, out=out, lse=lse, slopes=slopes, sinks=sinks, layout="hnd" if hnd else "nhd", **ports, **settings)
    if v_scale is not None and v_scale != 1:
        out *= v_scale
    if lse is not None:
        lse *= _LOG2E
    return (out, lse) if return_lse else out


def _scale(sm_scale, D, *factors):
    scale = sm_scale if sm_scale else 1 / math.sqrt(D)
    for f in factors:
        scale *= 1.0 if f is None else float(f)
    return scale


def _bits(masks, widest):
    """Boolean masks [queries, keys] of each request -> words [T, ceil(widest / 32)]."""
    rows = []
    for m in masks:
        wide = np.zeros((m.shape[0], -(-max(widest, 1) // 32) * 32), bool)
        wide[:, : m.shape[1]] = m
        rows.append(np.packbits(wide, axis=1, bitorder="little").view("<i4"))
    return np.concatenate(rows) if rows else np.zeros((0, 1), np.int32)


def _masks(flat, packed, queries, keys):
    """Masks by request from one flat boolean array, or from bytes whose bits are packed low first, each request from a new byte."""
    if flat is None and packed is None:
        return None
    out, at = [], 0
    source = on_host(flat).reshape(-1).astype(bool) if flat is not None else np.unpackbits(on_host(packed).view(np.uint8), bitorder="little").astype(bool)
    for n, L in zip(queries, keys):
        size = int(n) * int(L)
        if at + size > len(source):
            raise InvalidShapeError(f"flashinfer: custom_mask: {len(source)} entries are too few for queries {list(map(int, queries))} and keys {list(map(int, keys))}")
        out.append(source[at : at + size].reshape(int(n), int(L)))
        at += size if flat is not None else -(-size // 8) * 8
    return out


def packbits(x, bitorder="big"):
    """Booleans -> bytes."""
    if bitorder not in ("big", "little"):
        raise InvalidArgumentError(f"flashinfer: bitorder is big or little, got {bitorder!r}")
    return beside(np.packbits(on_host(x).reshape(-1).astype(bool), bitorder=bitorder), x)


def segment_packbits(x, indptr, bitorder="big"):
    """The same by segments, each from a new byte: (bytes, their indptr)."""
    bounds = on_host(indptr)
    parts = [np.packbits(on_host(x)[a:b].astype(bool), bitorder=bitorder) for a, b in zip(bounds[:-1], bounds[1:])]
    sizes = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return beside(np.concatenate(parts) if parts else np.zeros(0, np.uint8), x), beside(sizes, x)


# One request

def single_decode_with_kv_cache(q, k, v, kv_layout="NHD", pos_encoding_mode="NONE", use_tensor_cores=False, q_scale=None, k_scale=None, v_scale=None, window_left=-1,
                                logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, return_lse=False):
    """q [Hq, D] against k, v [L, Hkv, D] (HND: [Hkv, L, D]) -> [Hq, D], with return_lse also [Hq]."""
    hnd = _layout(kv_layout)
    L = check(k, "k").shape[1 if hnd else 0]
    got = _attend(check(q, "q")[None], k[None], v[None], hnd, return_lse=return_lse, window_left=window_left, logits_soft_cap=logits_soft_cap, v_scale=v_scale,
                  sm_scale=_scale(sm_scale, q.shape[-1], q_scale, k_scale), slopes=_positions(pos_encoding_mode, q.shape[0], q), pos=beside(np.array([L - 1], np.int32), q))
    return (got[0][0], got[1][0]) if return_lse else got[0]


def single_prefill_with_kv_cache(q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, custom_mask=None, packed_custom_mask=None, causal=False, kv_layout="NHD",
                                 pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None, rope_theta=None,
                                 backend="auto", return_lse=False):
    """q [T, Hq, D] against k, v [L, Hkv, D] (HND: [Hkv, L, D]); query t is at L - T + t. A custom mask replaces causal."""
    hnd = _layout(kv_layout)
    T, L = check(q, "q").shape[0], check(k, "k").shape[1 if hnd else 0]
    if o_dtype is not None and o_dtype != q.dtype:
        raise UnsupportedError(f"flashinfer: o_dtype {o_dtype}: the output has q's dtype, {q.dtype}")
    masks = _masks(custom_mask, packed_custom_mask, [T], [L])
    return _attend(q, k[None], v[None], hnd, return_lse=return_lse, causal=causal and masks is None, window_left=window_left, logits_soft_cap=logits_soft_cap, v_scale=scale_v,
                   sm_scale=_scale(sm_scale, q.shape[-1], scale_q, scale_k), slopes=_positions(pos_encoding_mode, q.shape[1], q),
                   pos=beside(np.arange(L - T, L, dtype=np.int32), q), bits=None if masks is None else beside(_bits(masks, L), q))


def _return_lse(f):
    def g(*args, **kwargs):
        return f(*args, **kwargs, return_lse=True)

    g.__doc__ = f.__doc__
    return g


single_prefill_with_kv_cache_return_lse = _return_lse(single_prefill_with_kv_cache)


# Pages

def _pages(cache, hnd):
    """(k, v) of a paged cache: a pair, or one array [pages, 2, ...]."""
    k, v = cache if isinstance(cache, (tuple, list)) else (cache[:, 0], cache[:, 1])
    return check(k, "paged_kv_cache"), v


def get_seq_lens(kv_indptr, kv_last_page_len, page_size):
    """Keys of each request: its pages but the last are full."""
    pages = kv_indptr[1:] - kv_indptr[:-1]
    return ((pages - 1) * page_size + kv_last_page_len) * (pages > 0)


def get_batch_indices_positions(append_indptr, seq_lens, nnz):
    """(request, position) of each appended token: a request's tokens are the last of its `seq_lens`. Entries beyond the tokens are -1."""
    bounds, lens = on_host(append_indptr).astype(np.int64), on_host(seq_lens).astype(np.int64)
    counts = np.diff(bounds)
    batch, pos = np.full(nnz, -1, np.int32), np.full(nnz, -1, np.int32)
    n = int(bounds[-1])
    if n > nnz:
        raise InvalidShapeError(f"flashinfer: get_batch_indices_positions: append_indptr ends at {n}, nnz is {nnz}")
    batch[:n] = np.repeat(np.arange(len(counts)), counts)
    pos[:n] = np.arange(n) - np.repeat(bounds[:-1], counts) + np.repeat(lens - counts, counts)
    return beside(batch, append_indptr), beside(pos, append_indptr)


def append_paged_kv_cache(append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr, kv_last_page_len, kv_layout="NHD"):
    """Writes token i to place positions[i] of request batch_indices[i], on the device. Negative requests write nothing."""
    hnd = _layout(kv_layout)
    k, v = _pages(paged_kv_cache, hnd)
    size = k.shape[2 if hnd else 1]
    valid = (batch_indices >= 0) & (positions >= 0)
    at = (kv_indptr[batch_indices * valid] + positions * valid // size) * valid
    last = kv_indices.shape[0] - 1
    at = at.clip(0, last) if last >= 0 else at
    page, place = as_i32(kv_indices[at] * valid - 1 * ~valid), as_i32(positions * valid % size)
    ops.kv_append(append_key, append_value, pos=place, slot=page, k_cache=k, v_cache=v, layout="hnd" if hnd else "nhd")


class _Planned:
    """What the batch wrappers share: buffers that keep their address, and the settings of plan()."""

    def __init__(self, float_workspace_buffer=None, kv_layout="NHD", use_cuda_graph=False, **_):
        self._hnd, self._fixed = _layout(kv_layout), use_cuda_graph
        self._like, self._buffers, self._settings = float_workspace_buffer, {}, None
        if float_workspace_buffer is not None:
            check(float_workspace_buffer, "float_workspace_buffer")

    @property
    def is_cuda_graph_enabled(self):
        return self._fixed

    def reset_workspace_buffer(self, float_workspace_buffer, *_):
        self._like = float_workspace_buffer

    def _keep(self, name, host, like):
        """`host` on the device, at the address it had before where the size is the same."""
        old, host = self._buffers.get(name), np.ascontiguousarray(host, np.int32)
        if old is None or tuple(old.shape) != host.shape:
            if old is not None and self._fixed:
                if old.ndim != 2 or old.shape[0] != host.shape[0] or old.shape[1] < host.shape[1]:
                    raise LimitExceededError(f"flashinfer: plan: {name} was {tuple(old.shape)} when the graph was made, now {host.shape}; plan the largest first")
                host = np.pad(host, ((0, 0), (0, old.shape[1] - host.shape[1])), constant_values=-1)
                copy_into(old, host)
                return
            self._buffers[name] = beside(host, like)
        else:
            copy_into(old, host)

    def _plan(self, qo_indptr, kv_indptr, lens, indices, custom_mask, packed_custom_mask, causal, heads, scale, settings, pos_encoding_mode):
        """Per token: position and request. Per request: keys, and pages as a table where they are given."""
        like = self._like if self._like is not None else kv_indptr if arrays.is_torch(kv_indptr) else np.zeros(0)
        queries, bounds = np.diff(qo_indptr), np.asarray(kv_indptr if isinstance(kv_indptr, np.ndarray) else on_host(kv_indptr))
        if (queries < 0).any() or (np.diff(bounds) < 0).any() or len(queries) != len(bounds) - 1:
            raise InvalidShapeError(f"flashinfer: plan: qo_indptr has {len(queries)} requests and kv_indptr {len(bounds) - 1}, each rising; got {queries.tolist()}, {np.diff(bounds).tolist()}")
        n, T = len(queries), int(qo_indptr[-1])
        request = np.repeat(np.arange(n), queries)
        self._keep("pos", np.arange(T) - np.repeat(qo_indptr[:-1], queries) + np.repeat(lens - queries, queries), like)
        self._keep("slot", request, like)
        self._keep("length", lens, like)
        if indices is not None:
            pages = np.diff(bounds)
            table = np.full((n, max(1, int(pages.max(initial=0)))), -1, np.int32)
            for r in range(n):
                table[r, : pages[r]] = indices[bounds[r] : bounds[r + 1]]
            self._keep("page_table", table, like)
        masks = _masks(custom_mask, packed_custom_mask, queries, lens)
        self._buffers.pop("bits", None) if masks is None else self._keep("bits", _bits(masks, int(lens.max(initial=0))), like)
        slopes = _positions(pos_encoding_mode, heads, like)
        self._tokens, self._settings = T, settings | {"causal": causal and masks is None, "slopes": slopes, "sm_scale": scale}

    def _run(self, q, k, v, hnd, out, lse, return_lse, q_scale=None, k_scale=None, v_scale=None, sinks=None, window_left=None, **more):
        if self._settings is None:
            raise FailedPreconditionError("flashinfer: run before plan")
        if check(q, "q").shape[0] != self._tokens:
            raise InvalidShapeError(f"flashinfer: run: plan had {self._tokens} queries, q has {q.shape[0]}")
        settings = dict(self._settings)
        settings["sm_scale"] = _scale(settings["sm_scale"], q.shape[-1], q_scale, k_scale)
        if window_left is not None:
            settings["window_left"] = window_left
        return _attend(q, k, v, hnd, out=out, lse=lse, return_lse=return_lse, v_scale=v_scale, sinks=sinks, **settings, **self._buffers, **more)


class BatchPrefillWithPagedKVCacheWrapper(_Planned):
    """Queries of several requests, [T, Hq, D] one after another, against pages."""

    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim_qk, page_size, head_dim_vo=None, custom_mask=None,
             packed_custom_mask=None, causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None,
             rope_theta=None, **_):
        bounds = on_host(paged_kv_indptr)
        if self._like is None:
            self._like = paged_kv_indices
        lens = get_seq_lens(bounds, on_host(paged_kv_last_page_len), page_size)
        self._plan(on_host(qo_indptr), bounds, lens, on_host(paged_kv_indices), custom_mask, packed_custom_mask, causal, num_qo_heads, sm_scale,
                   {"window_left": window_left, "logits_soft_cap": logits_soft_cap}, pos_encoding_mode)

    begin_forward = plan

    def run(self, q, paged_kv_cache, *, out=None, lse=None, return_lse=False, q_scale=None, k_scale=None, v_scale=None, sinks=None, window_left=None, enable_pdl=None):
        k, v = _pages(paged_kv_cache, self._hnd)
        return self._run(q, k, v, self._hnd, out, lse, return_lse, q_scale, k_scale, v_scale, sinks, window_left)

    run_return_lse = _return_lse(run)


class BatchDecodeWithPagedKVCacheWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """One query a request, [B, Hq, D], against pages."""

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None,
             q_data_type=None, kv_data_type=None, data_type=None, sm_scale=None, rope_scale=None, rope_theta=None, **_):
        one = np.arange(len(indptr), dtype=np.int64)
        super().plan(one, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, causal=True, pos_encoding_mode=pos_encoding_mode, sm_scale=sm_scale,
                     window_left=window_left, logits_soft_cap=logits_soft_cap)

    begin_forward = plan


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """The same with buffers that keep their address: plan the longest requests first, then replan between replays."""

    def __init__(self, workspace_buffer, indptr_buffer=None, indices_buffer=None, last_page_len_buffer=None, kv_layout="NHD", **_):
        super().__init__(workspace_buffer, kv_layout, use_cuda_graph=True)


class BatchPrefillWithRaggedKVCacheWrapper(_Planned):
    """Queries, keys and values of several requests, each one after another; the keys of request r are rows
    [kv_indptr[r], kv_indptr[r + 1])."""

    def plan(self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False, pos_encoding_mode="NONE",
             use_fp16_qk_reduction=False, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, **_):
        bounds = on_host(kv_indptr).astype(np.int64)
        if self._like is None:
            self._like = kv_indptr
        lens = np.diff(bounds)
        self._keep("k_offsets", bounds, self._like)
        self._plan(on_host(qo_indptr), bounds, lens, None, custom_mask, packed_custom_mask, causal, num_qo_heads, sm_scale,
                   {"window_left": window_left, "logits_soft_cap": logits_soft_cap}, pos_encoding_mode)

    begin_forward = plan

    def run(self, q, k, v, *, out=None, lse=None, return_lse=False, q_scale=None, k_scale=None, v_scale=None, sinks=None, enable_pdl=None):
        if self._hnd:
            raise UnsupportedError("flashinfer: ragged keys are [rows, Hkv, D], which is NHD")
        return self._run(q, k[None], v[None], False, out, lse, return_lse, q_scale, k_scale, v_scale, sinks)

    run_return_lse = _return_lse(run)


# States

def _merge(v, s, v2=None, s2=None, out=None, lse=None):
    out = empty((v.shape[0], *v.shape[2:]), v) if out is None else out
    lse = empty((v.shape[0], v.shape[2]), v, f32=True) if lse is None else lse
    ops.merge_states(v, s, v2=v2, s2=s2, out=out, lse=lse, base2=True)
    return out, lse


def merge_state(v_a, s_a, v_b, s_b):
    """Attention over two disjoint runs of keys, [T, H, D] and [T, H], made one."""
    return _merge(check(v_a, "v_a")[:, None], s_a[:, None], v_b, s_b)


def merge_state_in_place(v, s, v_other, s_other, mask=None):
    """v and s become the merge with the other; where mask is false they stay."""
    if mask is not None:
        keep = mask.astype(bool) if isinstance(mask, np.ndarray) else mask.bool()
        s_other = np.where(keep[:, None], s_other, np.float32(-np.inf)) if isinstance(keep, np.ndarray) else s_other.masked_fill(~keep[:, None], -math.inf)
    _merge(check(v_other, "v_other")[:, None], s_other[:, None], v, s, out=v, lse=s)


def merge_states(v, s):
    """v [T, N, H, D], s [T, N, H]: N runs of keys made one."""
    return _merge(check(v, "v"), s)


class MultiLevelCascadeAttentionWrapper:
    """Requests that share prefixes: level i has its own grouping of the queries, and pages of its own. The last level is
    each request's own keys, which `causal` concerns; the others are seen whole."""

    def __init__(self, num_levels, float_workspace_buffer=None, kv_layout="NHD", use_cuda_graph=False, **_):
        self._levels = [BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout, use_cuda_graph) for _ in range(num_levels)]

    def plan(self, qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, causal=False, **settings):
        arguments = (qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len)
        for name, a in zip(("qo_indptr_arr", "paged_kv_indptr_arr", "paged_kv_indices_arr", "paged_kv_last_page_len"), arguments):
            if len(a) != len(self._levels):
                raise InvalidShapeError(f"flashinfer: plan: {name} has {len(a)} levels, the wrapper {len(self._levels)}")
        for i, (level, *tables) in enumerate(zip(self._levels, *arguments)):
            level.plan(*tables, num_qo_heads, num_kv_heads, head_dim, page_size, causal=causal and i + 1 == len(self._levels), **settings)

    begin_forward = plan

    def run(self, q, paged_kv_cache):
        out, lse = self._levels[-1].run(q, paged_kv_cache, return_lse=True)
        for level in self._levels[:-1]:
            other = level.run(q, paged_kv_cache, return_lse=True)
            _merge(other[0][:, None], other[1][:, None], out, lse, out=out, lse=lse)
        return out
