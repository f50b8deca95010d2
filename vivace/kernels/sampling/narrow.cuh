// The fewest best tokens of a row whose counts or masses reach a target, without a sort: histograms over
// ever narrower ranges of ranks until a list of what is left fits, which is then ranked outright.
#pragma once
#include "vivace/kernels/sampling/row.cuh"

namespace vivace::kernels {

inline constexpr int kSampleBins = 1024, kSampleList = 256;
inline constexpr float kNoMass = 28.0f;  // so far below the largest, a score's mass is 0: 2^40 e^-28 < 1

/// What the blocks of a row share while they narrow it; every block comes to the same values.
struct NarrowShared {
  // The masses' low and high words apart: shared memory adds 32 bits at once, 64 only by trial.
  uint32_t mass_low[kSampleBins], mass_high[kSampleBins];
  uint32_t count[kSampleBins];
  uint64_t warp_measure[32];
  uint32_t warp_count[32];
  alignas(16) uint64_t list[kSampleList];  // ranks of this block's candidates; other blocks read it
  uint64_t all[kSampleList];       // ranks of all blocks' candidates
  uint64_t all_mass[kSampleList];
  uint32_t listed;                 // in list
  uint32_t runs_found;             // in runs()
  uint64_t top;                    // largest rank of this block, once it has looked; other blocks read it
  // The bin in which the target is reached: measure and tokens above it and in all, tokens in it.
  uint64_t above, total, cut;
  uint32_t above_count, bin_count;
  int bin;

  /// Where the histograms will lie: the runs of tokens that are looked at again, up to 4096.
  __device__ __forceinline__ uint16_t* runs() { return reinterpret_cast<uint16_t*>(mass_low); }
};

/// What the best tokens must reach to have share p of `total`; at least 1.
__device__ __forceinline__ uint64_t mass_target(float p, uint64_t total) {
  const double want = ceil(static_cast<double>(p) * static_cast<double>(total));
  return want < 1 ? 1 : min(total, static_cast<uint64_t>(want));
}

template <SamplePolicy P, ScoreKind kKind = ScoreKind::logit>
struct Narrowing {
  NarrowShared& s;
  float max;            // largest score
  uint64_t cut = kPossible;  // ranks below are out
  bool whole = false;   // s.all holds every token from cut on
  int n = 0;            // candidates in s.all
  bool used = false;    // another block may still read the histogram or the list

  __device__ __forceinline__ Narrowing(NarrowShared& shared, float max_score) : s(shared), max(max_score) {}

  __device__ __forceinline__ float weight(float z) const {
    if (z == max) return 1.0f;  // of infinities too: a mass beyond kMassUnit would overflow the sums
    if constexpr (kKind == ScoreKind::probability) {
      const float up = lift(max), most = max * up;
      return quotient(z * up, most, __frcp_rn(most));
    }
    return expf(z - max);
  }
  __device__ __forceinline__ uint64_t mass(float z) const {
    return static_cast<uint64_t>(__fmul_rn(weight(z), kMassUnit));
  }

  /// First level: distance from the largest score, in 32nds, of a probability in 32nds of a halving; what
  /// is 32 below has mass 0 or next to it.
  __device__ __forceinline__ int distance_bin(float z) const {
    if constexpr (kKind == ScoreKind::probability)
      return static_cast<int>(min((score_key(max) - score_key(z)) >> 18, kSampleBins - 1u));
    const float d = max - z;
    return d < 31.5f ? static_cast<int>(d * 32.0f) : kSampleBins - 1;
  }
  /// Later levels: ten more bits of the rank from level to level.
  __device__ __forceinline__ static int shift(int level) { return level > 5 ? 0 : level < 0 ? 54 : 54 - 10 * level; }

