// norm_micro on CUDA: formula in vivace/ops/norm_micro.h.
#pragma once
#include "vivace/kernels/norm/norm.cuh"
#include "vivace/kernels/norm/norm_micro.h"
#include "vivace/kernels/quantize/micro.cuh"

namespace vivace::kernels {

/// Grid: a block for each row, those of the swizzled layout's padding included. Moves x, residual twice and
/// 9/16 bytes a value.
template <class X, class W, NormPolicy P>
__global__ void __launch_bounds__(P.threads) norm_micro(const __grid_constant__ NormMicroArgs a) {
  static_assert(kNormGroup * 2 == kMicroBlock);
  norm_begin<W, P>(a.norm);
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int t = static_cast<int>(blockIdx.x);
  const bool valid = t < valid_rows(a.norm.rows, a.norm.T);
  zero_micro_scales(a.micro, t, valid, static_cast<int>(threadIdx.x), P.threads);
  if (!valid) return;
  const float tensor = *a.micro.tensor_scale;
  norm_row<X, W, false, P>(a.norm, t, [&](int col, float (&y)[kNormGroup]) { store_micro<P.aligned>(a.micro, t, col, tensor, y); });
}

}  // namespace vivace::kernels
