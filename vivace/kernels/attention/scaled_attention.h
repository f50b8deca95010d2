// Arguments of `scaled_attention`, shared by the CPU and CUDA kernels. POD; see vivace/ops/scaled_attention.h.
#pragma once
#include "vivace/kernels/attention/attention.h"
#include "vivace/kernels/tile/tensor_map.h"

namespace vivace::kernels {

struct ScaledAttentionArgs {
  AttentionArgs a;       // dtype: of out; q, k and v are e4m3
  const float* q_scale;  // [Hq] or null: 1
  const float* k_scale;  // [Hkv] or null: 1
  const float* v_scale;  // [Hkv] or null: 1
};

/// Four warps of 16 rows; a row is a query of one head, heads of one kv head beside one another. Keys go in blocks of
/// kKeys.
struct ScaledAttentionTile {
  int32_t d;  // of queries, keys and values: 64 or 128
  bool wide;  // rows begin at multiples of 16 bytes
  static constexpr int kThreads = 128, kRows = 64, kKeys = 64, kStages = 2;
  constexpr bool operator==(const ScaledAttentionTile&) const = default;

  VV_HD constexpr int pitch() const { return d + 16; }  // bytes: an odd number of 16
  VV_HD constexpr int smem() const { return (kRows + kStages * 2 * kKeys) * pitch(); }
};

/// Kernel for many queries on Hopper, heads of kDim: two groups of four warps, 64 rows each, multiply; one warp asks
/// TMA for blocks of keys and values, three turn values over.
struct ScaledAttentionPrefill {
  int32_t stages;  // of keys, of values as they come and of values turned over, each
  static constexpr int kDim = 128, kKeys = 128, kRows = 128, kGroups = 2, kTransposeWarps = 3,
                       kThreads = 128 + 128 * kGroups, kBarriers = 6;
  constexpr bool operator==(const ScaledAttentionPrefill&) const = default;

  VV_HD constexpr int barriers_at() const { return (kRows + stages * 3 * kKeys) * kDim; }
  VV_HD constexpr int smem() const { return barriers_at() + kBarriers * stages * 8; }
};

/// Arguments of it: k and v as TMA reads them, innermost first [D / 2 pairs, L, Hkv, B], in boxes of 64 pairs of
/// min(kKeys, L) positions (without pages: kKeys).
struct ScaledAttentionPrefillArgs {
  ScaledAttentionArgs m;
  TensorMap k, v;
};

}  // namespace vivace::kernels
