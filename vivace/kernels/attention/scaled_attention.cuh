// scaled_attention on tensor cores (mma.sync of e4m3, sm_89 on): formula in vivace/ops/scaled_attention.h.
// Probabilities go from one product into the other in registers: a lane's four keys of a step are 2c, 2c + 1, 8 + 2c, 9
// + 2c (c = lane % 4) in both.
// Chosen when: compute capability 8.9 on, heads of 64 or 128; what scaled_prefill does not take.
#pragma once
#include "vivace/kernels/attention/mask.cuh"
#include "vivace/kernels/attention/runs.cuh"
#include "vivace/kernels/attention/scaled_attention.h"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/pack.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// d += a b: 16 x 32 by 32 x 8, e4m3.
__device__ __forceinline__ void multiply_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/// Sixteen codes into shared memory; zeros unless `take`.
template <bool kWide>
__device__ __forceinline__ void copy_sixteen(unsigned char* to, const unsigned char* from, bool take) {
  if constexpr (kWide) {
    ptx::copy16(to, from, take);
  } else {
#pragma unroll 1
    for (int i = 0; i < 16; ++i) to[i] = take ? from[i] : static_cast<unsigned char>(0);
  }
}

template <class Out, ScaledAttentionTile P>
struct ScaledAttentionKernel {
  static constexpr int kKeys = P.kKeys, kPitch = P.pitch(), kSteps = P.d / 32, kKeyTiles = kKeys / 8,
                       kOutTiles = P.d / 8, kChunks = P.d / 16;
  static constexpr float kProbExponent =
      8;  // probabilities are 2^8 times what they are, below e4m3's 448; the row_sum alike

  const ScaledAttentionArgs& m;
  const AttentionArgs& a;
  unsigned char *queries, *stages;  // shared memory: [kRows][kPitch]; stages of keys and values [kKeys][kPitch] each
  int kv, warp, lane, row0, row_end;
  float out[kOutTiles][4], row_max[2], row_sum[2];  // out: a warp's [16 rows][8 kOutTiles columns]
  int first[2], end[2];
  uint32_t q[kSteps][4];

  __device__ __forceinline__ int my_row(int i) const { return row0 + warp * 16 + lane / 4 + 8 * i; }
  __device__ __forceinline__ unsigned char* keys(int stage) const { return stages + stage * 2 * kKeys * kPitch; }
  __device__ __forceinline__ unsigned char* values(int stage) const { return keys(stage) + kKeys * kPitch; }

