// spread_offsets on CUDA: formula in vivace/ops/spread_offsets.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/attention/spread_offsets.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Grid: a thread a token, at least one block, which also writes count.
template <SpreadOffsetsPolicy P>
__global__ void __launch_bounds__(P.threads) spread_offsets(const __grid_constant__ SpreadOffsetsArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (a.count != nullptr && blockIdx.x == 0 && threadIdx.x == 0) a.count[0] = a.offsets[a.S];
  const int64_t t = int64_t{blockIdx.x} * P.threads + threadIdx.x;
  if (t >= valid_rows(a.rows, a.T)) return;
  int32_t slot, pos;
  a.find(static_cast<int32_t>(t), &slot, &pos);
  a.slot[t] = slot, a.pos[t] = pos;
}

}  // namespace vivace::kernels
