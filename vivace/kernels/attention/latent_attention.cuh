// latent_attention on tensor cores (mma.sync), and on CUDA cores for what they do not take: formula in
// vivace/ops/latent_attention.h. Every head reads the same cache, and values are the front of keys, so that a position
// is brought once for both.
// Chosen when: every call of its op: mma.sync for 16 bits, D a multiple of 32 up to 576 and Dv of 128, else CUDA
// cores.
#pragma once
#include "vivace/kernels/attention/latent_attention.h"
#include "vivace/kernels/attention/mask.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/mma.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/pdl.cuh"

namespace vivace::kernels {

/// Eight elements into shared memory; zeros unless `take`.
template <class Q, bool kWide>
__device__ __forceinline__ void bring_eight(Q* to, const Q* from, bool take) {
  if constexpr (kWide) {
    ptx::copy16(to, from, take);
  } else {
    Vec<Q, 8> x;
#pragma unroll
    for (int i = 0; i < 8; ++i) x.v[i] = take ? from[i] : Q{0};
    *reinterpret_cast<Vec<Q, 8>*>(to) = x;
  }
}

template <class Q, LatentTile P>
struct LatentKernel {
  static constexpr int kKeys = P.kKeys, kPitch = P.pitch(), kChunks = P.e / 8, kRowGroups = P.row_groups(),
                       kKeyGroups = P.key_groups();
  static constexpr int kKeyTiles = kKeys / kKeyGroups / 8, kColumns = P.c / 8, kOutTiles = kColumns / 8;
  static_assert(P.e % 32 == 0 && P.c % 128 == 0 && P.c <= P.e && (P.rows == 32 || P.rows == 64));

  const AttentionArgs& a;
  Q *queries, *stages, *probabilities;  // shared memory: [rows][kPitch], blocks of [kKeys][kPitch], [rows][keys]
  float *row_maxes, *sums, *row_max, *row_sum, *shrink;       // [key group][row] twice, then [row]
  int warp, lane;
  float out[kRowGroups][kOutTiles][4] = {};       // all rows, this warp's columns

  __device__ __forceinline__ void load_queries(int64_t t, int h0) const {
    for (int i = static_cast<int>(threadIdx.x); i < P.rows * kChunks; i += P.kThreads) {
      const int row = i / kChunks, at = i % kChunks * 8;
      const bool take = h0 + row < a.Hq;
      bring_eight<Q, P.wide>(queries + row * kPitch + at,
                             static_cast<const Q*>(a.q) + t * a.q_stride + (take ? h0 + row : h0) * int64_t{P.e} + at,
                             take);
    }
  }
  __device__ __forceinline__ void load_block(Q* to, int64_t slot, int b, int lo, int hi) const {
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kChunks; i += P.kThreads) {
      const int row = i / kChunks, at = i % kChunks * 8, j = b * kKeys + row;
      const int64_t block = j >= lo && j < hi ? a.block(slot, j) : -1;
      const Q* from =
          static_cast<const Q*>(a.k) + (block >= 0 ? block * a.k_stride + a.row_in_block(slot, j) * P.e + at : 0);
      bring_eight<Q, P.wide>(to + row * kPitch + at, from, block >= 0);
    }
  }

