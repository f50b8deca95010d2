// sample_chain on CUDA: formula in vivace/ops/sample_chain.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/sampling/row.cuh"
#include "vivace/kernels/sampling/sample_chain.h"

namespace vivace::kernels {

/// Grid: T * cluster blocks. Moves one row of probs and, after a rejection, one of draft_probs in.
template <SampleChainPolicy P>
__global__ void __launch_bounds__(P.threads) sample_chain(const __grid_constant__ SampleChainArgs a) {
  __shared__ SampleScratch scratch;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = blockIdx.x / P.cluster;
  if (t >= valid_rows(a.rows, a.T)) return;  // all blocks of a cluster have the same row
  const int rank = ptx::cluster_rank<P.cluster>(), tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  const uint64_t seed = a.seed ? static_cast<uint64_t>(a.seed[t]) : 0;
  const uint32_t step = a.step ? static_cast<uint32_t>(a.step[t]) : 0;
  const int32_t* draft = a.draft + t * a.draft_stride;
  const float* q_row = a.draft_probs + t * a.draft_probs_stride;
  const float* p_row = a.probs + t * a.probs_stride;

  // Every warp finds the first rejection for itself: no barrier.
  int accepted = a.N;
  for (int first = 0; first < a.N && accepted == a.N; first += 32) {
    const int i = first + lane;
    bool ok = true;
    if (i < a.N) {
      const int x = draft[i];
      ok =
          x >= 0 && x < a.V &&
          chain_accepts(p_row[int64_t{i} * a.V + x], q_row[int64_t{i} * a.V + x], seed, step, static_cast<uint32_t>(i));
    }
    const uint32_t rejected = __ballot_sync(0xffffffffu, !ok);
    if (rejected != 0) accepted = first + __ffs(static_cast<int>(rejected)) - 1;
  }

  const float* p = p_row + int64_t{accepted} * a.V;
  const float* q = accepted < a.N ? q_row + int64_t{accepted} * a.V : nullptr;
  uint64_t drawn = 0;
  const int groups = (a.V + 3) / 4;
  for (int g = rank * P.threads + tid; g < groups; g += P.threads * P.cluster) {
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int v = 4 * g + i;
      w[i] = v < a.V ? p[v] : 0.0f;
      if (q != nullptr && v < a.V) w[i] -= q[v];
    }
    if (!(w[0] > 0 || w[1] > 0 || w[2] > 0 || w[3] > 0)) continue;
    const PhiloxWords noise = chain_words(seed, step, static_cast<uint32_t>(g));
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (w[i] > 0) drawn = MaxRank()(drawn, ranked(logf(w[i]) + gumbel(noise.w[i]), 4 * g + i));
  }
  drawn = block_fold<P.threads>(drawn, scratch.warp);
  if (tid == 0) scratch.drawn = drawn;
  ptx::cluster_sync<P.cluster>();
  drawn = 0;
  for (int r = 0; r < P.cluster; ++r) drawn = MaxRank()(drawn, ptx::remote_load<P.cluster>(&scratch.drawn, r));
  if (rank == 0) {
    if (tid == 0) a.accepted[t] = accepted;
    int32_t* tokens = a.tokens + t * a.tokens_stride;
    for (int i = tid; i <= a.N; i += P.threads)
      tokens[i] = i < accepted ? draft[i] : i > accepted || drawn == 0 ? -1 : ranked_id(drawn);
  }
  ptx::cluster_sync<P.cluster>();  // no block ends while another may read its shared memory
}

}  // namespace vivace::kernels
