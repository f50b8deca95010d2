// count_tokens on CUDA: formula in vivace/ops/count_tokens.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/sampling/count_tokens.h"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Grid: ceil(T / threads) blocks, a token a thread. Integer atomics: the sum has no order.
template <CountTokensPolicy P>
__global__ void __launch_bounds__(P.threads) count_tokens(const __grid_constant__ CountTokensArgs a) {
  ptx::launch_dependents();  // before the wait: the product that follows loads its weights meanwhile
  ptx::dependency_wait();
  const int64_t t = int64_t{blockIdx.x} * P.threads + threadIdx.x;
  if (t >= valid_rows(a.rows, a.T)) return;
  const int id = a.ids[t], slot = a.slot ? a.slot[t] : 0;
  if (id >= 0 && id < a.V && slot >= 0 && slot < a.S) atomicAdd(a.counts + slot * a.counts_stride + id, 1);
}

}  // namespace vivace::kernels
