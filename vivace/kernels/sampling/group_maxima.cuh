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
  static constexpr int kShare = kSampleGroups / kJudges;      // groups that a judge compares with
  static_assert(kLanes <= 32 && kLanes >= P.cluster && kJudges >= 1 && kJudges <= 32 && kShare % 4 == 0);

  alignas(16) uint32_t key[kSampleGroups];  // score keys, ~0 where there is NaN
  uint32_t largest, floor;                  // of key; the k-th largest, 0 where there is none

  /// `score` is the largest that a thread has seen, NaN if there was one. All blocks of the cluster must run.
  /// Its one cluster barrier publishes what was written before it.
  __device__ __forceinline__ void find(float score, int cluster_rank, uint32_t k) {
    const int tid = static_cast<int>(threadIdx.x);
    uint32_t best = score != score ? ~0u : score_key(score);
#pragma unroll
    for (int lane = kLanes / 2; lane > 0; lane >>= 1) best = max(best, __shfl_xor_sync(0xffffffffu, best, lane));
    if (tid == 0) floor = 0;
    // A lane of the group for each block.
    if (tid % kLanes < P.cluster)
      ptx::remote_store<P.cluster>(
          ptx::remote_address<P.cluster>(&key[cluster_rank * kOwn + tid / kLanes], tid % kLanes), best);
    ptx::cluster_sync<P.cluster>();
    const int group = tid / kJudges, from = tid % kJudges * kShare;
    const uint32_t mine = key[group];
    uint32_t better = 0;
#pragma unroll 4
    for (int i = from; i < from + kShare; i += 4) {
      const Vec<uint32_t, 4> other = *reinterpret_cast<const Vec<uint32_t, 4>*>(key + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) better += other.v[j] > mine - (i + j < group);  // of equal ones the first is better
    }
#pragma unroll
    for (int lane = kJudges / 2; lane > 0; lane >>= 1) better += __shfl_xor_sync(0xffffffffu, better, lane);
    if (better == 0) largest = mine;
    if (better + 1 == k) floor = mine;
    __syncthreads();
  }
  __device__ __forceinline__ float max_score() const {
    return largest == ~0u ? __uint_as_float(0x7fc00000u) : key_score(largest);
  }
};

}  // namespace vivace::kernels
