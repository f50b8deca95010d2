// The state of a row's online softmax and what becomes of it at the end.
#pragma once
#include "vivace/kernels/attention/attention.h"
#include "vivace/kernels/ptx/exp2.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

inline constexpr float kMinusInfinity = -__builtin_bit_cast(float, 0x7f800000u);
inline constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

/// What exponents are taken against: the largest score, or 0 where every score is -inf, so that the
/// probabilities are 0 and not NaN.
__device__ __forceinline__ float softmax_base(float row_max) { return row_max == kMinusInfinity ? 0.0f : row_max; }

/// The factor of a row's summed values in head h. `row_max` and `row_sum` count in
/// powers of two: row_sum = sum of 2^(score - row_max), scores times log2(e).
__device__ __forceinline__ float softmax_factor(const AttentionArgs& a, int h, float row_max, float row_sum) {
  if (row_sum == 0) return 0.0f;
  if (a.sinks == nullptr) return 1.0f / row_sum;
  const float sink = a.sinks[h] * kLog2e, m = fmaxf(sink, row_max), keys = ptx::exp2_fast(row_max - m);
  return keys / (row_sum * keys + ptx::exp2_fast(sink - m));
}
__device__ __forceinline__ float softmax_lse(float row_max, float row_sum) {
  return row_sum == 0 ? kMinusInfinity : (row_max + log2f(row_sum)) * kLn2;
}

}  // namespace vivace::kernels
