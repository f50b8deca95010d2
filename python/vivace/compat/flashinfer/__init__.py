"""FlashInfer's call names over Vivace's ops: attention (single and batch, prefill and decode, append, merge, cascade), norm, activation,
rope, sampling, gemm, quantization, fused_moe, mla; by name and in modules of the same names.

    from vivace.compat import flashinfer
    o = flashinfer.single_decode_with_kv_cache(q, k, v)

torch tensors (on a GPU or not) and NumPy arrays alike. As there, a log-sum-exp is to base 2, tables are CSR (indptr,
indices, last_page_len), and causal queries are the last of their keys. plan() reads its small arrays on the host and
lays out page tables; run() never waits. Unlike there: workspaces are ignored (Vivace owns its own), backends are one,
and what the ops lack is a vivace error that says so. docs/flashinfer.md has the table.
"""
from vivace.compat.flashinfer.activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from vivace.compat.flashinfer.batch import (BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper,
                                            CUDAGraphBatchDecodeWithPagedKVCacheWrapper, fast_decode_plan)
from vivace.compat.flashinfer.cascade import (BatchDecodeWithSharedPrefixPagedKVCacheWrapper, BatchPrefillWithSharedPrefixPagedKVCacheWrapper, MultiLevelCascadeAttentionWrapper,
                                              merge_state, merge_state_in_place, merge_states, variable_length_merge_states)
from vivace.compat.flashinfer.composed import (BatchAttention, BatchAttentionWithAttentionSinkWrapper, BatchPODWithPagedKVCacheWrapper, BlockSparseAttentionWrapper,
                                               PODWithPagedKVCacheWrapper, VariableBlockSparseAttentionWrapper)
from vivace.compat.flashinfer.fp4 import (nvfp4_kv_dequantize, nvfp4_kv_dequantize_paged, nvfp4_kv_quantize, nvfp4_quantize_append_paged_kv_cache,
                                          nvfp4_quantize_append_paged_kv_cache_with_slot_mapping)
from vivace.compat.flashinfer.fused_moe import (ActivationType, cutlass_fused_moe, fused_topk_deepseek, interleave_moe_scales_for_sm90_mixed_gemm,
                                                interleave_moe_weights_for_sm90_mixed_gemm)
from vivace.compat.flashinfer.gemm import SegmentGEMMWrapper, bmm_bf16, bmm_fp8, gemm_fp8_nt_blockscaled, gemm_fp8_nt_groupwise, mm_bf16
from vivace.compat.flashinfer.mla import BatchMLAPagedAttentionWrapper, concat_mla_k, trtllm_batch_decode_with_kv_cache_mla
from vivace.compat.flashinfer.norm import (fused_add_rmsnorm, fused_add_rmsnorm_quant, gemma_fused_add_rmsnorm, gemma_rmsnorm, layernorm, layernorm_quant, rmsnorm,
                                           rmsnorm_quant)
from vivace.compat.flashinfer.page import append_paged_kv_cache, append_paged_mla_kv_cache, get_batch_indices_positions, get_seq_lens
from vivace.compat.flashinfer.quantization import packbits, segment_packbits
from vivace.compat.flashinfer.rope import (apply_llama31_rope, apply_llama31_rope_inplace, apply_llama31_rope_pos_ids, apply_llama31_rope_pos_ids_inplace, apply_rope,
                                           apply_rope_inplace, apply_rope_pos_ids, apply_rope_pos_ids_inplace, apply_rope_with_cos_sin_cache,
                                           apply_rope_with_cos_sin_cache_inplace)
from vivace.compat.flashinfer.sampling import (chain_speculative_sampling, min_p_sampling_from_probs, sampling_from_logits, sampling_from_probs, softmax, top_k_mask_logits,
                                               top_k_renorm_probs, top_k_sampling_from_probs, top_k_top_p_sampling_from_logits, top_k_top_p_sampling_from_probs,
                                               top_p_renorm_probs, top_p_sampling_from_probs)
from vivace.compat.flashinfer.single import single_decode_with_kv_cache, single_prefill_with_kv_cache, single_prefill_with_kv_cache_return_lse
from vivace.compat.flashinfer import triton  # noqa: F401

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("batch", "call", "composed", "experts", "fp4", "single")]