  __device__ __forceinline__ void load_queries() const {
    const int group = a.group();
    for (int i = static_cast<int>(threadIdx.x); i < P.kRows * kChunks; i += P.kThreads) {
      const int r = i / kChunks, row = row0 + r, t = row / group;
      const bool take = row < row_end;
      copy_sixteen<P.wide>(
          queries + r * kPitch + i % kChunks * 16,
          static_cast<const unsigned char*>(a.q) +
              (take ? int64_t{t} * a.q_stride + (kv * group + row % group) * int64_t{P.d} + i % kChunks * 16 : 0),
          take);
    }
    ptx::copy_commit();
  }
  /// Block b of keys and values; zeros outside of [lo, hi) and for pages that do not exist.
  __device__ __forceinline__ void bring(int stage, int64_t slot, int b, int lo, int hi) const {
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kChunks; i += P.kThreads) {
      const int r = i / kChunks, at = i % kChunks * 16, j = b * kKeys + r;
      const int64_t block = j >= lo && j < hi ? a.block(slot, j) : -1,
                    head = block >= 0
                               ? (a.row_in_block(slot, j) * a.position_rows() + int64_t{kv} * a.head_rows()) * P.d + at
                               : 0;
      copy_sixteen<P.wide>(keys(stage) + r * kPitch + at,
                           static_cast<const unsigned char*>(a.k) + (block >= 0 ? block * a.k_stride + head : 0),
                           block >= 0);
      copy_sixteen<P.wide>(values(stage) + r * kPitch + at,
                           static_cast<const unsigned char*>(a.v) + (block >= 0 ? block * a.v_stride + head : 0),
                           block >= 0);
    }
    ptx::copy_commit();
  }

  __device__ __forceinline__ void scores(const unsigned char* k, float (&s)[kKeyTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; step += 2)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        uint32_t b[4];
        ptx::load_matrix4(ptx::shared_address(k + (n * 8 + lane % 8) * kPitch + step * 32 + lane / 8 * 16), b);
        multiply_e4m3(s[n], q[step], b[0], b[1]);
        multiply_e4m3(s[n], q[step + 1], b[2], b[3]);
      }
  }
  /// Scores become probabilities; what the sums so far must shrink by.
  __device__ __forceinline__ void softmax_block(int key0, float (&s)[kKeyTiles][4], const float (&factor)[2],
                                                float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float most = mask_row(i, key0, lane, first[i], end[i], factor[i], row_max[i], s);
      const float base = softmax_base(most);
      by[i] = ptx::exp2_fast(row_max[i] - base);
      row_max[i] = most;
      row_sum[i] *= by[i];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[n][2 * i + e];
          x = ptx::exp2_fast(x - base + kProbExponent);
          row_sum[i] += x;
        }
    }
  }
  __device__ __forceinline__ static uint32_t four(float a, float b, float c, float d) {
    return ptx::pack_e4m3(a, b) | ptx::pack_e4m3(c, d) << 16;
  }
  /// out[2 i], out[2 i + 1]: the even and the odd columns of values [16 i, 16 i + 16).
  __device__ __forceinline__ void add_values(const unsigned char* v, const float (&s)[kKeyTiles][4]) {
#pragma unroll
    for (int k = 0; k < kKeys / 32; ++k) {
      uint32_t p[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&x)[4] = s[4 * k + 2 * half], (&y)[4] = s[4 * k + 2 * half + 1];
        p[2 * half] = four(x[0], x[1], y[0], y[1]), p[2 * half + 1] = four(x[2], x[3], y[2], y[3]);
      }
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        uint32_t r[4];
        ptx::load_matrix4_transposed(ptx::shared_address(v + (k * 32 + lane) * kPitch + i * 16), r);
        multiply_e4m3(out[2 * i], p, __byte_perm(r[0], r[1], 0x6420), __byte_perm(r[2], r[3], 0x6420));
        multiply_e4m3(out[2 * i + 1], p, __byte_perm(r[0], r[1], 0x7531), __byte_perm(r[2], r[3], 0x7531));
      }
    }
  }

  /// Tokens [ta, tb), which share a slot.
  __device__ __forceinline__ void attend(int ta, int tb) {
    const int group = a.group();
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      first[i] = end[i] = 0, row_max[i] = kMinusInfinity, row_sum[i] = 0;
      const int row = my_row(i), t = row / group, h = kv * group + row % group;
      factor[i] = 0;
      if (row >= row_end || t < ta || t >= tb) continue;
      const AttentionSpan see(a, t);
      first[i] = static_cast<int>(see.first), end[i] = static_cast<int>(see.end);
      factor[i] = a.scale * kLog2e * (m.q_scale != nullptr ? m.q_scale[h] : 1.0f) *
                  (m.k_scale != nullptr ? m.k_scale[kv] : 1.0f);
    }
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
    int lo, hi;
    span_of_tokens(a, ta, tb, lane, &lo, &hi);
    const int64_t slot = AttentionSpan(a, ta).slot;
    const int begin = lo / kKeys, past = hi > lo ? (hi + kKeys - 1) / kKeys : begin;
    __syncthreads();  // the run before is done with the stages
    if (begin < past) bring(0, slot, begin, lo, hi);
    else ptx::copy_commit();