  /// Probabilities of this block's positions into shared memory, in powers of two against each row's largest score so
  /// far.
  __device__ __forceinline__ void softmax_block(const Q* keys, int b, int lo, int hi) {
    const int row0 = warp % kRowGroups * 16, group = warp / kRowGroups, key0 = group * kKeyTiles * 8;
    float s[kKeyTiles][4] = {};
#pragma unroll 2
    for (int step = 0; step < P.e / 16; step += 2) {
      uint32_t q[2][4];
#pragma unroll
      for (int u = 0; u < 2; ++u)
        ptx::load_matrix4(ptx::shared_address(queries + (row0 + lane % 16) * kPitch + (step + u) * 16 + lane / 16 * 8),
                          q[u]);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        uint32_t k[4];
        ptx::load_matrix4(ptx::shared_address(keys + (key0 + n * 8 + lane % 8) * kPitch + step * 16 + lane / 8 * 8), k);
        ptx::mma16816<Q>(s[n], q[0][0], q[0][1], q[0][2], q[0][3], k[0], k[1]);
        ptx::mma16816<Q>(s[n], q[1][0], q[1][1], q[1][2], q[1][3], k[2], k[3]);
      }
    }
    const float factor = a.scale * kLog2e;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float m = mask_row(i, b * kKeys + key0, lane, lo, hi, factor, kMinusInfinity, s);
      if (lane % 4 == 0) row_maxes[group * P.rows + row0 + lane / 4 + 8 * i] = m;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row0 + lane / 4 + 8 * i;
      float m = row_max[row];
#pragma unroll
      for (int g = 0; g < kKeyGroups; ++g) m = fmaxf(m, row_maxes[g * P.rows + row]);
      const float base = softmax_base(m);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const float x = ptx::exp2_fast(s[n][2 * i] - base), y = ptx::exp2_fast(s[n][2 * i + 1] - base);
        sum += x + y;
        *reinterpret_cast<uint32_t*>(probabilities + row * P.kProbabilityPitch + key0 + n * 8 + lane % 4 * 2) =
            ptx::pack<Q>(x, y);
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (lane % 4 == 0) sums[group * P.rows + row] = sum;
      if (lane % 4 == 0 && group == 0) shrink[row] = ptx::exp2_fast(row_max[row] - base);
    }
    __syncthreads();
  }
  /// The rows' state after softmax_block(); the next block's barrier orders it before it is read.
  __device__ __forceinline__ void advance() const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= P.rows) return;
    float m = row_max[row], total = row_sum[row] * shrink[row];
