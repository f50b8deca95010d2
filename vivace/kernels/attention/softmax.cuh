// The state of a row's online softmax and what becomes of it at the end.
#pragma once
#include "vivace/kernels/attention/attention.h"
#include "vivace/kernels/ptx/exp2.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

inline constexpr float kMinusInfinity = -__builtin_bit_cast(float, 0x7f800000u);
inline constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

/// What exponents are taken against: the largest score, or 0 where every score is -inf, so that the
/// weights are 0 and not NaN.
__device__ __forceinline__ float softmax_base(float top) { return top == kMinusInfinity ? 0.0f : top; }

/// The factor of a row's summed values in head h. `top` and `mass` count in
/// powers of two: mass = sum of 2^(score - top), scores times log2(e).
__device__ __forceinline__ float softmax_factor(const AttentionArgs& a, int h, float top, float mass) {
  if (mass == 0) return 0.0f;
  if (a.sinks == nullptr) return 1.0f / mass;
  const float sink = a.sinks[h] * kLog2e, m = fmaxf(sink, top), keys = ptx::exp2_fast(top - m);
  return keys / (mass * keys + ptx::exp2_fast(sink - m));
}
__device__ __forceinline__ float softmax_lse(float top, float mass) { return mass == 0 ? kMinusInfinity : (top + log2f(mass)) * kLn2; }

}  // namespace vivace::kernels
