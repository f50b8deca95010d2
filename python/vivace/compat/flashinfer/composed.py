"""Wrappers that FlashInfer has kernels of their own for, as calls of the others: mixed batches, sinks, prefill beside decode, block-sparse masks."""
import numpy as np

from vivace.compat.arrays import on_host
from vivace.compat.flashinfer.batch import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper, Planned
from vivace.compat.flashinfer.call import is_hnd, masks_of, only_ignored
from vivace.compat.flashinfer.page import pages_of
from vivace.compat.flashinfer.single import single_prefill_with_kv_cache
from vivace.errors import FailedPreconditionError, InvalidArgumentError, InvalidShapeError, UnsupportedError


class BatchAttention(Planned):
    """Prefill and decode in one batch, against pages; run() gives the log-sum-exp always."""

    def __init__(self, kv_layout="NHD", device="cuda"):
        super().__init__(None, kv_layout)

    def plan(self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, page_size, causal=False, sm_scale=None, logits_soft_cap=None,
             q_data_type=None, kv_data_type=None, use_profiler=False):
        if self._like is None:
            self._like = kv_indices
        self._plan(on_host(qo_indptr), on_host(kv_indptr), on_host(kv_len_arr), on_host(kv_indices), page_size, None, causal, num_qo_heads, head_dim_qk, "NONE", kv_data_type=kv_data_type,
                   sm_scale=sm_scale, logits_soft_cap=logits_soft_cap)

    def run(self, q, kv_cache, out=None, lse=None, k_scale=None, v_scale=None, logits_soft_cap=0.0, profiler_buffer=None, kv_cache_sf=None):
        if self._settings is not None and (logits_soft_cap or 0.0) != (self._settings["logits_soft_cap"] or 0.0):
            raise InvalidArgumentError(f"flashinfer: run: logits_soft_cap {logits_soft_cap}, plan had {self._settings['logits_soft_cap']}")
        k, v = pages_of(kv_cache, self._hnd)
        return self._run(q, k, v, self._hnd, out, lse, True, kv_cache_sf, k_scale=k_scale, v_scale=v_scale)


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """Queries against pages with a sink a head; the window is one of construction, sinks and scale come with each run."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, backend="auto", pos_encoding_mode="NONE", use_fp16_qk_reduction=False, q_data_type=None,
                 kv_data_type=None, head_dim_qk=128, head_dim_vo=128, window_left=-1, **buffers):
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend, **buffers)
        self._window, self._mode = window_left, pos_encoding_mode

    def plan(self, *tables, window_left=None, pos_encoding_mode=None, **settings):
        super().plan(*tables, window_left=self._window if window_left is None or window_left < 0 else window_left, pos_encoding_mode=pos_encoding_mode or self._mode, **settings)

    def run(self, q, paged_kv_cache, sinks=None, sm_scale=None, *, out=None, lse=None, return_lse=False, **others):
        only_ignored("run", others)
        k, v = pages_of(paged_kv_cache, self._hnd)
        return self._run(q, k, v, self._hnd, out, lse, return_lse, sm_scale=sm_scale, sinks=sinks)


class PODWithPagedKVCacheWrapper:
    """A prefill of one request with dense keys and a batch's decode; both results of one call, in two."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, jit_args=None, **buffers):
        self._decode = BatchDecodeWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout, use_cuda_graph, jit_args=jit_args, **buffers)

    def plan(self, *tables, **settings):
        self._decode.plan(*tables, **settings)

    begin_forward = plan

    def end_forward(self):
        """Nothing is held that a next plan() does not replace."""

    def run(self, q_p, k_p, v_p, q_d, paged_kv_cache_d, custom_mask_p=None, packed_custom_mask_p=None, causal_p=False, kv_layout_p="NHD", pos_encoding_mode_p="NONE", sm_scale_p=None,
            window_left_p=-1, rope_scale_p=None, rope_theta_p=None, return_lse_p=False, custom_mask_d=None, packed_custom_mask_d=None, causal_d=False, kv_layout_d="NHD",
            pos_encoding_mode_d="NONE", sm_scale_d=None, window_left_d=-1, rope_scale_d=None, rope_theta_d=None, q_scale=None, k_scale=None, v_scale=None, return_lse_d=False,
            use_fp16_qk_reduction=False, enable_pdl=None):
        if custom_mask_d is not None or packed_custom_mask_d is not None:
            raise UnsupportedError("flashinfer: POD: a mask of the decode part: one query a request sees all of its keys")
        prefill = single_prefill_with_kv_cache(q_p, k_p, v_p, custom_mask=custom_mask_p, packed_custom_mask=packed_custom_mask_p, causal=causal_p, kv_layout=kv_layout_p,
                                               pos_encoding_mode=pos_encoding_mode_p, sm_scale=sm_scale_p, window_left=window_left_p, rope_scale=rope_scale_p, rope_theta=rope_theta_p,
                                               return_lse=return_lse_p)
        decode = self._decode.run(q_d, paged_kv_cache_d, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse_d)
        return prefill, decode


