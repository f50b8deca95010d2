// Arguments of `gated_delta`, shared by the CPU and CUDA kernels. POD; see vivace/ops/gated_delta.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/linear/delta_gates.h"
#include "vivace/kernels/linear/sequences.h"

namespace vivace::kernels {

struct GatedDeltaArgs {
  const void* q;        // [T, Hk, D] dtype
  const void* k;        // [T, Hk, D] dtype
  const void* v;        // [T, Hv, Dv] dtype
  const float* decay;   // [T, Hv] logarithm, or null: 0
  const float* beta;    // [T, Hv] or null: 1
  DeltaProjections gates;  // [T, Hv] of what decay and beta are made, or none
  float* state;         // [S, Hv, D, Dv]
  void* out;            // [T, Hv, Dv] dtype
  const int32_t* rows;  // [1] device-side T, or null
  Sequences sequences;
  int64_t q_stride, k_stride, v_stride, decay_stride, beta_stride, state_stride,
      out_stride;  // elements a token; state: a slot
  int32_t T, Hk, Hv, D, Dv;
  float scale;
  bool normalize;       // q and k by their length
  bool frozen;          // states are read and left as they are
  DType dtype;

  VV_HD int group() const { return Hv / Hk; }  // value heads that share a key head
};

/// A block holds `columns` columns of one head's state in registers, each spread over `lanes` threads of
/// `items` rows: D <= lanes * items. What a row's bits depend on is lanes and items.
struct GatedDeltaPolicy {
  int32_t columns, lanes, items;
  constexpr bool operator==(const GatedDeltaPolicy&) const = default;
  VV_HD constexpr int threads() const { return columns * lanes; }
};

/// Chunks of tokens on tensor cores: a block holds `kColumns` columns of one head's state, d rows, a warp 16 of them.
struct GatedDeltaChunks {
  int32_t d;  // 64, 96 or 128
  static constexpr int kTokens = 64, kColumns = 32, kThreads = 256;
  constexpr bool operator==(const GatedDeltaChunks&) const = default;

  /// bf16 elements of a chunk: keys, queries, values. Pitches: an odd number of 16 bytes.
  VV_HD constexpr int stage() const { return 2 * kTokens * (d + 8) + kTokens * (kColumns + 8); }
  /// Two chunks; state, corrections twice, each as two bf16; matrix, right side, inverses, a part, four factors a
  /// token.
  VV_HD constexpr int smem() const {
    return (2 * stage() + 2 * d * (kColumns + 8) + 4 * kTokens * (kColumns + 8)) * 2 +
           (kTokens * (kTokens + 4) + kTokens * (kColumns + 4) + kTokens * 17 + 16 * (kColumns + 4) + 4 * kTokens) * 4;
  }
};

}  // namespace vivace::kernels