  /// k largest, or (by_mass) the best tokens with share p of the mass. `each(f)` calls f(v, z) for this
  /// block's tokens. Every thread of the cluster takes part.
  template <class Each>
  __device__ __forceinline__ void narrow(bool by_mass, uint32_t k, float p, Each&& each) {
    if (whole) {
      rank_list(by_mass, 0, by_mass ? 0 : k, p);
      return;
    }
    int first_bin = 0;  // where the first level found the target; later ones only look there
    uint64_t target = k, above = 0, prefix = 0;
    for (int level = 0;; ++level) {
      const int down = shift(level), before = shift(level - 1);
      if (used) ptx::cluster_sync<P.cluster>();
      used = true;
      for (int i = static_cast<int>(threadIdx.x); i < kSampleBins; i += P.threads)
        s.mass_low[i] = 0, s.mass_high[i] = 0, s.count[i] = 0;
      if (threadIdx.x == 0) s.listed = 0;
      __syncthreads();
      each([&](int v, float z) {
        const uint64_t r = ranked(z, v);
        if (r < cut) return;
        int bin = distance_bin(z);
        if (level > 0) {
          if (bin != first_bin || r >> before != prefix) return;
          bin = kSampleBins - 1 - static_cast<int>(r >> down & (level > 5 ? 15u : 1023u));
        }
        atomicAdd(&s.count[bin], 1u);
        if (by_mass) {
          const uint64_t m = mass(z);
          const uint32_t low = static_cast<uint32_t>(m), old = atomicAdd(&s.mass_low[bin], low);
          if (const uint32_t high = static_cast<uint32_t>(m >> 32) + (old + low < old); high != 0)
            atomicAdd(&s.mass_high[bin], high);
        }
      });
      ptx::cluster_sync<P.cluster>();
      find_bin(by_mass, level == 0, p, &target, above);
      if (level == 0 && s.total < target) return;  // fewer than k: all stay
      above = s.above;
      const bool everything = level == 0 && s.above_count + s.bin_count <= kSampleList;
      if (level == 0) first_bin = s.bin;
      else prefix = prefix << (before - down) | static_cast<uint64_t>(kSampleBins - 1 - s.bin);
      if (everything || s.bin_count <= kSampleList) {
        gather(level, everything, first_bin, down, prefix, each);
        whole = everything;
        rank_list(by_mass, everything ? 0 : above, target, p);
        return;
      }
      __syncthreads();
    }
  }

  /// All blocks' lists, together no longer than kSampleList, into s.all; their length.
  __device__ __forceinline__ int collect() {
    int total = 0, mine = -1, from = 0;  // entry of this thread: block and place
#pragma unroll
    for (int rank = 0; rank < P.cluster; ++rank) {
      const int count = static_cast<int>(ptx::remote_load<P.cluster>(&s.listed, rank)),
                i = static_cast<int>(threadIdx.x) - total;
      if (i >= 0 && i < count) mine = rank, from = i;
      total += count;
    }
    if (mine >= 0) {
      const uint64_t r = ptx::remote_load<P.cluster>(&s.list[from], mine);
      s.all[threadIdx.x] = r;
      s.all_mass[threadIdx.x] = mass(ranked_score(r));
    }
    __syncthreads();
    return total;
  }

  /// Moves the cut to the candidate with which `above` + measures reach the target; target 0 stands for
  /// share p of the listed mass. A target out of reach moves nothing.
  __device__ __forceinline__ void rank_list(bool by_mass, uint64_t above, uint64_t target, float p) {
    static_assert(P.threads >= kSampleList);
    // Neighbouring threads share a candidate.
    const int team = n <= P.threads / 8 ? 8 : n <= P.threads / 4 ? 4 : n <= P.threads / 2 ? 2 : 1;
    const int i = static_cast<int>(threadIdx.x) / team;
    if (threadIdx.x == 0) s.cut = cut;
    __syncthreads();
    const uint64_t mine = i < n ? s.all[i] : 0;
    uint64_t better = 0, total = 0;
#pragma unroll 4
    for (int j = static_cast<int>(threadIdx.x) % team; j < n; j += team) {
      const uint64_t r = s.all[j], m = r < cut ? 0 : by_mass ? s.all_mass[j] : 1;
      total += m;
      better += r > mine ? m : 0;
    }
    for (int lane = team / 2; lane > 0; lane >>= 1) {
      total += __shfl_xor_sync(0xffffffffu, total, lane);
      better += __shfl_xor_sync(0xffffffffu, better, lane);
    }
    if (i < n && mine >= cut && static_cast<int>(threadIdx.x) % team == 0) {
      if (target == 0) target = mass_target(p, total);
      better += above;
      if (better < target && better + (by_mass ? s.all_mass[i] : 1) >= target) s.cut = mine;
    }
    __syncthreads();
    cut = s.cut;
    __syncthreads();
  }

