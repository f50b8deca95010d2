// Arguments of `rope_attention`'s kernel. POD; see vivace/ops/rope_attention.h.
#pragma once
#include "vivace/kernels/attention/attention.h"
#include "vivace/kernels/rope/qkv_rope.h"

namespace vivace::kernels {

/// Those of attention_swap_ab, but no map of queries, which are never in memory; what qkv_rope has besides. Caches,
/// pos, slot and rows are attention's.
struct RopeAttentionArgs {
  AttentionTmaArgs tma;
  const void* qkv;        // [T, (Hq + 2 * Hkv) * D]
  const float* inv_freq;  // [R] or null
  const void* q_norm;     // [D] or null
  const void* k_norm;
  int64_t qkv_stride;     // elements a token
  float attn_factor, eps;
  bool norm_plus_one;
  DType q_norm_dtype, k_norm_dtype;
};

/// Norms of queries and keys: none; both, whole words of the queries' type; or what the arguments say.
enum class HeadNorms : int32_t { none, alike, any };

/// What a block makes runs once and waits for its instructions: all that can be is known when they are compiled.
struct RopeAttentionPolicy {
  AttentionSwapAB swap_ab;
  int32_t lanes;  // that hold a head, each 8 pairs; as qkv_rope's
  int32_t R;      // pairs that turn
  bool interleaved;
  HeadNorms norms;
  bool stable;    // places, rows and earlier keys and values may be read before the dependency wait
  static constexpr int kMostTokens = 32;  // a lane for each row of the call
  static constexpr int kMostHeads = 8;    // queries of a kv head
  constexpr bool operator==(const RopeAttentionPolicy&) const = default;

  VV_HD constexpr RopePolicy rope() const { return {256, 8, 8, lanes, 1, 1}; }
  /// Behind the memory of attention_swap_ab lie the key and the value that the tile's token appends.
  VV_HD constexpr int appended_at() const { return (swap_ab.smem() + 15) / 16 * 16; }
  VV_HD constexpr int smem() const { return appended_at() + 2 * swap_ab.d * 2; }
};

}  // namespace vivace::kernels
