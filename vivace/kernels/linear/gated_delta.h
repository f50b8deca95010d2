// Arguments of `gated_delta`, shared by the CPU and CUDA kernels. POD; see vivace/ops/gated_delta.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/linear/sequences.h"

namespace vivace::kernels {

struct GatedDeltaArgs {
  const void* q;        // [T, Hk, D] dtype
  const void* k;        // [T, Hk, D] dtype
  const void* v;        // [T, Hv, Dv] dtype
  const float* decay;   // [T, Hv] logarithm, or null: 0
  const float* beta;    // [T, Hv] or null: 1
  float* state;         // [S, Hv, D, Dv]
  void* out;            // [T, Hv, Dv] dtype
  const int32_t* rows;  // [1] device-side T, or null
  Sequences sequences;
  int64_t q_stride, k_stride, v_stride, decay_stride, beta_stride, state_stride, out_stride;  // elements a token; state: a slot
  int32_t T, Hk, Hv, D, Dv;
  float scale;
  bool normalize;       // q and k by their length
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

}  // namespace vivace::kernels
