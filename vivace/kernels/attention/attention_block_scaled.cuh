// attention_block_scaled on tensor cores (mma.sync): formula in vivace/ops/attention_block_scaled.h. Codes become f16
// or bf16 in registers, which hold a code times its block's scale exactly; elements of a head go into products in the
// order in which a lane has them.
// Chosen when: every call of its op, on every chip.
#pragma once
#include "vivace/kernels/attention/attention_block_scaled.h"
#include "vivace/kernels/attention/mask.cuh"
#include "vivace/kernels/ptx/mma.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Two products a word, of bf16 or f16.
template <class Q>
__device__ __forceinline__ uint32_t multiply_two(uint32_t x, uint32_t y) {
  uint32_t r;
  if constexpr (kIsSame<Q, bf16>) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(0x80008000u));
  else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(0x80008000u));
  return r;
}
/// Codes in the low nibbles of a word's halves, times `scales`. Their bits are those of a small Q, which a power of two
/// lifts.
template <class Q>
__device__ __forceinline__ uint32_t upcast_values(uint32_t codes, uint32_t scales) {
  constexpr int kShift = kIsSame<Q, bf16> ? 6 : 9;
  const uint32_t small = (codes & 0x00070007u) << kShift | (codes & 0x00080008u) << 12;
  return multiply_two<Q>(multiply_two<Q>(small, kIsSame<Q, bf16> ? 0x7e807e80u : 0x74007400u), scales);  // 2^126, 2^14
}

template <class Q, AttentionBlockScaledTile P>
struct AttentionBlockScaledKernel {
  static constexpr int kWords = P.d / 32, kBytes = P.d / 2, kBlocks = P.d / 16,
                       kTiles = P.d / 8;  // words of codes a lane has of a key
  static constexpr int kEach = P.d / 8;  // columns of values a lane has: one word of codes for each 8

  const AttentionBlockScaledArgs& m;
  const AttentionArgs& a;
  int kv, lane;