class BatchPODWithPagedKVCacheWrapper:
    """A batch's prefill and another's decode, each against pages; both results of one call, in two."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        self._parts = [BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout) for _ in range(2)]

    def plan(self, qo_indptr_p, kv_indptr_p, kv_indices_p, last_page_len_p, qo_indptr_d, kv_indptr_d, kv_indices_d, last_page_len_d, num_qo_heads, num_kv_heads, head_dim, page_size, **settings):
        self._p = (qo_indptr_p, kv_indptr_p, kv_indices_p, last_page_len_p, num_qo_heads, num_kv_heads, head_dim, page_size)
        self._more = settings
        self._parts[0].plan(*self._p, **settings)
        self._parts[1].plan(qo_indptr_d, kv_indptr_d, kv_indices_d, last_page_len_d, num_qo_heads, num_kv_heads, head_dim, page_size, causal=True, **settings)

    begin_forward = plan

    def end_forward(self):
        """Nothing is held that a next plan() does not replace."""

    def run(self, q_p, paged_kv_cache_p, q_d, paged_kv_cache_d, custom_mask_p=None, packed_custom_mask_p=None, causal_p=False, q_scale=None, k_scale=None, v_scale=None, return_lse=False,
            use_fp16_qk_reduction=False, enable_pdl=None):
        """A mask or causal_p is a setting of the prefill that comes with the run: it is planned again where a mask is given."""
        scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "return_lse": return_lse}
        if custom_mask_p is not None or packed_custom_mask_p is not None:
            self._parts[0].plan(*self._p, custom_mask=custom_mask_p, packed_custom_mask=packed_custom_mask_p, **self._more)
        elif self._parts[0]._settings is not None:
            self._parts[0]._settings["causal"] = causal_p
        return self._parts[0].run(q_p, paged_kv_cache_p, **scales), self._parts[1].run(q_d, paged_kv_cache_d, **scales)


class BlockSparseAttentionWrapper(Planned):
    """Dense q [M, Hq, D] and k, v [N, Hkv, D] under a mask of blocks of R queries and C keys, in CSR: block row i sees the
    columns of indices[indptr[i] : indptr[i + 1]]; `mask` [blocks, R, C] or its bits mask within them."""

    def __init__(self, float_workspace_buffer=None, backend="auto"):
        super().__init__(float_workspace_buffer, backend=backend)

    def plan(self, indptr, indices, M, N, R, C, num_qo_heads, num_kv_heads, head_dim, mask=None, packed_mask=None, causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False,
             logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, kv_data_type=None, o_data_type=None, **others):
        only_ignored("plan", others)
        if pos_encoding_mode == "ROPE_LLAMA" or causal:
            raise UnsupportedError("flashinfer: block-sparse: causal and ROPE_LLAMA: a block's keys have no positions here")
        if M % R or N % C:
            raise InvalidShapeError(f"flashinfer: block-sparse: {M} queries and {N} keys are not whole blocks of {R} and {C}")
        bounds, columns = on_host(indptr).astype(np.int64), on_host(indices)
        if len(bounds) != M // R + 1:
            raise InvalidShapeError(f"flashinfer: block-sparse: {M // R} rows of blocks, indptr has {len(bounds)} entries")
        if self._like is None:
            self._like = indices
        counts, self._C, self._N = np.diff(bounds), C, N
        if packed_mask is not None:  # of each block row's blocks, one after another, each block row from a new byte
            raise UnsupportedError("flashinfer: block-sparse: packed_mask: give mask")
        masks = None
        if mask is not None:  # [blocks, R, C] -> of each block row [R, blocks * C]
            blocks = on_host(mask).astype(bool).reshape(-1, R, C)
            masks = [blocks[a:b].transpose(1, 0, 2).reshape(R, -1) for a, b in zip(bounds[:-1], bounds[1:])]
        self._plan(np.arange(M // R + 1, dtype=np.int64) * R, bounds, counts * C, columns, C, masks, False, num_qo_heads, head_dim, pos_encoding_mode, sm_scale=sm_scale,
                   logits_soft_cap=logits_soft_cap, out_dtype=o_data_type)

    begin_forward = plan

    def run(self, q, k, v, scale_q=None, scale_k=None, scale_v=None, out=None, lse=None, return_lse=False, enable_pdl=None):
        if self._settings is not None and k.shape[0] != self._N:
            raise InvalidShapeError(f"flashinfer: block-sparse: plan had {self._N} keys, k has {k.shape[0]}")
        k, v = (x.reshape(-1, self._C, *x.shape[1:]) if self._settings is not None else x for x in (k, v))
        return self._run(q, k, v, False, out, lse, return_lse, q_scale=scale_q, k_scale=scale_k, v_scale=scale_v)


class VariableBlockSparseAttentionWrapper(Planned):
    """q [Hq, M, D], k, v [Hkv, N, D]; kv head h has its own map of blocks [MB, NB], whose row i is block_row_sz[h, i] queries and
    whose column j is block_col_sz[h, j] keys."""

    def __init__(self, float_workspace_buffer=None, backend="auto"):
        super().__init__(float_workspace_buffer, backend=backend)

    def plan(self, block_mask_map, block_row_sz, block_col_sz, num_qo_heads, num_kv_heads, head_dim, causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False,
             logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, **others):
        only_ignored("plan", others)
        if pos_encoding_mode != "NONE" or causal:
            raise UnsupportedError("flashinfer: variable block-sparse: causal and position encodings: a block's keys have no positions here")
        blocks, rows, columns = on_host(block_mask_map).astype(bool), on_host(block_row_sz), on_host(block_col_sz)
        M, N = int(rows[0].sum()), int(columns[0].sum())
        if blocks.shape[0] != num_kv_heads or blocks.shape != (num_kv_heads, rows.shape[1], columns.shape[1]) or (rows.sum(1) != M).any() or (columns.sum(1) != N).any() or num_qo_heads % num_kv_heads:
            raise InvalidShapeError(f"flashinfer: variable block-sparse: a map {blocks.shape} with row sizes {rows.shape} and column sizes {columns.shape}, each head's of one sum, for {num_qo_heads} and {num_kv_heads} heads")
        if self._like is None:
            self._like = block_mask_map
        self._shape = (num_qo_heads, num_kv_heads, M, N)
        masks = [np.repeat(np.repeat(b, c, 1), r, 0) for b, r, c in zip(blocks, rows, columns)]
        # Each kv head is a request of its own, with its group of query heads.
        starts = np.arange(num_kv_heads + 1, dtype=np.int64)
        self._plan(starts * M, starts * N, np.full(num_kv_heads, N), None, None, masks, False, num_qo_heads // num_kv_heads, head_dim, "NONE", sm_scale=sm_scale, logits_soft_cap=logits_soft_cap)
        self._keep(self._buffers, "k_offsets", starts * N)

    begin_forward = plan

    def run(self, q, k, v, out=None, lse=None, return_lse=False, enable_pdl=None):
        if self._settings is None:
            raise FailedPreconditionError("flashinfer: run before plan")
        Hq, Hkv, M, N = self._shape
        if tuple(q.shape[:2]) != (Hq, M) or tuple(k.shape[:2]) != (Hkv, N):
            raise InvalidShapeError(f"flashinfer: variable block-sparse: plan had q [{Hq}, {M}, D] and k [{Hkv}, {N}, D], got {tuple(q.shape)} and {tuple(k.shape)}")
        group, D = Hq // Hkv, q.shape[-1]
        rows = q.reshape(Hkv, group, M, D).swapaxes(1, 2).reshape(Hkv * M, group, D)
        got, mass = self._run(rows, k.reshape(1, Hkv * N, 1, D), v.reshape(1, Hkv * N, 1, v.shape[-1]), False, None, None, True)
        results = [x.reshape(Hkv, M, group, *x.shape[2:]).swapaxes(1, 2).reshape(Hq, M, *x.shape[2:]) for x in (got, mass)]
        for i, given in enumerate((out, lse)):
            if given is not None:
                given[...] = results[i]
                results[i] = given
        return tuple(results) if return_lse else results[0]
