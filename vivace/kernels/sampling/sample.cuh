// sample on CUDA: formula in vivace/ops/sample.h. A cluster of blocks owns a row. One pass over the logits
// keeps the maximum of every thread's few runs of tokens; what can matter afterwards is read again from L2.
// Chosen when: every call of sample and of argmax.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/sampling/group_maxima.cuh"
#include "vivace/kernels/sampling/philox.h"

namespace vivace::kernels {

/// What one thread knows of its logits after the first pass.
struct SampleSeen {
  float best = minus_inf();  // largest score, NaN if an allowed one is
  int best_id = -1;          // its token; greedy rows only
  float lse_max = Max::kIdentity, lse_sum = 0;  // sum of exp(raw - lse_max)
};

/// The larger; NaN if either is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

/// What a second look at a block's tokens needs: the largest score of every thread's runs of tokens.
template <SamplePolicy P>
struct ChunkMaxima {
  float of[kSampleChunks][P.threads];
};

/// Raw logits of the fours at v, v + 4 * threads, ...: this thread's in one batch. -inf beyond the end.
template <SamplePolicy P, class Row>
__device__ __forceinline__ void load_batch(const Row& row, int v, int end, float (&l)[kSampleUnroll][4]) {
#pragma unroll
  for (int k = 0; k < kSampleUnroll; ++k) {
    if (v + k * P.threads * 4 < end) {
      row.raw(v + k * P.threads * 4, l[k]);
    } else {
#pragma unroll
      for (float& x : l[k]) x = minus_inf();
    }
  }
}

/// Reads this block's stretch once: largest score, NaN, log-sum-exp of the raw logits; keeps the runs' maxima. `next`:
/// this thread's first batch, on its way before the row's options are looked at.
template <SamplePolicy P, class Row>
__device__ __forceinline__ SampleSeen first_pass(const Row& row, int begin, int end, float (&next)[kSampleUnroll][4],
                                                 ChunkMaxima<P>* chunks) {
  SampleSeen seen;
  const int per_chunk = P.batches_a_chunk(row.a.V);
  float best = minus_inf();  // the next batch travels while this one is looked at
  int v = begin + static_cast<int>(threadIdx.x) * 4, in_chunk = 0, chunk = 0;
  const auto end_chunk = [&] {
    // Of a plain row the division keeps the order: that of the maximum does for all.
    if (!P.greedy && row.plain) best = row.divided(best);
    if constexpr (!P.greedy) chunks->of[chunk][threadIdx.x] = best;
    seen.best = max_or_nan(seen.best, best);
    if constexpr (!P.greedy) best = minus_inf();
    in_chunk = 0;
    ++chunk;
  };
#pragma unroll 1
  for (; v < end; v += P.batch()) {
    float l[kSampleUnroll][4];
#pragma unroll
    for (int k = 0; k < kSampleUnroll; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) l[k][i] = next[k][i];
    load_batch<P>(row, v + P.batch(), end, next);
    if (row.a.logprob != nullptr) {
      float top = seen.lse_max;
#pragma unroll
      for (int k = 0; k < kSampleUnroll; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) top = fmaxf(top, l[k][i]);
      seen.lse_sum *= expf(seen.lse_max - top);
      seen.lse_max = top;
#pragma unroll
      for (int k = 0; k < kSampleUnroll; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) seen.lse_sum += expf(l[k][i] - top);
    }
    if (!row.plain || P.greedy) row.score(v, P.threads * 4, l);
#pragma unroll
    for (int k = 0; k < kSampleUnroll; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (P.greedy)
          if (l[k][i] > best) seen.best_id = v + k * P.threads * 4 + i;
        best = max_or_nan(best, l[k][i]);
      }
    if (++in_chunk == per_chunk) end_chunk();
  }
  if (in_chunk > 0) end_chunk();
  if constexpr (!P.greedy)
    for (; chunk < kSampleChunks; ++chunk) chunks->of[chunk][threadIdx.x] = minus_inf();
  return seen;
}

/// log softmax at `token`, in the thread that calls it; every block's part has been published.
template <SamplePolicy P>
__device__ __forceinline__ float log_softmax_at(const SampleScratch& s, float at) {
  float max = Max::kIdentity, sum = 0;
  for (int rank = 0; rank < P.cluster; ++rank)
    max = fmaxf(max, __uint_as_float(ptx::remote_load<P.cluster>(&s.lse_max, rank)));
  for (int rank = 0; rank < P.cluster; ++rank)
    sum += __uint_as_float(ptx::remote_load<P.cluster>(&s.lse_sum, rank)) *
           expf(__uint_as_float(ptx::remote_load<P.cluster>(&s.lse_max, rank)) - max);
  return at - max - logf(sum);
}

/// The draw: the largest score plus noise among what a thread is given.
struct Draw {
  uint64_t seed;
  uint32_t step;
  float best;          // score of the best so far
  uint64_t drawn = 0;  // and its rank

