// advance on CUDA: formula in vivace/ops/advance.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/sampling/advance.h"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Grid: one block, so that every row has read the turn before it moves. The rings may lie in
/// page-locked host memory: they are written once and never read.
template <AdvancePolicy P>
__global__ void __launch_bounds__(P.threads) advance(const __grid_constant__ AdvanceArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t T = valid_rows(a.rows, a.T);
  const int32_t at = a.turn[0] % a.N, place = at < 0 ? at + a.N : at;
  __syncthreads();
  if (threadIdx.x == 0) a.turn[0] = place + 1 == a.N ? 0 : place + 1;
#pragma unroll 1  // rows are few; unrolled, some chips' compilers spill
  for (int64_t t = threadIdx.x; t < T; t += P.threads) {
    const int32_t token = a.token[t];
    a.ring[place * a.ring_stride + t] = token;
    if (a.ring_logprob) a.ring_logprob[place * a.logprob_stride + t] = a.logprob[t];
    if (a.fed) a.fed[t] = token;
    if (a.pos) ++a.pos[t];
    if (a.step) ++a.step[t];
  }
}

}  // namespace vivace::kernels
