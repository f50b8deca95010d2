// A floor under the k best tokens of a row from the maxima of 128 groups of threads: the k-th largest of
// them has k tokens at or above it, and not many more where the good tokens lie scattered.
#pragma once
#include "vivace/kernels/sampling/narrow.cuh"

namespace vivace::kernels {

inline constexpr int kSampleGroups = 128;
/// Up to this k the expected list (128 ln(128 / (128 - k)) tokens) stays well below kSampleList.
inline constexpr uint32_t kGroupedTopK = 96;

template <SamplePolicy P>
struct GroupMaxima {
  static constexpr int kOwn = kSampleGroups / P.cluster;      // groups of a block
  static constexpr int kLanes = P.threads / kOwn;             // threads of a group
  static constexpr int kJudges = P.threads / kSampleGroups;   // threads that rank a group
  static_assert(kLanes <= 32 && kJudges >= 1 && kJudges <= 32 && kSampleGroups <= kSampleList);

  /// `best` is a thread's largest rank, ~0 where it has seen NaN. Gives the row's; the k-th largest group
  /// goes to s.floor, 0 where there is none. Its one cluster barrier publishes what was written before it.
  __device__ __forceinline__ static uint64_t find(NarrowShared& s, uint64_t best, uint32_t k) {
    const int tid = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int lane = kLanes / 2; lane > 0; lane >>= 1) best = MaxRank()(best, __shfl_xor_sync(0xffffffffu, best, lane));
    // all_mass and all are free until the first list is collected, which is behind another cluster barrier.
    if (tid % kLanes == 0) s.all_mass[tid / kLanes] = best;
    if (tid == 0) s.floor = 0, s.total = 0, s.listed = 0;
    ptx::cluster_sync<P.cluster>();
    if (tid < kSampleGroups) s.all[tid] = ptx::remote_load<P.cluster>(&s.all_mass[tid % kOwn], tid / kOwn);
    __syncthreads();
    const uint64_t mine = s.all[tid / kJudges];
    uint32_t better = 0;
#pragma unroll 8
    for (int i = 0; i < kSampleGroups / kJudges; ++i) better += s.all[i * kJudges + tid % kJudges] > mine;
#pragma unroll
    for (int lane = kJudges / 2; lane > 0; lane >>= 1) better += __shfl_xor_sync(0xffffffffu, better, lane);
    // Several NaN groups, or several empty ones, write the same value.
    if (better == 0) s.total = mine;
    if (better + 1 == k) s.floor = mine;
    __syncthreads();
    return s.total;
  }
};

}  // namespace vivace::kernels