#pragma unroll 1
    for (int b = begin, stage = 0; b < past; ++b, stage ^= 1) {
      if (b + 1 < past) bring(stage ^ 1, slot, b + 1, lo, hi);
      else ptx::copy_commit();
      ptx::copy_wait<1>();
      __syncthreads();
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        ptx::load_matrix4(ptx::shared_address(queries + (warp * 16 + lane % 16) * kPitch + step * 32 + lane / 16 * 16),
                          q[step]);
      float s[kKeyTiles][4], by[2];
      scores(keys(stage), s);
      softmax_block(b * kKeys, s, factor, by);
      if (__any_sync(0xffffffffu, by[0] != 1 || by[1] != 1)) {
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n)
          out[n][0] *= by[0], out[n][1] *= by[0], out[n][2] *= by[1], out[n][3] *= by[1];
      }
      add_values(values(stage), s);
      __syncthreads();  // the next but one is brought over these
    }
    write(ta, tb);
  }

  __device__ __forceinline__ void write(int ta, int tb) const {
    const int group = a.group();
    const float scale = m.v_scale != nullptr ? m.v_scale[kv] : 1.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = row_sum[i];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const int row = my_row(i), t = row / group, h = kv * group + row % group;
      if (row >= row_end || t < ta || t >= tb) continue;
      const float factor = total == 0 ? 0.0f : scale / total;
      Out* const to = static_cast<Out*>(a.out) + int64_t{t} * a.out_stride + int64_t{h} * P.d + lane % 4 * 4;
#pragma unroll
      for (int n = 0; n < kOutTiles; n += 2) {
        const float x[4] = {out[n][2 * i] * factor, out[n + 1][2 * i] * factor, out[n][2 * i + 1] * factor,
                            out[n + 1][2 * i + 1] * factor};
#pragma unroll
        for (int e = 0; e < 4; ++e) to[n * 8 + e] = from_float<Out>(x[e]);
      }
      if (a.lse != nullptr && lane % 4 == 0)
        a.lse[int64_t{t} * a.lse_stride + h] = softmax_lse(row_max[i] - kProbExponent, total);
    }
  }
};

/// Blocks an SM that the assembler plans for (0: it decides): with another count it spills some words, and not the same
/// on each chip.
VV_HD constexpr int scaled_attention_blocks(int d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  return d == 64 ? 2 : 0;
#else
  return d == 64 ? 2 : 1;
#endif
}

/// Grid: tiles * Hkv blocks; tiles of the last tokens first, which see most keys.
template <class Out, ScaledAttentionTile P>
__global__ void __launch_bounds__(P.kThreads, scaled_attention_blocks(P.d))
    scaled_attention(const __grid_constant__ ScaledAttentionArgs m) {
  extern __shared__ __align__(1024) unsigned char memory[];
  ptx::dependency_wait();
  ptx::launch_dependents();
  const AttentionArgs& a = m.a;
  const uint32_t heads = static_cast<uint32_t>(a.Hkv);
  const int tile = static_cast<int>(gridDim.x / heads - 1 - blockIdx.x / heads), row0 = tile * P.kRows,
            rows = valid_rows(a.rows, a.T) * a.group();
  if (row0 >= rows) return;
  ScaledAttentionKernel<Out, P> k{m,
                                  a,
                                  memory,
                                  memory + P.kRows * P.pitch(),
                                  static_cast<int>(blockIdx.x % heads),
                                  static_cast<int>(threadIdx.x / 32),
                                  static_cast<int>(threadIdx.x % 32),
                                  row0,
                                  min(row0 + P.kRows, rows),
                                  {},
                                  {},
                                  {},
                                  {},
                                  {},
                                  {}};
  k.load_queries();
  const int past = (k.row_end - 1) / a.group() + 1;
  for (int ta = row0 / a.group(), tb; ta < past; ta = tb) {
    tb = run_end(a, ta, past, k.lane);
    k.attend(ta, tb);
  }
  ptx::copy_wait<0>();
}

}  // namespace vivace::kernels