  /// n words from p; zeros unless `take`.
  template <int kCount>
  __device__ __forceinline__ static void words(const unsigned char* p, bool take, uint32_t (&w)[kCount]) {
    if constexpr (P.wide && kCount == 4) {
      const uint4 x = take ? *reinterpret_cast<const uint4*>(p) : uint4{0, 0, 0, 0};
      w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
    } else if constexpr (P.wide && kCount == 2) {
      const uint2 x = take ? *reinterpret_cast<const uint2*>(p) : uint2{0, 0};
      w[0] = x.x, w[1] = x.y;
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        w[i] = 0;
        if (!take) continue;
        if constexpr (P.wide) w[i] = reinterpret_cast<const uint32_t*>(p)[i];
        else
          w[i] = p[4 * i] | static_cast<uint32_t>(p[4 * i + 1]) << 8 | static_cast<uint32_t>(p[4 * i + 2]) << 16 |
                 static_cast<uint32_t>(p[4 * i + 3]) << 24;
      }
    }
  }
  /// Row of heads of position j: of codes in units of a head, and of the block's scales; -1: nothing is there.
  struct Row {
    int64_t block, head;
  };
  __device__ __forceinline__ Row row(int64_t slot, int j, int lo, int hi) const {
    if (j < lo || j >= hi) return {-1, 0};
    return {a.block(slot, j), a.row_in_block(slot, j) * a.position_rows() + int64_t{kv} * a.head_rows()};
  }

  struct Codes {
    uint32_t k[2][kWords], v[4][kEach / 8];
    e4m3 k_scale[2][(kWords + 1) / 2], v_scale[4];  // dequantized where they are used: bring() waits for nothing
  };
  /// What this lane needs of positions [j0, j0 + 16): keys lane / 4 and 8 further, values 2 (lane % 4) + {0, 1, 8, 9}.
  __device__ __forceinline__ void bring(int64_t slot, int j0, int lo, int hi, Codes& c) const {
    const int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row(slot, j0 + g + 8 * i, lo, hi);
      const bool take = r.block >= 0;
      words(
          static_cast<const unsigned char*>(a.k) + (take ? r.block * a.k_stride + r.head * kBytes : 0) + q * kWords * 4,
          take, c.k[i]);
      const e4m3* const scales = static_cast<const e4m3*>(m.k_scales) +
                                 (take ? r.block * m.k_scales_stride + r.head * kBlocks : 0) + q * kWords / 2;
#pragma unroll
      for (int s = 0; s < (kWords + 1) / 2; ++s) c.k_scale[i][s] = take ? scales[s] : e4m3{0};
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Row r = row(slot, j0 + 2 * q + i % 2 + i / 2 * 8, lo, hi);
      const bool take = r.block >= 0;
      words(static_cast<const unsigned char*>(a.v) + (take ? r.block * a.v_stride + r.head * kBytes : 0) +
                g * (kEach / 2),
            take, c.v[i]);
      c.v_scale[i] =
          take ? static_cast<const e4m3*>(m.v_scales)[r.block * m.v_scales_stride + r.head * kBlocks + g * kEach / 16]
               : e4m3{0};
    }
  }

  /// Queries as a lane's codes lie: word w, half h of a key holds elements d0 + 2 h + {0, 4} and d0 + 2 h + {1, 5}, d0
  /// = d / 4 (lane % 4) + 8 w.
  __device__ __forceinline__ void queries(int64_t t, int h0, int heads, uint32_t (&f)[kTiles / 2][4]) const {
    const Q* const from = static_cast<const Q*>(a.q) + t * a.q_stride;
#pragma unroll
    for (int s = 0; s < kTiles / 2; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = lane / 4 + i % 2 * 8, d0 = P.d / 4 * (lane % 4) + s / 2 * 8 + s % 2 * 2 + i / 2;
        const bool take = r < heads;
        const Q* const head = from + int64_t{h0 + (take ? r : 0)} * P.d + d0;
        f[s][i] = take ? ptx::pack<Q>(to_float(head[0]), to_float(head[4])) : 0;
      }
  }

  __device__ __forceinline__ void scores(const uint32_t (&q)[kTiles / 2][4], const Codes& c, float (&s)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const float one = to_float(c.k_scale[i][w / 2]);
        const uint32_t scale = ptx::pack<Q>(one, one);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint32_t b0 = upcast_values<Q>(c.k[i][w] >> (8 * h), scale),
                         b1 = upcast_values<Q>(c.k[i][w] >> (8 * h + 4), scale);
          const uint32_t(&f)[4] = q[2 * w + h];
          ptx::mma16816<Q>(s[i], f[0], f[1], f[2], f[3], b0, b1);
        }
      }
    }
  }

  /// out[n]: columns kEach g + n of the values, g the column of the product.
  __device__ __forceinline__ void add_values(const float (&s)[2][4], const Codes& c, float (&out)[kTiles][4]) const {
    const uint32_t p[4] = {ptx::pack<Q>(s[0][0], s[0][1]), ptx::pack<Q>(s[0][2], s[0][3]),
                           ptx::pack<Q>(s[1][0], s[1][1]), ptx::pack<Q>(s[1][2], s[1][3])};
    const uint32_t scale[2] = {ptx::pack<Q>(to_float(c.v_scale[0]), to_float(c.v_scale[1])),
                               ptx::pack<Q>(to_float(c.v_scale[2]), to_float(c.v_scale[3]))};
#pragma unroll
    for (int half = 0; half < kEach / 4; ++half) {  // four codes of each of four values
      uint32_t t[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        t[i] = __byte_perm(c.v[2 * i][half / 2], c.v[2 * i + 1][half / 2], half % 2 ? 0x7632 : 0x5410);
#pragma unroll
      for (int n = 0; n < 4; ++n)
        ptx::mma16816<Q>(out[half * 4 + n], p[0], p[1], p[2], p[3], upcast_values<Q>(t[0] >> (4 * n), scale[0]),
                         upcast_values<Q>(t[1] >> (4 * n), scale[1]));
    }
  }
};

