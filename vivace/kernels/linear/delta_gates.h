// Arguments of `delta_gates`, shared by the CPU and CUDA kernels. POD; see vivace/ops/delta_gates.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct DeltaGatesArgs {
  const void* a;                                          // [T, H] dtype
  const void* b;                                          // [T, H] dtype
  const void* rate;                                       // [H] rate_dtype: logarithm
  const void* bias;                                       // [H] bias_dtype
  float* decay;                                           // [T, H]
  float* beta;                                            // [T, H]
  const int32_t* rows;                                    // [1] device-side T, or null
  int64_t a_stride, b_stride, decay_stride, beta_stride;  // elements a row
  int32_t T, H;
  DType dtype, rate_dtype, bias_dtype;

  static constexpr int kThreads = 128;
};

}  // namespace vivace::kernels