#pragma unroll
    for (int g = 0; g < kKeyGroups; ++g) m = fmaxf(m, row_maxes[g * P.rows + row]), total += sums[g * P.rows + row];
    row_max[row] = m, row_sum[row] = total;
  }

  __device__ __forceinline__ void add_values(const Q* values) {
#pragma unroll
    for (int m = 0; m < kRowGroups; ++m) {
      const float by[2] = {shrink[m * 16 + lane / 4], shrink[m * 16 + lane / 4 + 8]};
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
        out[m][n][0] *= by[0], out[m][n][1] *= by[0], out[m][n][2] *= by[1], out[m][n][3] *= by[1];
    }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t p[kRowGroups][4];
#pragma unroll
      for (int m = 0; m < kRowGroups; ++m)
        ptx::load_matrix4(
            ptx::shared_address(probabilities + (m * 16 + lane % 16) * P.kProbabilityPitch + k * 16 + lane / 16 * 8),
            p[m]);
#pragma unroll
      for (int n = 0; n < kOutTiles; n += 2) {
        uint32_t v[4];
        ptx::load_matrix4_transposed(
            ptx::shared_address(values + (k * 16 + lane % 16) * kPitch + warp * kColumns + n * 8 + lane / 16 * 8), v);
#pragma unroll
        for (int m = 0; m < kRowGroups; ++m) {
          ptx::mma16816<Q>(out[m][n], p[m][0], p[m][1], p[m][2], p[m][3], v[0], v[1]);
          ptx::mma16816<Q>(out[m][n + 1], p[m][0], p[m][1], p[m][2], p[m][3], v[2], v[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void write(int64_t row_of_out, int64_t row_of_lse, int h0) const {
#pragma unroll
    for (int m = 0; m < kRowGroups; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = m * 16 + lane / 4 + 8 * i;
        if (h0 + row >= a.Hq) continue;
        const float factor = row_sum[row] == 0 ? 0.0f : 1.0f / row_sum[row];
        Q* const to = static_cast<Q*>(a.out) + row_of_out + (h0 + row) * int64_t{P.c} + warp * kColumns + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n)
          store_by<P.wide ? 2 : 1, 2>(to + n * 8, {out[m][n][2 * i] * factor, out[m][n][2 * i + 1] * factor});
      }
    const int row = static_cast<int>(threadIdx.x);
    if (a.lse != nullptr && row < P.rows && h0 + row < a.Hq)
      a.lse[row_of_lse + h0 + row] = softmax_lse(row_max[row], row_sum[row]);
  }
};

/// Grid: T * N * ceil(Hq / P.rows) blocks.
template <class Q, LatentTile P>
__global__ void __launch_bounds__(P.kThreads, 1) latent_attention(const __grid_constant__ LatentAttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  ptx::dependency_wait();
  ptx::launch_dependents();
  const AttentionArgs& a = args.a;
  const uint32_t tiles = static_cast<uint32_t>((a.Hq + P.rows - 1) / P.rows), runs = static_cast<uint32_t>(args.N);
  const int h0 = static_cast<int>(blockIdx.x % tiles) * P.rows;
  const int64_t n = blockIdx.x / tiles % runs, t = blockIdx.x / tiles / runs;
  if (t >= valid_rows(a.rows, a.T)) return;
  Q* const queries = reinterpret_cast<Q*>(memory);
  Q* const stages = queries + P.rows * P.pitch();
  Q* const probabilities = stages + P.stages * P.kKeys * P.pitch();
  float* const row_maxes = reinterpret_cast<float*>(probabilities + P.rows * P.kProbabilityPitch);
  float* const sums = row_maxes + P.key_groups() * P.rows;
  float* const row_max = sums + P.key_groups() * P.rows;
  LatentKernel<Q, P> k{a,
                       queries,
                       stages,
                       probabilities,
                       row_maxes,
                       sums,
                       row_max,
                       row_max + P.rows,
                       row_max + 2 * P.rows,
                       static_cast<int>(threadIdx.x / 32),
                       static_cast<int>(threadIdx.x % 32)};
  const AttentionSpan see = args.span(t, n);
  const int lo = static_cast<int>(see.first), hi = static_cast<int>(see.end), first = lo / P.kKeys,
            past = (hi + P.kKeys - 1) / P.kKeys;
  constexpr int kStage = P.kKeys * P.pitch();
  if (threadIdx.x < P.rows) k.row_max[threadIdx.x] = kMinusInfinity, k.row_sum[threadIdx.x] = 0;
  k.load_queries(t, h0);
#pragma unroll
  for (int s = 0; s < P.stages - 1; ++s) {
    if (first + s < past) k.load_block(stages + s * kStage, see.slot, first + s, lo, hi);
    ptx::copy_commit();
  }
  int full = 0, empty = P.stages - 1;
  for (int b = first; b < past; ++b) {
    // With one stage the block at hand is brought here, and nothing overlaps it.
    if constexpr (P.stages == 1) {
      __syncthreads();
      k.load_block(stages, see.slot, b, lo, hi);
      ptx::copy_commit();
      ptx::copy_wait<0>();
    } else {
      ptx::copy_wait<P.stages - 2>();
    }
    __syncthreads();
    if constexpr (P.stages > 1) {
      if (b + P.stages - 1 < past) k.load_block(stages + empty * kStage, see.slot, b + P.stages - 1, lo, hi);
      ptx::copy_commit();
    }
    const Q* const block = stages + full * kStage;
    k.softmax_block(block, b, lo, hi);
    k.advance();
    k.add_values(block);
    full = full + 1 == P.stages ? 0 : full + 1;
    empty = empty + 1 == P.stages ? 0 : empty + 1;
  }
  ptx::copy_wait<0>();
  __syncthreads();
  k.write(t * a.out_stride + n * a.Hq * P.c, t * a.lse_stride + n * a.Hq, h0);
}

/// Any type, any sizes, f32 throughout. A block of four warps takes a head of a token and a run; a warp takes every
/// fourth position. Grid: T * N * Hq blocks.
template <class Q, LatentPlain P>
__global__ void __launch_bounds__(P.kThreads) latent_plain(const __grid_constant__ LatentAttentionArgs args) {
  constexpr int kWarps = P.kThreads / 32;
  extern __shared__ __align__(16) float partial[];  // [kWarps][C], then maxima and row_sums
  ptx::dependency_wait();
  ptx::launch_dependents();
  const AttentionArgs& a = args.a;
  const int h = static_cast<int>(blockIdx.x % static_cast<uint32_t>(a.Hq)), warp = static_cast<int>(threadIdx.x / 32),
            lane = static_cast<int>(threadIdx.x % 32);
  const int64_t n = blockIdx.x / static_cast<uint32_t>(a.Hq) % static_cast<uint32_t>(args.N),
                t = blockIdx.x / static_cast<uint32_t>(a.Hq) / static_cast<uint32_t>(args.N);
  if (t >= valid_rows(a.rows, a.T)) return;
  float* const row_maxes = partial + kWarps * a.Dv;
  float* const row_sums = row_maxes + kWarps;
  float q[P.items], sum[P.items] = {}, row_max = kMinusInfinity, row_sum = 0;
#pragma unroll
  for (int i = 0; i < P.items; ++i)
    q[i] = i * 32 + lane < a.D ? to_float(static_cast<const Q*>(a.q)[t * a.q_stride + int64_t{h} * a.D + i * 32 + lane])
                               : 0.0f;
  const AttentionSpan see = args.span(t, n);
#pragma unroll 1
  for (int64_t j = see.first / kWarps * kWarps + warp; j < see.end; j += kWarps) {
    if (j < see.first) continue;
    const int64_t block = a.block(see.slot, j);
    float row[P.items], s = 0;
#pragma unroll
    for (int i = 0; i < P.items; ++i)
      row[i] = block >= 0 && i * 32 + lane < a.D
                   ? to_float(static_cast<const Q*>(
                         a.k)[block * a.k_stride + a.row_in_block(see.slot, j) * a.D + i * 32 + lane])
                   : 0.0f;
#pragma unroll
    for (int i = 0; i < P.items; ++i) s += q[i] * row[i];
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) s += __shfl_xor_sync(0xffffffffu, s, step);
    s *= a.scale * kLog2e;
    const float m = fmaxf(row_max, s), base = softmax_base(m), shrink = ptx::exp2_fast(row_max - base),
                w = ptx::exp2_fast(s - base);
    row_max = m, row_sum = row_sum * shrink + w;
#pragma unroll
    for (int i = 0; i < P.items; ++i) sum[i] = sum[i] * shrink + w * row[i];
  }
#pragma unroll
  for (int i = 0; i < P.items; ++i)
    if (i * 32 + lane < a.Dv) partial[warp * a.Dv + i * 32 + lane] = sum[i];
  if (lane == 0) row_maxes[warp] = row_max, row_sums[warp] = row_sum;
  __syncthreads();
  float highest = kMinusInfinity, total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, row_maxes[w]);
  const float base = softmax_base(highest);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += row_sums[w] * ptx::exp2_fast(row_maxes[w] - base);
  const float factor = total == 0 ? 0.0f : 1.0f / total;
  for (int c = static_cast<int>(threadIdx.x); c < a.Dv; c += P.kThreads) {
    float x = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += partial[w * a.Dv + c] * ptx::exp2_fast(row_maxes[w] - base);
    static_cast<Q*>(a.out)[t * a.out_stride + (n * a.Hq + h) * a.Dv + c] = from_float<Q>(x * factor);
  }
  if (threadIdx.x == 0 && a.lse != nullptr) a.lse[t * a.lse_stride + n * a.Hq + h] = softmax_lse(highest, total);
}

}  // namespace vivace::kernels
