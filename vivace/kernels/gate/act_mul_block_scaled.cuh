// act_mul_block_scaled on CUDA: formula in vivace/ops/act_mul_block_scaled.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/gate/act_mul.cuh"
#include "vivace/kernels/gate/act_mul_block_scaled.h"
#include "vivace/kernels/quantize/block_scaled.cuh"

namespace vivace::kernels {

/// Grid: rows, those of the swizzled layout's padding included, times ceil(H / (threads * 8)). Moves 2 In elements
/// and 9/16 bytes a value.
template <class In, ActMulBlockScaledPolicy P>
__global__ void __launch_bounds__(P.threads) act_mul_block_scaled(const __grid_constant__ ActMulBlockScaledArgs a) {
  constexpr int V = 8;
  const uint32_t stretches = (static_cast<uint32_t>(a.act.H) + P.threads * V - 1) / (P.threads * V);
  const int64_t t = blockIdx.x / stretches;
  const int part = static_cast<int>(blockIdx.x % stretches),
            col = (part * P.threads + static_cast<int>(threadIdx.x)) * V;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const bool valid = t < valid_rows(a.act.rows, a.act.T);
  if (part == 0) zero_block_scaled_scales(a.block_scaled, t, valid, static_cast<int>(threadIdx.x), P.threads);
  if (!valid || col >= a.act.H) return;  // H is a multiple of 16: neighbouring lanes stay or go together
  ActMulPart<In, V, P.aligned ? V : 1> piece;
  piece.load(a.act, t, col);
  float y[V];
  piece.compute(a.act, col, y);
  store_block_scaled<P.aligned>(a.block_scaled, t, col, *a.block_scaled.tensor_scale, y);
}

}  // namespace vivace::kernels
