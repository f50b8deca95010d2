// top_logprobs on CUDA: formula in vivace/ops/top_logprobs.h. A cluster of blocks owns a row. One pass over the logits
// finds each part's log-sum-exp and every thread's best; a thread looks at its few tokens again for each that is told.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/sampling/row.cuh"
#include "vivace/kernels/sampling/top_logprobs.h"

namespace vivace::kernels {

/// The log-sum-exp of some tokens: sum of exp(l - most).
struct ExpSum {
  float most = Max::kIdentity, sum = 0.0f;

  __device__ __forceinline__ void add(float l) {
    if (l > most) {
      sum = sum * expf(most - l) + 1.0f;
      most = l;
    } else {
      sum += expf(l - most);  // NaN stays
    }
  }
  __device__ __forceinline__ void join(float other_most, float other_sum) {
    const float top = fmaxf(most, other_most);
    sum = sum * expf(most - top) + other_sum * expf(other_most - top);
    most = top;
  }
};

/// Shared memory of a block; the others of its cluster read the second half.
struct TopScratch {
  uint64_t warp[32];
  float warp_f[32];
  uint32_t most[2], sum[2];  // bits of this block's part of each log-sum-exp
  uint64_t best[kMaxTop];    // its best ranks, descending; 0 behind the last
};

/// Grid: T * cluster blocks. Moves the logits in once, what is looked at again comes from L1 or L2.
template <TopLogprobsPolicy P>
__global__ void __launch_bounds__(P.threads) top_logprobs(const __grid_constant__ TopLogprobsArgs a) {
  __shared__ TopScratch scratch;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = blockIdx.x / P.cluster;
  if (t >= valid_rows(a.rows, a.T)) return;  // all blocks of a cluster have the same row
  const int rank = ptx::cluster_rank<P.cluster>(), tid = static_cast<int>(threadIdx.x);
  const int begin = min(rank * P.stretch(a.V), a.V), end = min(begin + P.stretch(a.V), a.V);
  const float* const logits = a.logits + t * a.logits_stride;
  const int32_t* const mask = mask_of(a, t);
  const TokenSpans spans = spans_of(a, t);
  const int told = wanted_of(a, t);
  // This thread's allowed tokens of a part, and their logits.
  const auto each = [&](int part, auto&& f) {
    const int first = max(begin, spans.begin[part]), last = min(end, spans.end[part]);
#pragma unroll 4
    for (int v = first + tid; v < last; v += P.threads)
      if (const float l = logits[v]; mask_allows(mask, v)) f(v, l);
  };

  uint64_t best[2] = {0, 0};
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    ExpSum own;
    each(part, [&](int v, float l) {
      own.add(l);
      if (l > minus_inf()) best[part] = MaxRank()(best[part], ranked(l, v));
    });
    const float most = block_reduce<P.threads>(own.most, scratch.warp_f, Max());
    const float sum = block_reduce<P.threads>(own.sum * expf(own.most - most), scratch.warp_f, Sum());
    if (tid == 0) scratch.most[part] = __float_as_uint(most), scratch.sum[part] = __float_as_uint(sum);
  }
  ptx::cluster_sync<P.cluster>();
  ExpSum parts[2];
#pragma unroll
  for (int part = 0; part < 2; ++part)
    for (int r = 0; r < P.cluster; ++r)
      parts[part].join(__uint_as_float(ptx::remote_load<P.cluster>(&scratch.most[part], r)),
                       __uint_as_float(ptx::remote_load<P.cluster>(&scratch.sum[part], r)));
  const bool second_only = spans.together && parts[1].most + logf(parts[1].sum) > parts[0].most;
  if (!second_only) parts[1].join(parts[0].most, parts[0].sum);
  const float most = parts[1].most, log_sum = logf(parts[1].sum);
  const bool sound = parts[1].sum > 0.0f && fabsf(most + log_sum) <= -Max::kIdentity;  // not NaN, not infinite

  const int kept = sound ? told : 0;
  uint64_t mine = second_only ? best[1] : MaxRank()(best[0], best[1]);
  for (int i = 0; i < kept; ++i) {
    const uint64_t top = block_fold<P.threads>(mine, scratch.warp);
    if (tid == 0) scratch.best[i] = top;
    if (mine != top || top == 0 || i + 1 == kept) continue;
    mine = 0;
    const auto below = [&](int v, float l) {
      const uint64_t r = l > minus_inf() ? ranked(l, v) : 0;
      if (r < top) mine = MaxRank()(mine, r);
    };
    if (!second_only) each(0, below);
    each(1, below);
  }
  ptx::cluster_sync<P.cluster>();
  if (rank == 0 && tid < 32) {  // the best of the blocks' lists, of which a lane holds one
    int at = 0;
    const auto tell = [&](int i, uint64_t r) {
      a.token[t * a.token_stride + i] = r != 0 ? ranked_id(r) : -1;
      a.logprob[t * a.logprob_stride + i] = r != 0 ? ranked_score(r) - most - log_sum : __uint_as_float(0x7fc00000u);
    };
    for (int i = 0; i < kept; ++i) {
      const uint64_t head = tid < P.cluster && at < kept ? ptx::remote_load<P.cluster>(&scratch.best[at], tid) : 0;
      uint64_t top = head;
#pragma unroll
      for (int lane = 16; lane > 0; lane >>= 1) top = MaxRank()(top, __shfl_xor_sync(0xffffffffu, top, lane));
      if (head == top && top != 0) ++at;
      if (tid == 0) tell(i, top);
    }
    for (int i = kept + tid; i < a.K; i += 32) tell(i, 0);
    if (tid == 0 && a.asked_logprob != nullptr) {
      const int v = a.asked != nullptr ? a.asked[t] : -1;
      const auto in = [&](int part) { return v >= spans.begin[part] && v < spans.end[part]; };
      const bool may = ((in(0) && !second_only) || in(1)) && mask_allows(mask, v);
      a.asked_logprob[t] = !sound ? __uint_as_float(0x7fc00000u) : may ? logits[v] - most - log_sum : minus_inf();
    }
  }
  ptx::cluster_sync<P.cluster>();  // no block ends while another may read its shared memory
}

}  // namespace vivace::kernels
