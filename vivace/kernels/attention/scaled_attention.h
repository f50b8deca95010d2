// Arguments of `scaled_attention`, shared by the CPU and CUDA kernels. POD; see vivace/ops/scaled_attention.h.
#pragma once
#include "vivace/kernels/attention/attention.h"

namespace vivace::kernels {

struct ScaledAttentionArgs {
  AttentionArgs a;       // dtype: of out; q, k and v are e4m3
  const float* q_scale;  // [Hq] or null: 1
  const float* k_scale;  // [Hkv] or null: 1
  const float* v_scale;  // [Hkv] or null: 1
};

/// Four warps of 16 rows; a row is a query of one head, heads of one kv head beside one another. Keys go in blocks of kKeys.
struct ScaledAttentionTile {
  int32_t d;  // of queries, keys and values: 64 or 128
  bool wide;  // rows begin at multiples of 16 bytes
  static constexpr int kThreads = 128, kRows = 64, kKeys = 64, kStages = 2;
  constexpr bool operator==(const ScaledAttentionTile&) const = default;

  VV_HD constexpr int pitch() const { return d + 16; }  // bytes: an odd number of 16
  VV_HD constexpr int smem() const { return (kRows + kStages * 2 * kKeys) * pitch(); }
};

}  // namespace vivace::kernels
