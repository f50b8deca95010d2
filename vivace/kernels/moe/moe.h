// Arguments of the ops of a mixture of experts, shared by the CPU and CUDA kernels. POD; see vivace/ops/moe_*.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/gemm/gemm.h"

namespace vivace::kernels {

struct MoeRouteArgs {
  const void* logits;    // [T, E] dtype
  float* weights;        // [T, K]
  int32_t* place;        // [T, K] row of each choice once choices are sorted by expert
  int32_t* token;        // [T * K] token of each sorted row
  int32_t* offsets;      // [E + 1] first sorted row of each expert, then their count
  const int32_t* rows;   // [1] device-side T, or null
  int64_t logits_stride, weights_stride, place_stride;  // elements a row
  int32_t T, E, K;
  bool renormalize;
  DType dtype;
};

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
