// Arguments of `gemm`, shared by the CPU and CUDA kernels. POD; see vivace/ops/gemm.h for the formula.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/gate/activation.h"

namespace vivace::kernels {

/// How activations enter a product with block-quantised weights.
enum class GemmAct : int32_t { f32, q8 };

struct GemmArgs {
  const void* x;         // [T, K] x_dtype
  const void* w;         // [N, K] w_dtype, plain or block
  const void* bias;      // [N] bias_dtype, or null
  const void* residual;  // [T, N] out_dtype, may be out itself; or null
  void* out;             // [T, N] out_dtype
  const int32_t* rows;   // [1] device-side T, or null
  int64_t x_stride, w_stride, residual_stride, out_stride;  // elements a row
  int32_t T, N, K;
  float alpha;
  Activation epilogue;
  GemmAct act;
  DType x_dtype, w_dtype, bias_dtype, out_dtype;
};

}  // namespace vivace::kernels
