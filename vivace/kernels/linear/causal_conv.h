// Arguments of `causal_conv`, shared by the CPU and CUDA kernels. POD; see vivace/ops/causal_conv.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/linear/sequences.h"

namespace vivace::kernels {

struct CausalConvArgs {
  const void* x;        // [T, C] dtype
  const void* weight;   // [C, K] dtype; the last of K meets the token itself
  const void* bias;     // [C] dtype, or null
  float* state;         // [S, K - 1, C], oldest first
  void* out;            // [T, C] dtype
  const int32_t* rows;  // [1] device-side T, or null
  Sequences sequences;
  int64_t x_stride, weight_stride, state_stride, out_stride;
  int32_t T, C, K;
  bool silu;
  bool frozen;          // states are read and left as they are
  DType dtype;
};

/// A thread takes `vec` neighbouring channels of `tokens` tokens in a row; taps: K.
struct CausalConvPolicy {
  int32_t threads, vec, tokens, taps;
  constexpr bool operator==(const CausalConvPolicy&) const = default;
};

}  // namespace vivace::kernels