  /// With a token that cannot be cut and its score with noise.
  __device__ __forceinline__ void begin(float score, int v) { best = score, drawn = ranked(score, v); }
  __device__ __forceinline__ void offer(int v, float z, uint32_t word) {
    // g < -log(u): where u is above exp(z - best) the token loses, and two logarithms are saved. The slack
    // is wider than the roundings of a score.
    if (static_cast<float>(word) > __expf(z - best + 1e-3f + 1e-6f * fabsf(z)) * 0x1p32f) return;
    const float score = z + gumbel(word);
    const uint64_t r = ranked(score, v);
    if (r > drawn) drawn = r;
    best = fmaxf(best, score);
  }
  __device__ __forceinline__ PhiloxWords words(int v) const {
    return noise_words(seed, step, static_cast<uint32_t>(v) / 4);
  }
};

__device__ __forceinline__ uint32_t word_of(const PhiloxWords& w, int i) {
  return i == 0 ? w.w[0] : i == 1 ? w.w[1] : i == 2 ? w.w[2] : w.w[3];
}

/// The draw among the first k of a list of n candidates that holds the row's k best, by one block: each candidate's
/// thread finds its place, its mass and its score with noise; one warp cuts and draws. The token in thread 0.
template <SamplePolicy P>
__device__ __forceinline__ int choose_listed(NarrowShared& s, int n, uint32_t k, float max, float p, float min_p,
                                             uint64_t seed, uint32_t step) {
  static_assert(P.threads >= kSampleList);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  if (tid < n) {
    const uint64_t mine = s.list[tid];
    const int v = ranked_id(mine);
    const float z = ranked_score(mine);
    const Narrowing<P> scale(s, max);
    const bool stays = scale.weight(z) >= min_p;
    const uint64_t drawn = ranked(z + gumbel(word_of(noise_words(seed, step, static_cast<uint32_t>(v) / 4), v % 4)), v);
    int better = 0;
#pragma unroll 4
    for (int i = 0; i + 2 <= n; i += 2) {
      const Vec<uint64_t, 2> other = *reinterpret_cast<const Vec<uint64_t, 2>*>(s.list + i);
      better += (other.v[0] > mine) + (other.v[1] > mine);
    }
    if (n % 2 != 0) better += s.list[n - 1] > mine;
    s.all[better] = stays || better == 0 ? drawn : 0;  // the top token is never cut
    s.all_mass[better] = scale.mass(z);
  }
  __syncthreads();
  if (tid >= 32) return -1;
  constexpr int kOwn = (kGroupedTopK + 31) / 32;  // neighbouring places of a lane
  const int kept = min(static_cast<int>(k), n);
  uint64_t mass[kOwn], own = 0;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) own += mass[j] = lane * kOwn + j < kept ? s.all_mass[lane * kOwn + j] : 0;
  uint64_t upto = own;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, upto, d);
    if (lane >= d) upto += other;
  }
  const uint64_t target = p < 1.0f ? mass_target(p, __shfl_sync(0xffffffffu, upto, 31)) : ~uint64_t{0};
  uint64_t before = upto - own, drawn = 0;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if (lane * kOwn + j < kept && before < target) drawn = MaxRank()(drawn, s.all[lane * kOwn + j]);
    before += mass[j];
  }
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) drawn = MaxRank()(drawn, __shfl_xor_sync(0xffffffffu, drawn, d));
  return ranked_id(drawn);
}

