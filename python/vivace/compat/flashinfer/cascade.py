"""Attention over disjoint runs of keys, made one: states, levels, shared prefixes."""
import math

import numpy as np

from vivace import ops
from vivace.compat.arrays import beside, cast, check, empty, f32, on_host
from vivace.compat.flashinfer.batch import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper
from vivace.compat.flashinfer.single import single_prefill_with_kv_cache_return_lse
from vivace.errors import InvalidArgumentError, InvalidShapeError

_PADDED = 1 << 26  # elements of states that are copied at a time


def _merge(v, s, v2=None, s2=None, out=None, lse=None):
    out = empty((v.shape[0], *v.shape[2:]), v) if out is None else out
    lse = empty((v.shape[0], v.shape[2]), v, f32(v)) if lse is None else lse
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


def variable_length_merge_states(v, s, indptr):
    """v [rows, H, D], s [rows, H]: of each i the runs of keys in rows [indptr[i], indptr[i + 1]) made one, (out [T, H, D], log-sum-exp [T, H]);
    of no rows 0 and -inf. indptr is read on the host, which waits for a GPU; the rows are copied, padded to the most of any i."""
    bounds = on_host(check(indptr, "indptr")).astype(np.int64)
    if check(v, "v").ndim != 3 or tuple(check(s, "s").shape) != tuple(v.shape[:2]) or bounds.ndim != 1 or len(bounds) < 1:
        raise InvalidShapeError(f"flashinfer: variable_length_merge_states: v {list(v.shape)}, s {list(s.shape)}, indptr {list(indptr.shape)}: wanted [rows, H, D], [rows, H], [T + 1]")
    lens = np.diff(bounds)
    if bounds[0] < 0 or (lens < 0).any() or bounds[-1] > v.shape[0]:
        raise InvalidArgumentError(f"flashinfer: variable_length_merge_states: indptr must rise from 0 on to at most {v.shape[0]} rows")
    T, (_, H, D) = len(lens), v.shape
    out, lse, s = empty((T, H, D), v), empty((T, H), v, f32(v)), cast(s, f32(v))
    step = max(1, _PADDED // max(1, H * D * int(lens.max(initial=1))))
    for at in range(0, T, step):
        some = lens[at : at + step]
        place = np.arange(max(1, int(some.max(initial=0))))
        inside = place < some[:, None]
        rows = beside(np.where(inside, bounds[at : at + step][: len(some), None] + place, 0), v)
        if v.shape[0]:
            sums = s[rows]
            sums[beside(~inside, v)] = -math.inf
            _merge(v[rows], sums, out=out[at : at + step], lse=lse[at : at + step])
        else:
            out[...], lse[...] = 0, -math.inf
    return out, lse


class MultiLevelCascadeAttentionWrapper:
    """Requests that share prefixes: level i has its own grouping of the queries, and pages of its own. The last level is
    each request's own keys, which `causal` concerns; the others are seen whole."""

    def __init__(self, num_levels, float_workspace_buffer=None, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf_arr=None, paged_kv_indptr_buf_arr=None, paged_kv_indices_buf_arr=None,
                 paged_kv_last_page_len_buf_arr=None):
        indices = paged_kv_indices_buf_arr or [None] * num_levels
        self._levels = [BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout, use_cuda_graph, paged_kv_indices_buf=buf) for buf in indices]

    @property
    def is_cuda_graph_enabled(self):
        return self._levels[0].is_cuda_graph_enabled

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

    forward = run


class _SharedPrefix:
    """Keys that every request sees, as one dense run, and each request's own in pages."""

    def __init__(self, float_workspace_buffer=None, kv_layout="NHD"):
        self._own, self._kv_layout = self.OWN(float_workspace_buffer, kv_layout), kv_layout

    def reset_workspace_buffer(self, float_workspace_buffer, *_):
        self._own.reset_workspace_buffer(float_workspace_buffer)

    def end_forward(self):
        """Nothing is held that a next begin_forward() does not replace."""

    def _forward(self, q, k_shared, v_shared, unique_kv_cache, causal=None, sm_scale=None):
        out, lse = self._own.forward_return_lse(q, unique_kv_cache, sm_scale=sm_scale, **({} if causal is None else {"causal": causal}))
        shared = single_prefill_with_kv_cache_return_lse(q, k_shared, v_shared, kv_layout=self._kv_layout, sm_scale=sm_scale)
        return _merge(shared[0][:, None], shared[1][:, None], out, lse, out=out, lse=lse)[0]


class BatchDecodeWithSharedPrefixPagedKVCacheWrapper(_SharedPrefix):
    OWN = BatchDecodeWithPagedKVCacheWrapper

    def begin_forward(self, unique_kv_indptr, unique_kv_indices, unique_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, data_type="float16"):
        self._own.plan(unique_kv_indptr, unique_kv_indices, unique_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size)

    def forward(self, q, k_shared, v_shared, unique_kv_cache):
        return self._forward(q, k_shared, v_shared, unique_kv_cache)


class BatchPrefillWithSharedPrefixPagedKVCacheWrapper(_SharedPrefix):
    OWN = BatchPrefillWithPagedKVCacheWrapper

    def begin_forward(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size):
        self._own.plan(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size)

    def forward(self, q, k_shared, v_shared, unique_kv_cache, causal=False, use_fp16_qk_reduction=False, sm_scale=None, rope_scale=None, rope_theta=None):
        return self._forward(q, k_shared, v_shared, unique_kv_cache, causal, sm_scale)