 private:
  /// Sums the blocks' histograms and finds the bin in which `above` + measures reach the target (which by
  /// mass the first level sets). Two bins a thread, or one.
  __device__ __forceinline__ void find_bin(bool by_mass, bool first, float p, uint64_t* target, uint64_t above) {
    constexpr int kOwn = kSampleBins / P.threads;
    static_assert(kOwn >= 1 && kSampleBins % P.threads == 0);
    uint64_t measure[kOwn], sum = 0;
    uint32_t count[kOwn], tokens = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int bin = static_cast<int>(threadIdx.x) * kOwn + i;
      measure[i] = 0, count[i] = 0;
#pragma unroll 4  // loads in flight; more do not fit into the registers
      for (int rank = 0; rank < P.cluster; ++rank) {
        count[i] += ptx::remote_load<P.cluster>(&s.count[bin], rank);
        if (by_mass)
          measure[i] += ptx::remote_load<P.cluster>(&s.mass_low[bin], rank) +
                        (uint64_t{ptx::remote_load<P.cluster>(&s.mass_high[bin], rank)} << 32);
      }
      if (!by_mass) measure[i] = count[i];
      sum += measure[i];
      tokens += count[i];
    }
    // Inclusive sums up to this thread: in its warp, then over the warps before.
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    uint64_t upto = sum;
    uint32_t tokens_upto = tokens;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
      const uint64_t m = __shfl_up_sync(0xffffffffu, upto, d);
      const uint32_t c = __shfl_up_sync(0xffffffffu, tokens_upto, d);
      if (lane >= d) upto += m, tokens_upto += c;
    }
    if (lane == 31) s.warp_measure[warp] = upto, s.warp_count[warp] = tokens_upto;
    __syncthreads();
    uint64_t total = 0;
#pragma unroll 2
    for (int w = 0; w < P.threads / 32; ++w) {
      if (w < warp) upto += s.warp_measure[w], tokens_upto += s.warp_count[w];
      total += s.warp_measure[w];
    }
    if (by_mass && first) *target = mass_target(p, total);
    uint64_t before = above + upto - sum;
    uint32_t tokens_before = tokens_upto - tokens;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (before < *target && before + measure[i] >= *target) {
        s.bin = static_cast<int>(threadIdx.x) * kOwn + i;
        s.above = before;
        s.above_count = tokens_before;
        s.bin_count = count[i];
      }
      before += measure[i];
      tokens_before += count[i];
    }
    if (threadIdx.x == 0) s.total = total;
    __syncthreads();
  }

  /// Every block's candidates into s.all: those of the found bin, or of the first level's bins up to it.
  template <class Each>
  __device__ __forceinline__ void gather(int level, bool everything, int first_bin, int down, uint64_t prefix,
                                         Each&& each) {
    each([&](int v, float z) {
      const uint64_t r = ranked(z, v);
      const int bin = distance_bin(z);
      if (r < cut || (everything ? bin > first_bin : bin != first_bin || (level > 0 && r >> down != prefix))) return;
      s.list[atomicAdd(&s.listed, 1u)] = r;
    });
    ptx::cluster_sync<P.cluster>();
    n = collect();
  }
};

}  // namespace vivace::kernels
