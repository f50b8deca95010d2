// What the warps of attention_stream (stream.cuh) do with a block of 64 keys and values: where it lies, how it is
// copied, its scores, probabilities and sums, and how sums join.
#pragma once
#include "vivace/kernels/attention/fp8_kv.cuh"
#include "vivace/kernels/attention/mask.cuh"
#include "vivace/kernels/attention/rows.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/mma.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/tile/pipeline.cuh"

namespace vivace::kernels {

/// Largest score (in powers of two) and sum of the probabilities of some keys of a row.
struct AttentionState {
  float row_max = kMinusInfinity, row_sum = 0;

  /// Joins another's; what the values' sums of this and of the other count from now on.
  __device__ __forceinline__ void join(const AttentionState& other, float& mine, float& theirs) {
    const float highest = fmaxf(row_max, other.row_max), base = softmax_base(highest);
    mine = ptx::exp2_fast(row_max - base);
    theirs = ptx::exp2_fast(other.row_max - base);
    row_max = highest;
    row_sum = __fmaf_rn(other.row_sum, theirs, __fmul_rn(row_sum, mine));
  }
};
__device__ __forceinline__ float joined(float x, float mine, float other, float theirs) {
  return __fmaf_rn(other, theirs, __fmul_rn(x, mine));
}

template <class Q, class Kv, AttentionStream P, class Out>
struct AttentionStreamBlocks : AttentionRows<Q, P.dv, sizeof(Kv) == 1, Out> {
  using Rows = AttentionRows<Q, P.dv, sizeof(Kv) == 1, Out>;
  using Rows::a, Rows::memory, Rows::kv, Rows::rank, Rows::warp_m, Rows::warp_d, Rows::lane, Rows::row0, Rows::row_end,
      Rows::height, Rows::first, Rows::end, Rows::q_descale;
  static constexpr int kKeys = P.kKeys, kGroup = P.kGroup, kSuper = kGroup * kGroup, kDim = P.padded(P.d),
                       kDimV = P.padded(P.dv), kSteps = kDim / 16;
  static constexpr bool kFp8Kv = sizeof(Kv) == 1;  // dequantized to f16, in which every e4m3 is exact
  static constexpr int kPitch = P.pitch(P.d, sizeof(Kv)), kPitchV = P.pitch_v(P.dv, sizeof(Kv));  // bytes
  static constexpr int kStage = P.stage_bytes(sizeof(Kv)), kQueryPitch = kDim + 8;
  static constexpr int kTiles = (kDimV / 16 + P.warps_d - 1) / P.warps_d;  // 16 columns of values each, of a warp
  static constexpr bool kHoldQ =
      P.occupancy() == 1 && kSteps <= 8;  // queries in registers for a unit; else read again for each block
  using Queries = uint32_t[kHoldQ ? kSteps : 1][4];
  using Element = typename OneOf<kFp8Kv, f16, Q>::Type;
  static_assert(!kFp8Kv || (P.d % 64 == 0 && P.dv % 16 == 0));

  // Shared memory: queries [height][kQueryPitch] and their descales; stages: keys [kKeys][kPitch bytes], values
  // [kKeys][kPitchV bytes]; scores [2][height][kScorePitch]; sums and states that were sent here; barriers.
  __device__ __forceinline__ Q* queries() const { return reinterpret_cast<Q*>(memory); }
  __device__ __forceinline__ unsigned char* stage(int i) const {
    return memory + P.query_bytes(height) + i % P.stages * kStage;
  }
  /// The i-th block's scores of a row.
  __device__ __forceinline__ float* scores(int i, int r) const {
    return reinterpret_cast<float*>(memory + P.query_bytes(height) + P.stages * kStage) +
           (i % 2 * height + r) * P.kScorePitch;
  }
  /// Sums and states that a round's units sent to this block: of unit n the fours that are its own, and its rows.
  __device__ __forceinline__ float* received_sums(int n) const {
    return reinterpret_cast<float*>(memory + P.query_bytes(height) + P.stages * kStage + P.score_bytes(height)) +
           n * P.share(height) * 4;
  }
  __device__ __forceinline__ AttentionState* received_states(int n) const {
    return reinterpret_cast<AttentionState*>(received_sums(P.split * P.slots)) + n * height;
  }
  using Ring = Pipeline<P.stages>;
  __device__ __forceinline__ Ring ring() const {
    return {ptx::shared_address(memory) + static_cast<uint32_t>(P.barriers_at(sizeof(Kv), height))};
  }
  /// Rows beyond the tile's stand for its last one: what comes of them is dropped.
  __device__ __forceinline__ int held(int r) const { return min(r, height - 1); }

