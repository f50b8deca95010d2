// One row of logits as `sample` sees it on CUDA, and the reductions over the blocks that share it.
#pragma once
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/sampling/sample.h"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// A score and its token as one integer: larger is better, of equal scores the lower id. 54 bits.
inline constexpr int kIdBits = 22;
inline constexpr uint32_t kIdMask = (1u << kIdBits) - 1;
static_assert(kMaxSampleVocab == int64_t{1} << kIdBits);
__device__ __forceinline__ uint64_t ranked(float z, int v) {
  return static_cast<uint64_t>(score_key(z)) << kIdBits | (kIdMask - static_cast<uint32_t>(v));
}
__device__ __forceinline__ int ranked_id(uint64_t r) {
  return static_cast<int>(kIdMask - (static_cast<uint32_t>(r) & kIdMask));
}
__device__ __forceinline__ float key_score(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}
__device__ __forceinline__ float ranked_score(uint64_t r) { return key_score(static_cast<uint32_t>(r >> kIdBits)); }
/// The least rank above that of -inf: what has it or more can come.
inline constexpr uint64_t kPossible = uint64_t{0x00800000u} << kIdBits;

__device__ __forceinline__ float minus_inf() { return __uint_as_float(0xff800000u); }

/// x / d by the rounded reciprocal and one correction: correctly rounded for quotients in the normal range,
/// in a quarter of a division's code. Infinities, zeros and quotients near either end keep x * (1 / d).
__device__ __forceinline__ float quotient(float x, float d, float reciprocal) {
  const float q = __fmul_rn(x, reciprocal), better = fmaf(fmaf(-q, d, x), reciprocal, q);
  return fabsf(q) > 0x1p-90f && fabsf(q) < 0x1p+90f ? better : q;
}

/// What lifts a divisor, and all that is at most as large, to where its reciprocal is finite; else 1.
__device__ __forceinline__ float lift(float d) { return d < 0x1p-100f ? 0x1p+100f : 1.0f; }

/// The logits of row `t`.
template <class In, SamplePolicy P>
struct RawRow {
  const SampleArgs& a;
  int64_t t;

  /// Raw logits of tokens v .. v + 3; v is a multiple of 4. Those beyond V are -inf.
  __device__ __forceinline__ void raw(int v, float (&l)[4]) const {
    const In* row = static_cast<const In*>(a.logits) + t * a.logits_stride + v;
    if (P.vec == 4 && v + 4 <= a.V) {
      load<4>(row, l);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) l[i] = v + i < a.V ? to_float(row[i]) : minus_inf();
  }
};

/// The options of a row, read once, and its penalised, divided and masked logits, four at a time.
template <class In, SamplePolicy P>
struct SampleRow : RawRow<In, P> {
  using RawRow<In, P>::a, RawRow<In, P>::t;
  float temperature = 1.0f, repetition = 1.0f, presence = 0.0f, frequency = 0.0f;
  float per_temperature = 1.0f, per_repetition = 1.0f;  // their reciprocals
  bool greedy;
  bool plain;  // scores are logits over the temperature: their order is the logits'
  const int32_t* counts = nullptr;
  const int32_t* mask = nullptr;

  __device__ __forceinline__ explicit SampleRow(const RawRow<In, P>& raw) : RawRow<In, P>(raw) {
    const float wanted = P.greedy || !a.temperature ? 0.0f : a.temperature[t];
    greedy = !(wanted >= kMinTemperature);
    if (!greedy) temperature = wanted, per_temperature = __frcp_rn(wanted);
    if (a.counts != nullptr) {
      const int64_t slot = a.slot ? a.slot[t] : 0;
      if (a.presence) presence = a.presence[t];
      if (a.frequency) frequency = a.frequency[t];
      if (a.repetition) repetition = a.repetition[t], per_repetition = __frcp_rn(repetition);
      // Penalties of 1, 0 and 0 leave every logit as it is: such a row does not read its counts.
      const bool counted =
          (slot >= 0) & (slot < a.S) & ((repetition != 1.0f) | (presence != 0.0f) | (frequency != 0.0f));
      counts = counted ? a.counts + slot * a.counts_stride : nullptr;
    }
    mask = mask_of(a, t);
    plain = counts == nullptr && mask == nullptr;
  }

