// Arguments of `moe_combine`, shared by the CPU and CUDA kernels. POD; see vivace/ops/moe_combine.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct MoeCombineArgs {
  const void* y;          // [T * K, N] dtype
  const int32_t* place;   // [T, K]
  const float* weights;   // [T, K]
  const void* residual;   // [T, N] out_dtype, may be out; or null
  void* out;              // [T, N] out_dtype
  const int32_t* rows;    // [1] device-side T, or null
  int64_t y_stride, place_stride, weights_stride, residual_stride, out_stride;  // elements a row
  int32_t T, K, N;
  DType dtype, out_dtype;
};

}  // namespace vivace::kernels
