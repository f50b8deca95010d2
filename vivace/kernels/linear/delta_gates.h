// Arguments of `delta_gates`, shared by the CPU and CUDA kernels. POD; see vivace/ops/delta_gates.h. gated_delta takes
// the same inputs.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

/// What decay and correction are made of.
struct DeltaProjections {
  const void* a;               // [T, H] dtype
  const void* b;               // [T, H] dtype
  const void* rate;            // [H] rate_dtype: logarithm
  const void* bias;            // [H] bias_dtype
  int64_t a_stride, b_stride;  // elements a row
  DType dtype, rate_dtype, bias_dtype;

  VV_HD bool present() const { return a != nullptr; }
};

struct DeltaGatesArgs {
  DeltaProjections in;
  float* decay;                       // [T, H]
  float* beta;                        // [T, H]
  const int32_t* rows;                // [1] device-side T, or null
  int64_t decay_stride, beta_stride;  // elements a row
  int32_t T, H;

  static constexpr int kThreads = 128;
};

}  // namespace vivace::kernels