/// The draw where many tokens may stay. The k best are found by histograms; what has a share p of the mass by drawing:
/// the best score with noise among all is the best among those that stay if it stays itself, and it does where the mass
/// above it falls short of the share. Where it does not, nothing below it stays either, and the draw is repeated among
/// what is above: 1 + ln(1 / p) times, about. The token in every thread of the cluster.
template <SamplePolicy P, class Row>
__device__ __forceinline__ int choose_among_all(NarrowShared& shared, SampleScratch& scratch, const Row& row, int begin,
                                                int end, float max, int top, int k, bool by_mass, float p, float min_p,
                                                uint64_t seed, uint32_t step) {
  const int tid = static_cast<int>(threadIdx.x);
  Narrowing<P> narrowing(shared, max);
  narrowing.used = true;
  const auto each_four = [&](auto&& f) {
    constexpr int kStep = P.threads * 4;
    float next[4];  // on its way while the one before it is looked at
    if (begin + tid * 4 < end) row.raw(begin + tid * 4, next);
#pragma unroll 1
    for (int v = begin + tid * 4; v < end; v += kStep) {
      float z[4] = {next[0], next[1], next[2], next[3]};
      if (v + kStep < end) row.raw(v + kStep, next);
      row.score(v, z);
      f(v, z);
    }
  };
  if (k > 0)
    narrowing.narrow(false, static_cast<uint32_t>(k), p, [&](auto&& f) {
      each_four([&](int v, const float(&z)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) f(v + i, z[i]);
      });
    });
  // The top token is never cut: its score is the one to beat.
  Draw draw{seed, step, 0.0f};
  const float least = max + gumbel(word_of(draw.words(top), top % 4));
  if (narrowing.whole) {  // a block has seen all there is
    if (by_mass) narrowing.rank_list(true, 0, 0, p);
    draw.begin(least, top);
    if (tid < narrowing.n && shared.all[tid] >= narrowing.cut) {
      const uint64_t r = shared.all[tid];
      const int v = ranked_id(r);
      const float z = ranked_score(r);
      if (narrowing.weight(z) >= min_p) draw.offer(v, z, word_of(draw.words(v), v % 4));
    }
    return ranked_id(block_fold<P.threads>(draw.drawn, scratch.warp));
  }
  uint64_t target = 0, lowest = narrowing.cut;
  float floor = minus_inf();  // score of a rank from which nothing below stays
  for (bool first = true;; first = false) {
    draw.begin(least, top);
    uint64_t total = 0;
    const bool weigh = first && by_mass;
    each_four([&](int v, const float(&z)[4]) {
      const float best = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
      if (weigh && best > narrowing.max - kNoMass) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total += ranked(z[i], v + i) >= lowest ? narrowing.mass(z[i]) : 0;
      }
      if (!(best + kMaxGumbel >= draw.best && best >= floor)) return;
      const PhiloxWords words = draw.words(v);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (ranked(z[i], v + i) >= lowest && (min_p <= 0.0f || narrowing.weight(z[i]) >= min_p))
          draw.offer(v + i, z[i], words.w[i]);
    });
    const uint64_t best = block_fold<P.threads>(draw.drawn, scratch.warp);
    if (weigh) total = block_fold<P.threads>(total, scratch.warp, SumMass());
    if (tid == 0) scratch.drawn = best, scratch.total = total;
    ptx::cluster_sync<P.cluster>();
    const int token = ranked_id(over_blocks<P>(&scratch.drawn, MaxRank()));
    if (!by_mass || token == top) return token;
    if (first) target = mass_target(p, over_blocks<P>(&scratch.total, SumMass()));
    float four[4];
    row.raw(token & ~3, four);
    row.score(token & ~3, four);
    const float z = token % 4 == 0 ? four[0] : token % 4 == 1 ? four[1] : token % 4 == 2 ? four[2] : four[3];
    const uint64_t mine = ranked(z, token);
    uint64_t above = 0;
    each_four([&](int v, const float(&other)[4]) {
      if (!(fmaxf(fmaxf(other[0], other[1]), fmaxf(other[2], other[3])) >= z)) return;
#pragma unroll
      for (int i = 0; i < 4; ++i) above += ranked(other[i], v + i) > mine ? narrowing.mass(other[i]) : 0;
    });
    above = block_fold<P.threads>(above, scratch.warp, SumMass());
    if (tid == 0) scratch.above = above;
    ptx::cluster_sync<P.cluster>();
    if (over_blocks<P>(&scratch.above, SumMass()) < target) return token;
    lowest = mine + 1, floor = z;
  }
}

/// How row t is drawn.
struct DrawOptions {
  uint64_t seed;
  uint32_t step;
  int k;
  float p, min_p;

