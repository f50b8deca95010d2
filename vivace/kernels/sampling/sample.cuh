// sample on CUDA: formula in vivace/ops/sample.h. A cluster of blocks owns a row; its scores stay in
// shared memory, so that the logits are read once, and the truncations need no sort.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/sampling/group_maxima.cuh"
#include "vivace/kernels/sampling/philox.h"

namespace vivace::kernels {

extern __shared__ float4 sample_scores[];

/// What one thread knows of its logits after the first pass.
struct SampleSeen {
  uint64_t best = 0;   // largest rank
  bool nan = false;    // an allowed score is NaN
  float lse_max = Max::kIdentity, lse_sum = 0;  // sum of exp(raw - lse_max)
};

/// Reads this block's stretch once: largest rank, NaN, log-sum-exp of the raw logits; keeps the scores.
template <SamplePolicy P, class Row>
__device__ __forceinline__ SampleSeen first_pass(const Row& row, int begin, int end, bool keep) {
  constexpr int kUnroll = 4, kStep = P.threads * 4;
  SampleSeen seen;
  float best = minus_inf();
  int best_id = -1;
  for (int v = begin + static_cast<int>(threadIdx.x) * 4; v < end; v += kStep * kUnroll) {
    float l[kUnroll][4];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (v + k * kStep < end) row.raw(v + k * kStep, l[k]);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int at = v + k * kStep;
      if (at >= end) continue;
      if (row.a.logprob != nullptr) {
        const float top = fmaxf(seen.lse_max, fmaxf(fmaxf(l[k][0], l[k][1]), fmaxf(l[k][2], l[k][3])));
        seen.lse_sum *= expf(seen.lse_max - top);
        seen.lse_max = top;
#pragma unroll
        for (int i = 0; i < 4; ++i) seen.lse_sum += expf(l[k][i] - top);
      }
      row.score(at, l[k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        seen.nan |= l[k][i] != l[k][i];
        if (l[k][i] > best) best = l[k][i], best_id = at + i;
      }
      if (P.resident && keep) sample_scores[(at - begin) / 4] = make_float4(l[k][0], l[k][1], l[k][2], l[k][3]);
    }
  }
  if (best_id >= 0) seen.best = ranked(best, best_id);
  return seen;
}

/// log softmax at `token`, in the thread that calls it; every block's part has been published.
template <SamplePolicy P>
__device__ __forceinline__ float log_softmax_at(const SampleScratch& s, float at) {
  float max = Max::kIdentity, sum = 0;
  for (int rank = 0; rank < P.cluster; ++rank) max = fmaxf(max, __uint_as_float(ptx::remote_load<P.cluster>(&s.lse_max, rank)));
  for (int rank = 0; rank < P.cluster; ++rank)
    sum += __uint_as_float(ptx::remote_load<P.cluster>(&s.lse_sum, rank)) * expf(__uint_as_float(ptx::remote_load<P.cluster>(&s.lse_max, rank)) - max);
  return at - max - logf(sum);
}

/// The draw: the largest score plus noise among what a thread is given.
struct Draw {
  uint64_t seed;
  uint32_t step;
  float best;          // score of the best so far
  uint64_t drawn = 0;  // and its rank