  __device__ __forceinline__ float divided(float l) const {
    return temperature != 1.0f ? quotient(l, temperature, per_temperature) : l;
  }

  /// How often tokens v .. v + 3 have come, 0 for those beyond V. Only where there are counts. One access where
  /// they are aligned: nothing waits between loads.
  __device__ __forceinline__ Vec<int32_t, 4> occurrences(int v) const {
    if (reinterpret_cast<uint64_t>(counts) % 16 == 0 && v + 4 <= a.V)
      return *reinterpret_cast<const Vec<int32_t, 4>*>(counts + v);
    Vec<int32_t, 4> n;
#pragma unroll
    for (int i = 0; i < 4; ++i) n.v[i] = v + i < a.V ? counts[v + i] : 0;
    return n;
  }

  /// Raw logits -> scores. Every operation rounds to f32, as on the CPU. `n`: occurrences, read where there are counts.
  __device__ __forceinline__ void score(int v, const Vec<int32_t, 4>& n, float (&l)[4]) const {
    if (counts != nullptr && max(max(n.v[0], n.v[1]), max(n.v[2], n.v[3])) > 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n.v[i] <= 0) continue;
        l[i] = l[i] > 0 ? quotient(l[i], repetition, per_repetition) : __fmul_rn(l[i], repetition);
        l[i] = __fsub_rn(l[i], __fadd_rn(presence, __fmul_rn(frequency, static_cast<float>(n.v[i]))));
      }
    }
    if (temperature != 1.0f)
#pragma unroll
      for (int i = 0; i < 4; ++i) l[i] = quotient(l[i], temperature, per_temperature);
    if (mask != nullptr) {
      const uint32_t word = v < a.V ? static_cast<uint32_t>(mask[v / 32]) >> (v % 32) : 0u;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!(word >> i & 1u)) l[i] = minus_inf();
    }
  }
  __device__ __forceinline__ void score(int v, float (&l)[4]) const {
    Vec<int32_t, 4> n{};
    if (counts != nullptr) n = occurrences(v);
    score(v, n, l);
  }
  /// kFours of them, `step` tokens apart: all counts are on their way before the first is looked at.
  template <int kFours>
  __device__ __forceinline__ void score(int v, int step, float (&l)[kFours][4]) const {
    Vec<int32_t, 4> n[kFours];
    if (counts != nullptr) {
#pragma unroll
      for (int k = 0; k < kFours; ++k) n[k] = occurrences(v + k * step);
    }
#pragma unroll
    for (int k = 0; k < kFours; ++k) score(v + k * step, n[k], l[k]);
  }
};

/// Shared memory of the reductions.
struct SampleScratch {
  uint64_t warp[32];
  float warp_f[32];
  uint64_t block;       // this block's largest rank, 0 where a score is NaN; other blocks read it
  uint64_t drawn;       // the same for the draw
  uint64_t total, above;  // this block's part of the mass that may stay, and of that above the drawn token
  uint32_t lse_max, lse_sum;  // bits of this block's part of the log-sum-exp
};

struct MaxRank {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

struct SumMass {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

/// The largest rank of the block, or the sum of its masses, in every thread.
template <int kThreads, class Op = MaxRank>
__device__ __forceinline__ uint64_t block_fold(uint64_t v, uint64_t* scratch, Op op = {}) {
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) v = op(v, __shfl_xor_sync(0xffffffffu, v, lane));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < kThreads / 32 ? scratch[threadIdx.x % 32] : 0;
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) v = op(v, __shfl_xor_sync(0xffffffffu, v, lane));
  __syncthreads();
  return v;
}

/// What op makes of the blocks' values at `local`, which they have published.
template <SamplePolicy P, class Op>
__device__ __forceinline__ uint64_t over_blocks(const uint64_t* local, Op op) {
  uint64_t v = 0;
#pragma unroll 4
  for (int rank = 0; rank < P.cluster; ++rank) v = op(v, ptx::remote_load<P.cluster>(local, rank));
  return v;
}

}  // namespace vivace::kernels