  __device__ __forceinline__ void read(const SampleArgs& a, int64_t t) {
    const int64_t key = a.seed ? a.seed[t] : 0;
    const int counter = a.step ? a.step[t] : 0, most = a.top_k ? a.top_k[t] : 0;
    const float mass = a.top_p ? a.top_p[t] : 1.0f, least = a.min_p ? a.min_p[t] : 0.0f;
    seed = static_cast<uint64_t>(key), step = static_cast<uint32_t>(counter), k = most, p = mass, min_p = least;
  }
};

/// Shared memory of a block that is not greedy.
template <SamplePolicy P>
struct ChooseShared {
  static constexpr int kRoom = kSampleList / 2;  // candidates that a block may find
  NarrowShared narrow;
  GroupMaxima<P> groups;
  ChunkMaxima<P> chunks;
  uint64_t found[P.cluster][kRoom];  // block 0's: what each block has found; stores travel, nobody waits for loads
  uint32_t count[P.cluster];         // how many; in every block

  /// All candidates into narrow.list, by block 0; their number, more than kSampleList where there is no room.
  __device__ __forceinline__ int collect(int cluster_rank) {
    uint32_t total = 0;
    bool room = true;
    int mine = -1, from = 0;  // entry of this thread: block and place
#pragma unroll
    for (int r = 0; r < P.cluster; ++r) {
      const int i = static_cast<int>(threadIdx.x) - static_cast<int>(total);
      if (i >= 0 && i < static_cast<int>(count[r])) mine = r, from = i;
      room &= count[r] <= kRoom;
      total += count[r];
    }
    if (!room || total > kSampleList) return kSampleList + 1;
    if (cluster_rank == 0) {
      if (mine >= 0) narrow.list[threadIdx.x] = found[mine][from];
      __syncthreads();
    }
    return static_cast<int>(total);
  }
};

