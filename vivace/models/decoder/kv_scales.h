// Scales of an e4m3 cache, as checkpoints carry them: a key or value is its code times its layer's scale.
#pragma once
#include "vivace/models/decoder/weights.h"

namespace vivace::models::decoder {

/// What became of the checkpoint's: it has none; it has, and the cache is not e4m3; each layer that attends has its
/// own.
enum class KvScales : uint8_t { none, unread, used };

/// Sets k_scale and v_scale of all layers that attend, where `cache` is e4m3 and the checkpoint has any. Their names
/// behind a layer's attention are k_scale and v_scale (compressed-tensors, vLLM), attn.k_scale, k_proj.k_scale and
/// v_proj.v_scale (ModelOpt), k_proj.output_scale and v_proj.output_scale (older compressed-tensors), or kv_scale for
/// both; each one number in f32, bf16 or f16, or one a kv head, all equal. A draft layer without any has 1. Errors:
/// NotFound for one that is missing where another is there, CorruptData for two spellings of one and for a scale that
/// is not positive and finite, InvalidShape for another count of numbers, Unsupported for heads with scales of their
/// own, for other types and for a config.json that says the scales are of another format.
Result<KvScales> read_kv_scales(const engine::Checkpoint& checkpoint, const DecoderConfig& config, DType cache,
                                DecoderWeights* weights);

/// The values of a small tensor of f32, bf16 or f16. Errors: Unsupported for other types, CorruptData for one that is
/// not positive and finite; both name the tensor.
Result<std::vector<float>> positive_scales(const engine::Checkpoint& checkpoint, const engine::TensorEntry& entry);

}  // namespace vivace::models::decoder