/// Grid: T * N * Hkv * ceil(group / 16) blocks.
template <class Q, AttentionBlockScaledTile P>
__global__ void __launch_bounds__(P.kThreads)
    attention_block_scaled(const __grid_constant__ AttentionBlockScaledArgs m) {
  using Kernel = AttentionBlockScaledKernel<Q, P>;
  constexpr int kWarps = P.kThreads / 32, kTiles = Kernel::kTiles, kRows = P.kRows, kPart = kRows * (P.d + 2);
  extern __shared__ __align__(16) float partial[];  // a warp: sums [row][d], maxima, row_sums
  ptx::dependency_wait();
  ptx::launch_dependents();
  const AttentionArgs& a = m.a;
  const int group = a.group();
  const uint32_t tiles = static_cast<uint32_t>((group + kRows - 1) / kRows), heads_kv = static_cast<uint32_t>(a.Hkv),
                 runs = static_cast<uint32_t>(m.N);
  const int tile = static_cast<int>(blockIdx.x % tiles), kv = static_cast<int>(blockIdx.x / tiles % heads_kv);
  const int64_t n = blockIdx.x / tiles / heads_kv % runs, t = blockIdx.x / tiles / heads_kv / runs;
  if (t >= valid_rows(a.rows, a.T)) return;
  const int h0 = kv * group + tile * kRows, heads = min(kRows, group - tile * kRows),
            warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const Kernel k{m, a, kv, lane};
  uint32_t q[kTiles / 2][4];
  k.queries(t, h0, heads, q);
  const AttentionSpan see = m.span(t, n);
  const int lo = static_cast<int>(see.first), hi = static_cast<int>(see.end);
  const float factor = a.scale * (m.k_scale != nullptr ? m.k_scale[0] : 1.0f) * kLog2e;
  float out[kTiles][4] = {}, row_max[2] = {kMinusInfinity, kMinusInfinity}, row_sum[2] = {};
  typename Kernel::Codes now, next;
  int j0 = (lo / P.kKeys / kWarps * kWarps + warp) * P.kKeys;
  k.bring(see.slot, j0, lo, hi, now);
#pragma unroll 1
  for (; j0 < hi; j0 += kWarps * P.kKeys) {
    k.bring(see.slot, j0 + kWarps * P.kKeys, lo, hi, next);
    float s[2][4];
    k.scores(q, now, s);
    float by[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float most = mask_row(i, j0, lane, lo, hi, factor, row_max[i], s);
      const float base = softmax_base(most);
      by[i] = ptx::exp2_fast(row_max[i] - base);
      row_max[i] = most;
      row_sum[i] *= by[i];
#pragma unroll
      for (int u = 0; u < 2; ++u)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[u][2 * i + e];
          x = ptx::exp2_fast(x - base);
          row_sum[i] += x;
        }
    }
    if (__any_sync(0xffffffffu, by[0] != 1 || by[1] != 1)) {
#pragma unroll
      for (int u = 0; u < kTiles; ++u) out[u][0] *= by[0], out[u][1] *= by[0], out[u][2] *= by[1], out[u][3] *= by[1];
    }
    k.add_values(s, now, out);
    now = next;
  }
  float* const mine = partial + warp * kPart;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = lane / 4 + 8 * i;
    row_sum[i] += __shfl_xor_sync(0xffffffffu, row_sum[i], 1);
    row_sum[i] += __shfl_xor_sync(0xffffffffu, row_sum[i], 2);
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int e = 0; e < 2; ++e) mine[r * P.d + (lane % 4 * 2 + e) * Kernel::kEach + u] = out[u][2 * i + e];
    if (lane % 4 == 0) mine[kRows * P.d + r] = row_max[i], mine[kRows * P.d + kRows + r] = row_sum[i];
  }
  __syncthreads();
  const float v_scale = m.v_scale != nullptr ? m.v_scale[0] : 1.0f;
  for (int i = static_cast<int>(threadIdx.x); i < heads * P.d; i += P.kThreads) {
    const int r = i / P.d, column = i % P.d;
    float highest = kMinusInfinity, total = 0, x = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, partial[w * kPart + kRows * P.d + r]);
    const float base = softmax_base(highest);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float share = ptx::exp2_fast(partial[w * kPart + kRows * P.d + r] - base);
      total += partial[w * kPart + kRows * P.d + kRows + r] * share, x += partial[w * kPart + r * P.d + column] * share;
    }
    const int64_t row = n * a.Hq + h0 + r;
    static_cast<Q*>(a.out)[t * a.out_stride + row * P.d + column] =
        from_float<Q>(total == 0 ? 0.0f : x / total * v_scale);
    if (a.lse != nullptr && column == 0) a.lse[t * a.lse_stride + row] = softmax_lse(highest, total);
  }
}

}  // namespace vivace::kernels
