"""FlashInfer's call names for attention over Vivace's ops: single and batch, prefill and decode, append, merge, cascade.

    from vivace.compat import flashinfer
    o = flashinfer.single_decode_with_kv_cache(q, k, v)

torch tensors (on a GPU or not) and NumPy arrays alike. As there, a log-sum-exp is to base 2, tables are CSR (indptr,
indices, last_page_len), and causal queries are the last of their keys. plan() reads its small arrays on the host and
lays out page tables; run() never waits. Unlike there: workspaces are ignored (Vivace owns its own), backends are one,
and what the ops lack is a vivace error that says so. docs/flashinfer.md has the table.
"""
from vivace.compat.flashinfer.batch import (BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper,
                                            CUDAGraphBatchDecodeWithPagedKVCacheWrapper, fast_decode_plan)
from vivace.compat.flashinfer.call import packbits, segment_packbits
from vivace.compat.flashinfer.cascade import (BatchDecodeWithSharedPrefixPagedKVCacheWrapper, BatchPrefillWithSharedPrefixPagedKVCacheWrapper, MultiLevelCascadeAttentionWrapper,
                                              merge_state, merge_state_in_place, merge_states)
from vivace.compat.flashinfer.composed import (BatchAttention, BatchAttentionWithAttentionSinkWrapper, BatchPODWithPagedKVCacheWrapper, BlockSparseAttentionWrapper,
                                               PODWithPagedKVCacheWrapper, VariableBlockSparseAttentionWrapper)
from vivace.compat.flashinfer.fp4 import (nvfp4_kv_dequantize, nvfp4_kv_dequantize_paged, nvfp4_kv_quantize, nvfp4_quantize_append_paged_kv_cache,
                                          nvfp4_quantize_append_paged_kv_cache_with_slot_mapping)
from vivace.compat.flashinfer.page import append_paged_kv_cache, append_paged_mla_kv_cache, get_batch_indices_positions, get_seq_lens
from vivace.compat.flashinfer.single import single_decode_with_kv_cache, single_prefill_with_kv_cache, single_prefill_with_kv_cache_return_lse

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("batch", "call", "cascade", "composed", "fp4", "page", "single")]