  __device__ __forceinline__ void load_queries() const {
    const int group = a.group();
    for (int i = static_cast<int>(threadIdx.x); i < height * (kDim / 8); i += P.consumers()) {
      const int row = row0 + i / (kDim / 8), t = row / group, at = i % (kDim / 8) * 8;
      const bool take = row < row_end && at < P.d;
      const Q* from = static_cast<const Q*>(a.q) +
                      (take ? int64_t{t} * a.q_stride + (kv * group + row % group) * int64_t{P.d} + at : 0);
      Q* const to = queries() + i / (kDim / 8) * kQueryPitch + at;
      ptx::copy16(to, from, take);
    }
    ptx::copy_commit();
    ptx::copy_wait<0>();
    meet();
    if constexpr (kFp8Kv) {
      scale_query_rows<Q, kDim>(queries(), kQueryPitch, height, static_cast<int>(threadIdx.x) / 32, P.consumers() / 32,
                                lane, q_descales());
      meet();
    }
  }
  /// The consumer warps.
  __device__ __forceinline__ static void meet() { ptx::named_barrier<P.consumers()>(1); }

  /// Behind the queries.
  __device__ __forceinline__ float* q_descales() const {
    return reinterpret_cast<float*>(queries() + height * kQueryPitch);
  }
  /// Step's part of the queries. Narrow: k permuted so that a lane's sixteen consecutive bytes of a key are its parts
  /// of four steps.
  __device__ __forceinline__ void query_fragment(int step, uint32_t (&f)[4]) const {
    if constexpr (kFp8Kv) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 four =
            *reinterpret_cast<const uint2*>(queries() + held(warp_m * 16 + lane / 4 + 8 * i) * kQueryPitch +
                                            step / 4 * 64 + lane % 4 * 16 + step % 4 * 4);
        f[i] = four.x, f[2 + i] = four.y;
      }
    } else {
      ptx::load_matrix4(
          ptx::shared_address(queries() + held(warp_m * 16 + lane % 16) * kQueryPitch + step * 16 + lane / 16 * 8), f);
    }
  }

  // --- the producer warps ---

  static constexpr int kRows = kKeys / (P.kProducers / 32);  // of a block, of a producer warp

  /// A warp's rows of keys or values: row r begins `offset` of lane r (elements; negative: zeros) after this kv head's
  /// first.
  template <int kD, int kTo>
  __device__ __forceinline__ void copy_rows(unsigned char* to, const void* base, int64_t offset) const {
    constexpr int kC = kD * static_cast<int>(sizeof(Kv)) / 16, kEach = 16 / static_cast<int>(sizeof(Kv)),
                  kSteps16 = (kRows * kC + 31) / 32;
    const Kv* const heads = static_cast<const Kv*>(base) + int64_t{kv} * a.head_rows() * kD;
#pragma unroll 8
    for (int n = 0; n < kSteps16; ++n) {
      const int i = n * 32 + lane, r = i / kC, c = i % kC;
      const int64_t from = __shfl_sync(0xffffffffu, offset, r % kRows);
      if (kRows * kC % 32 == 0 || r < kRows)
        ptx::copy16(to + r * kTo + c * 16, from < 0 ? heads : heads + from + c * kEach, from >= 0);
    }
  }
  /// Block b into the stage that `i` names; zeros outside of [lo, hi) and for pages that do not exist.
  __device__ __forceinline__ void copy(int i, int64_t slot, int b, int lo, int hi) const {
    const int first_row = (static_cast<int>(threadIdx.x) - P.consumers()) / 32 * kRows,
              j = b * kKeys + first_row + lane;
    int64_t k = -1, v = -1;
    if (lane < kRows && j >= lo && j < hi) {  // page numbers are read while the stage is still in use
      const int64_t block = a.block(slot, j), position = a.row_in_block(slot, j) * a.position_rows();
      if (block >= 0) k = block * a.k_stride + position * P.d, v = block * a.v_stride + position * P.dv;
    }
    ring().producer_acquire(i);
    copy_rows<P.d, kPitch>(stage(i) + first_row * kPitch, a.k, k);
    copy_rows<P.dv, kPitchV>(stage(i) + kKeys * kPitch + first_row * kPitchV, a.v, v);
    ring().producer_commit_copied(i % P.stages);
  }

  // --- the consumer warps ---

  /// q . k of this warp's keys of a block: keys 8 n + 2 (lane % 4) + {0, 1} of those in s[n].
  static constexpr int kOwn = kKeys / P.warps_d;
  __device__ __forceinline__ void products(const unsigned char* keys, const Queries& q, float (&s)[kOwn / 8][4]) const {
    const auto fragment = [&](int step, uint32_t(&f)[4]) {
      if constexpr (kHoldQ) {
#pragma unroll
        for (int i = 0; i < 4; ++i) f[i] = q[step][i];
      } else {
        query_fragment(step, f);
      }
    };
    keys += warp_d * kOwn * kPitch;
#pragma unroll
    for (int n = 0; n < kOwn / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    if constexpr (kFp8Kv) {
#pragma unroll
      for (int chunk = 0; chunk < kSteps / 4; ++chunk) {
        uint4 k[kOwn / 8];
#pragma unroll
        for (int n = 0; n < kOwn / 8; ++n)
          k[n] = *reinterpret_cast<const uint4*>(keys + (n * 8 + lane / 4) * kPitch + chunk * 64 + lane % 4 * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t f[4];
          fragment(chunk * 4 + i, f);
#pragma unroll
          for (int n = 0; n < kOwn / 8; ++n) {
            const uint32_t words[4] = {k[n].x, k[n].y, k[n].z, k[n].w};
            uint32_t low, high;
            ptx::upcast_e4m3(words[i], low, high);
            ptx::mma16816<f16>(s[n], f[0], f[1], f[2], f[3], low, high);
          }
        }
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t f[4];
        fragment(step, f);
#pragma unroll
        for (int n = 0; n < kOwn / 8; n += 2) {
          uint32_t k[4];
          ptx::load_matrix4(
              ptx::shared_address(keys + (n * 8 + lane % 8 + lane / 16 * 8) * kPitch + step * 32 + lane / 8 % 2 * 16),
              k);
          ptx::mma16816<Q>(s[n], f[0], f[1], f[2], f[3], k[0], k[1]);
          ptx::mma16816<Q>(s[n + 1], f[0], f[1], f[2], f[3], k[2], k[3]);
        }
      }
    }
  }
  /// Everyone's products of a row to everyone who has columns of it. Two buffers: nobody is two blocks ahead.
  __device__ __forceinline__ void exchange(int i, const float (&own)[kOwn / 8][4], float (&s)[kKeys / 8][4]) const {
    const int r[2] = {warp_m * 16 + lane / 4, warp_m * 16 + lane / 4 + 8};
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (r[h] < height)
#pragma unroll
        for (int n = 0; n < kOwn / 8; ++n)
          store<2>(scores(i, r[h]) + warp_d * kOwn + n * 8 + lane % 4 * 2, {own[n][2 * h], own[n][2 * h + 1]});
    ptx::named_barrier<P.warps_d * 32>(2 + warp_m);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const Vec<float, 2> x = *reinterpret_cast<const Vec<float, 2>*>(scores(i, held(r[h])) + n * 8 + lane % 4 * 2);
        s[n][2 * h] = x.v[0], s[n][2 * h + 1] = x.v[1];
      }
  }

  /// Products become probabilities 2^(score - row_max); the state of the block's keys.
  __device__ __forceinline__ void softmax_block(int key0, float (&s)[kKeys / 8][4], AttentionState (&block)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float plain = q_descale[i] * a.scale * kLog2e;
      const int from = first[i] - key0, to = end[i] - key0;
      const float m = mask_row(i, 0, lane, from, to, plain, kMinusInfinity, s);
      const float base = softmax_base(m);
      float sum[2] = {};
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          s[n][2 * i + e] = ptx::exp2_fast(s[n][2 * i + e] - base);
          sum[e] += s[n][2 * i + e];
        }
      float row_sum = sum[0] + sum[1];
      row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
      row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
      block[i] = {m, row_sum};
    }
  }

  /// Sums of this warp's columns: y[t][h][.] as mma16816 has them, columns by column().
  using Sums = float[kTiles][2][4];
  /// First column of y[t][h]'s pair; its second is 1 (narrow: 2) further.
  __device__ __forceinline__ int column(int t, int h) const {
    const int tile = (warp_d * kTiles + t) * 16;
    return kFp8Kv ? tile + lane % 4 * 4 + h : tile + h * 8 + lane % 4 * 2;
  }
  __device__ __forceinline__ static void clear(Sums& y) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) y[t][h][0] = y[t][h][1] = y[t][h][2] = y[t][h][3] = 0;
  }
  /// sums += probabilities times values of a block, as states that join.
  __device__ __forceinline__ void add_values(const unsigned char* v, const float (&s)[kKeys / 8][4],
                                             const AttentionState (&block)[2], AttentionState (&state)[2],
                                             Sums& sums) const {
    using E = Element;
    uint32_t p[kKeys / 16][4];
    constexpr float kBy = kFp8Kv ? kFp8ProbScale : 1.0f;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[k][i] = ptx::pack<E>(s[2 * k + i / 2][i % 2 * 2] * kBy, s[2 * k + i / 2][i % 2 * 2 + 1] * kBy);
    float mine[2], theirs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      state[i].join(block[i], mine[i], theirs[i]);
      theirs[i] *= 1 / kBy;
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int tile = warp_d * kTiles + t;
      if (kDimV / 16 % P.warps_d != 0 && tile >= kDimV / 16) break;
      float y[2][4] = {};
      if constexpr (kFp8Kv) {
#pragma unroll
        for (int k = 0; k < kKeys / 16; k += 2) {
          uint32_t four[4];  // keys 16 k + 8 i .., pairs of columns
          ptx::load_matrix4_transposed(ptx::shared_address(v + (k * 16 + lane) * kPitchV + tile * 16), four);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            uint32_t even[2], odd[2];
            ptx::upcast_e4m3(__byte_perm(four[2 * i], 0, 0x3120), even[0], odd[0]);
            ptx::upcast_e4m3(__byte_perm(four[2 * i + 1], 0, 0x3120), even[1], odd[1]);
            ptx::mma16816<E>(y[0], p[k + i][0], p[k + i][1], p[k + i][2], p[k + i][3], even[0], even[1]);
            ptx::mma16816<E>(y[1], p[k + i][0], p[k + i][1], p[k + i][2], p[k + i][3], odd[0], odd[1]);
          }
        }
      } else {
        uint32_t b[kKeys / 16][4];
#pragma unroll
        for (int k = 0; k < kKeys / 16; ++k)
          ptx::load_matrix4_transposed(
              ptx::shared_address(v + (k * 16 + lane % 16) * kPitchV + tile * 32 + lane / 16 * 16), b[k]);
#pragma unroll
        for (int k = 0; k < kKeys / 16; ++k) {
          ptx::mma16816<E>(y[0], p[k][0], p[k][1], p[k][2], p[k][3], b[k][0], b[k][1]);
          ptx::mma16816<E>(y[1], p[k][0], p[k][1], p[k][2], p[k][3], b[k][2], b[k][3]);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[t][h][e] = joined(sums[t][h][e], mine[e / 2], y[h][e], theirs[e / 2]);
    }
  }
  /// sums += more, of states that join.
  __device__ __forceinline__ static void join(AttentionState (&state)[2], Sums& sums, const AttentionState (&other)[2],
                                              const Sums& more) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float mine, theirs;
      state[i].join(other[i], mine, theirs);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            sums[t][h][2 * i + e] = joined(sums[t][h][2 * i + e], mine, more[t][h][2 * i + e], theirs);
    }
  }
};

}  // namespace vivace::kernels