/// Grid: T * cluster blocks. Moves the logits in once, runs of them that hold good tokens a second time from
/// L2 (all of them where that does not narrow the choice), and 4 to 8 bytes out a row.
template <class In, SamplePolicy P>
__global__ void __launch_bounds__(P.threads, 768 / P.threads) sample(const __grid_constant__ SampleArgs a) {
  __shared__ SampleScratch scratch;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = blockIdx.x / P.cluster;
  if (t >= valid_rows(a.rows, a.T)) return;  // all blocks of a cluster have the same row
  const int rank = ptx::cluster_rank<P.cluster>(), tid = static_cast<int>(threadIdx.x);
  const int begin = rank * P.stretch(a.V), end = min(begin + P.stretch(a.V), a.V);
  // All that waits for memory is asked for before any of it is looked at.
  const RawRow<In, P> raw{a, t};
  float first[kSampleUnroll][4];
  load_batch<P>(raw, begin + tid * 4, end, first);
  __shared__ DrawOptions options;  // wanted late: registers are few
  if (!P.greedy && tid == 0) options.read(a, t);
  const SampleRow<In, P> row(raw);
  int token = -1;
  bool may_leave = false;  // nobody reads this block's shared memory any more
  const auto share_log_sum = [&](const SampleSeen& seen) {
    if (a.logprob == nullptr) return;
    const float max = block_reduce<P.threads>(seen.lse_max, scratch.warp_f, Max());
    const float sum = block_reduce<P.threads>(seen.lse_sum * expf(seen.lse_max - max), scratch.warp_f, Sum());
    if (tid == 0) scratch.lse_max = __float_as_uint(max), scratch.lse_sum = __float_as_uint(sum);
  };

  if constexpr (P.greedy) {
    const SampleSeen seen = first_pass<P>(row, begin, end, first, static_cast<ChunkMaxima<P>*>(nullptr));
    share_log_sum(seen);
    // No rank is as large as that of NaN.
    uint64_t best = seen.best != seen.best ? ~uint64_t{0} : seen.best_id < 0 ? 0 : ranked(seen.best, seen.best_id);
    best = block_fold<P.threads>(best, scratch.warp);
    if (tid == 0) scratch.block = best;
    ptx::cluster_sync<P.cluster>();
    best = 0;
    for (int r = 0; r < P.cluster; ++r) best = MaxRank()(best, ptx::remote_load<P.cluster>(&scratch.block, r));
    if (best != ~uint64_t{0} && best >= kPossible) token = ranked_id(best);
  } else {
    __shared__ ChooseShared<P> all;
    NarrowShared& shared = all.narrow;
    if (tid == 0) shared.listed = 0, shared.runs_found = 0, shared.top = 0;
    ptx::cluster_arrive<P.cluster>();
    const SampleSeen seen = first_pass<P>(row, begin, end, first, &all.chunks);
    share_log_sum(seen);
    ptx::cluster_wait<P.cluster>();  // the others' shared memory exists
    __syncthreads();  // the options are there
    const int k = options.k;
    all.groups.find(seen.best, rank, static_cast<uint32_t>(k));
    const float max = all.groups.max_score();
    if (max > minus_inf()) {  // no NaN, and a token that can come
      const uint64_t seed = options.seed;
      const uint32_t step = options.step;
      const float p = options.p, min_p = options.min_p;
      const bool by_count = !row.greedy && k > 0 && k < a.V, by_mass = !row.greedy && p < 1.0f;
      // The runs that reach the floor, or where there is none the maximum, are looked at again: they hold the
      // top token, and, where few are wanted, all that can be chosen. Those go into block 0's list.
      const bool few =
          by_count && static_cast<uint32_t>(k) <= kGroupedTopK && all.groups.floor > score_key(minus_inf());
      const float least = few ? key_score(all.groups.floor) : max;
      const int per_chunk = P.batches_a_chunk(a.V);
      // They are listed first, so that threads which found none look as well and the loads travel together.
      uint16_t* const runs = shared.runs();
#pragma unroll
      for (int c = 0; c < kSampleChunks; ++c)
        if (all.chunks.of[c][tid] >= least)
          runs[atomicAdd(&shared.runs_found, 1u)] = static_cast<uint16_t>(c * P.threads + tid);
      __syncthreads();
      const int fours = static_cast<int>(shared.runs_found) * kSampleUnroll;
#pragma unroll 1
      for (int i = tid; i < fours; i += P.threads) {
        const int run = runs[i / kSampleUnroll], batch = run / P.threads * per_chunk;
        int v = begin + batch * P.batch() + (run % P.threads + i % kSampleUnroll * P.threads) * 4;
#pragma unroll 1
        for (int n = 0; n < per_chunk && v < end; ++n, v += P.batch()) {
          float z[4];
          row.raw(v, z);
          row.score(v, z);
          uint32_t hits = (z[0] >= least) | (z[1] >= least) << 1 | (z[2] >= least) << 2 | (z[3] >= least) << 3;
          for (; hits != 0; hits &= hits - 1) {
            const int at = __ffs(static_cast<int>(hits)) - 1;
            const float score = at == 0 ? z[0] : at == 1 ? z[1] : at == 2 ? z[2] : z[3];
            const uint64_t r = ranked(score, v + at);
            if (score == max)
              atomicMax(reinterpret_cast<unsigned long long*>(&shared.top), static_cast<unsigned long long>(r));
            if (!few) continue;
            const uint32_t place = atomicAdd(&shared.listed, 1u);
            if (place < all.kRoom)
              ptx::remote_store<P.cluster>(ptx::remote_address<P.cluster>(&all.found[rank][place], 0), r);
          }
        }
      }
      __syncthreads();
      if (tid < P.cluster)
        ptx::remote_store<P.cluster>(ptx::remote_address<P.cluster>(&all.count[rank], tid), shared.listed);
      ptx::cluster_sync<P.cluster>();
      const int listed = few ? all.collect(rank) : kSampleList + 1;
      if (listed <= kSampleList) {
        may_leave = a.logprob == nullptr;  // block 0 has all it needs
        if (rank == 0) token = choose_listed<P>(shared, listed, static_cast<uint32_t>(k), max, p, min_p, seed, step);
      } else {
        uint64_t best = 0;
        for (int r = 0; r < P.cluster; ++r) best = MaxRank()(best, ptx::remote_load<P.cluster>(&shared.top, r));
        token = ranked_id(best);
        if (!row.greedy)
          token = choose_among_all<P>(shared, scratch, row, begin, end, max, token, by_count ? k : 0, by_mass, p, min_p,
                                      seed, step);
      }
    }
  }
  if (rank == 0 && tid == 0) {
    a.token[t] = token;
    if (a.logprob != nullptr) {
      const float at = token < 0 ? __uint_as_float(0x7fc00000u)
                                 : to_float(static_cast<const In*>(a.logits)[t * a.logits_stride + token]);
      a.logprob[t] = log_softmax_at<P>(scratch, at);
    }
  }
  if (!may_leave) ptx::cluster_sync<P.cluster>();  // no block ends while another may read its shared memory
}

}  // namespace vivace::kernels
