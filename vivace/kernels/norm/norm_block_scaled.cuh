// norm_block_scaled on CUDA: formula in vivace/ops/norm_block_scaled.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/norm/norm.cuh"
#include "vivace/kernels/norm/norm_block_scaled.h"
#include "vivace/kernels/quantize/block_scaled.cuh"

namespace vivace::kernels {

/// Grid: a block for each row, those of the swizzled layout's padding included. Moves x, residual twice and
/// 9/16 bytes a value.
template <class X, class W, NormPolicy P>
__global__ void __launch_bounds__(P.threads) norm_block_scaled(const __grid_constant__ NormBlockScaledArgs a) {
  static_assert(kNormGroup * 2 == kBlockScaledGroup);
  norm_begin<W, P>(a.norm);
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int t = static_cast<int>(blockIdx.x);
  const bool valid = t < valid_rows(a.norm.rows, a.norm.T);
  zero_block_scaled_scales(a.block_scaled, t, valid, static_cast<int>(threadIdx.x), P.threads);
  if (!valid) return;
  const float tensor = *a.block_scaled.tensor_scale;
  norm_row<X, W, false, P>(a.norm, t, [&](int col, float(&y)[kNormGroup]) {
    store_block_scaled<P.aligned>(a.block_scaled, t, col, tensor, y);
  });
}

}  // namespace vivace::kernels
