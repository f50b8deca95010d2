// Arguments of `grouped_gemm`, shared by the CPU and CUDA kernels. POD; see vivace/ops/grouped_gemm.h.
#pragma once
#include "vivace/kernels/gemm/gemm.h"

namespace vivace::kernels {

struct GroupedGemmArgs {
  const void* x;           // [A, K] x_dtype, rows sorted by group
  const void* w;           // [E, N, K] w_dtype
  const int32_t* offsets;  // [E + 1]
  void* out;               // [A, N] out_dtype
  int64_t x_stride, w_stride, out_stride;  // elements a row; w: an expert
  int32_t A, E, N, K;
  GemmAct act;
  DType x_dtype, w_dtype, out_dtype;
};

}  // namespace vivace::kernels
