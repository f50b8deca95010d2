// renorm_probs on CUDA: formula in vivace/ops/renorm_probs.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/sampling/narrow.cuh"
#include "vivace/kernels/sampling/renorm_probs.h"

namespace vivace::kernels {

/// Grid: T * cluster blocks. Moves a row in and out; the passes in between find it in L1 or L2.
template <SamplePolicy P>
__global__ void __launch_bounds__(P.threads) renorm_probs(const __grid_constant__ RenormProbsArgs a) {
  __shared__ SampleScratch scratch;
  __shared__ NarrowShared shared;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = blockIdx.x / P.cluster;
  if (t >= valid_rows(a.rows, a.T)) return;  // all blocks of a cluster have the same row
  const int rank = ptx::cluster_rank<P.cluster>(), tid = static_cast<int>(threadIdx.x);
  const int begin = rank * P.stretch(a.V), end = min(begin + P.stretch(a.V), a.V);
  const float* probs = a.probs + t * a.probs_stride;
  float* out = a.out + t * a.out_stride;
  // Only positive probabilities take part: NaN and what is negative counts as 0.
  const auto each = [&](auto&& f) {
    for (int v = begin + tid; v < end; v += P.threads)
      if (const float p = probs[v]; p > 0) f(v, p);
  };

  uint64_t best = 0;
  each([&](int v, float p) { best = MaxRank()(best, ranked(p, v)); });
  best = block_fold<P.threads>(best, scratch.warp);
  if (tid == 0) scratch.block = best;
  ptx::cluster_sync<P.cluster>();
  best = 0;
  for (int r = 0; r < P.cluster; ++r) best = MaxRank()(best, ptx::remote_load<P.cluster>(&scratch.block, r));

  Narrowing<P, ScoreKind::probability> narrowing(shared, ranked_score(best));
  if (best != 0) {  // else there is no positive probability, and every block knows it
    const int k = a.top_k ? a.top_k[t] : 0;
    const float p = a.top_p ? a.top_p[t] : 1.0f;
    for (int turn = k > 0 && k < a.V ? 0 : 1; turn < (p < 1.0f ? 2 : 1); ++turn)
      narrowing.narrow(turn == 1, static_cast<uint32_t>(k), p, each);
  }

  float sum = 0;
  each([&](int v, float p) {
    if (ranked(p, v) >= narrowing.cut) sum += p;
  });
  sum = block_reduce<P.threads>(sum, scratch.warp_f, Sum());
  if (tid == 0) scratch.lse_sum = __float_as_uint(sum);
  ptx::cluster_sync<P.cluster>();
  sum = 0;
  for (int r = 0; r < P.cluster; ++r) sum += __uint_as_float(ptx::remote_load<P.cluster>(&scratch.lse_sum, r));
  const float up = lift(sum), whole = sum * up, per_whole = __frcp_rn(whole);
  for (int v = begin + tid; v < end; v += P.threads) {
    const float p = probs[v];
    out[v] = p > 0 && ranked(p, v) >= narrowing.cut ? quotient(p * up, whole, per_whole) : 0.0f;
  }
  ptx::cluster_sync<P.cluster>();  // no block ends while another may read its shared memory
}

}  // namespace vivace::kernels