  __device__ __forceinline__ void offer(int v, float z, uint32_t word) {
    // g < -log(u): where u is above exp(z - best) the token loses, and two logarithms are saved. The slack
    // is wider than the roundings of a score.
    if (static_cast<float>(word) > __expf(z - best + 1e-3f + 1e-6f * fabsf(z)) * 0x1p32f) return;
    const float score = z + gumbel(word);
    const uint64_t r = ranked(score, v);
    if (r > drawn) drawn = r;
    best = fmaxf(best, score);
  }
  __device__ __forceinline__ PhiloxWords words(int v) const { return noise_words(seed, step, static_cast<uint32_t>(v) / 4); }
};

__device__ __forceinline__ uint32_t word_of(const PhiloxWords& w, int i) {
  return i == 0 ? w.w[0] : i == 1 ? w.w[1] : i == 2 ? w.w[2] : w.w[3];
}

/// A greedy block needs none of the narrowing's memory.
template <bool kGreedy>
struct ChooseShared {
  struct Type {};
};
template <>
struct ChooseShared<false> {
  using Type = NarrowShared;
};

/// Grid: T * cluster blocks. Moves the logits in once (resident) and 4 to 8 bytes out a row.
template <class In, SamplePolicy P>
__global__ void __launch_bounds__(P.threads, P.resident || P.greedy ? 2 : 1) sample(const __grid_constant__ SampleArgs a) {
  __shared__ SampleScratch scratch;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = blockIdx.x / P.cluster;
  if (t >= valid_rows(a.rows, a.T)) return;  // all blocks of a cluster have the same row
  const int rank = ptx::cluster_rank<P.cluster>(), tid = static_cast<int>(threadIdx.x);
  const int begin = rank * P.stretch(a.V), end = min(begin + P.stretch(a.V), a.V);
  const SampleRow<In, P> row(a, t);
  __shared__ typename ChooseShared<P.greedy>::Type shared;
  const int k = !P.greedy && a.top_k ? a.top_k[t] : 0;

  const SampleSeen seen = first_pass<P>(row, begin, end, !row.greedy);
  if (a.logprob != nullptr) {
    const float max = block_reduce<P.threads>(seen.lse_max, scratch.warp_f, Max());
    const float sum = block_reduce<P.threads>(seen.lse_sum * expf(seen.lse_max - max), scratch.warp_f, Sum());
    if (tid == 0) scratch.lse_max = __float_as_uint(max), scratch.lse_sum = __float_as_uint(sum);
  }
  uint64_t best = seen.nan ? ~uint64_t{0} : seen.best;  // no rank is that large
  if constexpr (P.greedy) {
    best = block_max<P.threads>(best, scratch.warp);
    if (tid == 0) scratch.block = best;
    ptx::cluster_sync<P.cluster>();
    best = 0;
    for (int r = 0; r < P.cluster; ++r) best = MaxRank()(best, ptx::remote_load<P.cluster>(&scratch.block, r));
  } else {
    best = GroupMaxima<P>::find(shared, best, static_cast<uint32_t>(k));
  }
  int token = best == ~uint64_t{0} || best < kPossible ? -1 : ranked_id(best);

  if constexpr (!P.greedy) {
    if (!row.greedy && token >= 0) {
      const float max = ranked_score(best);
      Narrowing<P> narrowing(shared, max);
      const auto each_four = [&](auto&& f) {
        for (int v = begin + tid * 4; v < end; v += P.threads * 4) {
          float z[4];
          if constexpr (P.resident) {
            const float4 kept = sample_scores[(v - begin) / 4];
            z[0] = kept.x, z[1] = kept.y, z[2] = kept.z, z[3] = kept.w;
          } else {
            row.raw(v, z);
            row.score(v, z);
          }
          f(v, z);
        }
      };
      const auto each = [&](auto&& f) {
        each_four([&](int v, const float(&z)[4]) {
#pragma unroll
          for (int i = 0; i < 4; ++i) f(v + i, z[i]);
        });
      };
      const float p = a.top_p ? a.top_p[t] : 1.0f, min_p = a.min_p ? a.min_p[t] : 0.0f;
      const bool by_count = k > 0 && k < a.V, by_mass = p < 1.0f;
      // Few wanted and the floor known: what is above it is listed in one look at the scores, and the rest is
      // one block's work. A list that runs over is dropped.
      bool listed = by_count && static_cast<uint32_t>(k) <= kGroupedTopK && shared.floor >= kPossible;
      if (listed) {
        const uint64_t floor = shared.floor;
        const float least = ranked_score(floor);
        each_four([&](int v, const float(&z)[4]) {
          if (!(fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3])) >= least)) return;
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (const uint64_t r = ranked(z[i], v + i); r >= floor) {
              const uint32_t at = atomicAdd(&shared.listed, 1u);
              if (at < kSampleList) shared.list[at] = r;
            }
        });
        ptx::cluster_sync<P.cluster>();
        listed = narrowing.listed() <= kSampleList;
        narrowing.used = true;
      }
      if (listed) {
        narrowing.whole = true;
        if (rank == 0) narrowing.n = narrowing.collect();
      }
      const bool works = !listed || rank == 0;
      // One body for both: its code is large.
      for (int turn = by_count ? 0 : 1; works && turn < (by_mass ? 2 : 1); ++turn) narrowing.narrow(turn == 1, static_cast<uint32_t>(k), p, each);

      Draw draw{a.seed ? static_cast<uint64_t>(a.seed[t]) : 0, a.step ? static_cast<uint32_t>(a.step[t]) : 0, 0.0f};
      // The top token is never cut: its score is the one to beat.
      draw.best = max + gumbel(word_of(draw.words(token), token % 4));
      draw.drawn = ranked(draw.best, token);
      if (!works) {
        // Block 0 draws.
      } else if (narrowing.whole) {
        if (tid < narrowing.n && shared.all[tid] >= narrowing.cut) {
          const uint64_t r = shared.all[tid];
          const int v = ranked_id(r);
          const float z = ranked_score(r);
          if (narrowing.weight(z) >= min_p) draw.offer(v, z, word_of(draw.words(v), v % 4));
        }
      } else {
        each_four([&](int v, const float(&z)[4]) {
          if (!(fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3])) + kMaxGumbel >= draw.best)) return;
          const PhiloxWords words = draw.words(v);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (ranked(z[i], v + i) >= narrowing.cut && (min_p <= 0.0f || narrowing.weight(z[i]) >= min_p)) draw.offer(v + i, z[i], words.w[i]);
        });
      }
      best = block_max<P.threads>(draw.drawn, scratch.warp);
      if (!narrowing.whole) {  // else a block has seen all there is
        if (tid == 0) scratch.drawn = best;
        ptx::cluster_sync<P.cluster>();
        for (int r = 0; r < P.cluster; ++r) best = MaxRank()(best, ptx::remote_load<P.cluster>(&scratch.drawn, r));
      }
      token = ranked_id(best);
    }
  }
  if (rank == 0 && tid == 0) {
    a.token[t] = token;
    if (a.logprob != nullptr) {
      const float at = token < 0 ? __uint_as_float(0x7fc00000u) : to_float(static_cast<const In*>(a.logits)[t * a.logits_stride + token]);
      a.logprob[t] = log_softmax_at<P>(scratch, at);
    }
  }
  ptx::cluster_sync<P.cluster>();  // no block ends while another may read its shared memory
}

}  // namespace vivace::kernels
