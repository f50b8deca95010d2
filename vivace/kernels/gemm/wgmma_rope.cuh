// The way out of gemm_wgmma for the qkv product of few tokens (kFinishRope): heads are rotated in registers and stored where
// attention reads them. A tile's rows lie eight of a head's first half, then their partners of the second: both meet in a lane.
#pragma once
#include "vivace/kernels/gemm/wgmma_finish.cuh"
#include "vivace/kernels/rope/qkv_rope.h"
#include "vivace/kernels/tile/sincos.cuh"

namespace vivace::kernels {

/// Two pieces (WgmmaPiece): eight pairs of a head's elements and kPairs * 8 tokens. What qkv_rope does with the rounded product,
/// in its order.
template <class Out, GemmWgmma P, int kPairs>
struct WgmmaRopePiece {
  WgmmaRowFactors row[2];
  int pos[2 * kPairs];      // of the lane's tokens, lane % 4 * 2 + (0, 1) of each eight
  float cosine[2 * kPairs], sine[2 * kPairs];
  int cache_pos[kPairs], cache_slot[kPairs];  // of the lane's tokens as they leave, lane / 4 of each eight
  Out* to[kPairs];          // where they go; null: nowhere
  float frequency;
  int head, pair, first, valid, half;  // pair: the first of eight of the head; first: token; half: elements between partners
  bool rotates;

  /// Where it lies, known before the dependency wait. `t`: the first token; `n`: the first of 16 rows in the tile's order.
  __device__ __forceinline__ void aim(const QkvRopeArgs& r, int t, int n) {
    head = n / r.D, pair = n % r.D / 2, first = t, half = r.D / 2;
    asm volatile("" : "+r"(head), "+r"(pair));
  }
  /// Before the sums are there.
  __device__ __forceinline__ void prefetch(const GemmArgs& a, const QkvRopeArgs& r, int t, int n, int M) {
    const int lane = threadIdx.x % 32;
    valid = n < a.N ? M : 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) row[h].template load<Out, P>(a, n < a.N ? head * r.D + h * half + pair + lane / 4 : a.N);
    rotates = head < r.Hq + r.Hkv;
    frequency = rotates ? r.inv_freq[pair + lane / 4] : 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = t + 8 * i + lane % 4 * 2 + e;
        pos[2 * i + e] = rotates && token < M ? r.pos[token] : 0;
      }
      const int token = t + 8 * i + lane / 4;
      const bool kept = head >= r.Hq && r.k_out == nullptr && token < valid;
      cache_pos[i] = kept ? r.pos[token] : 0, cache_slot[i] = kept && r.cache.slot != nullptr ? r.cache.slot[token] : 0;
    }
  }
  /// What follows from that, while the sums or their parts are on their way.
  __device__ __forceinline__ void prepare(const QkvRopeArgs& r) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float s = 0.0f, c = 1.0f;
        if (rotates) {
          sin_cos(__fmul_rn(static_cast<float>(pos[2 * i + e]), frequency), &s, &c);
          c = __fmul_rn(c, r.attn_factor), s = __fmul_rn(s, r.attn_factor);
        }
        cosine[2 * i + e] = c, sine[2 * i + e] = s;
      }
      to[i] = place(r, i);
      if (to[i] != nullptr) to[i] += pair + lane % 4 * 2;
    }
  }
  /// y: the sums of both halves.
  __device__ __forceinline__ void finish(const GemmArgs& a, float scale, int t, int M, const float (&y)[2][2 * kPairs]) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float z[2][2], tokens[2];
      token_scales<P>(a, t + 8 * i + threadIdx.x % 4 * 2, M, tokens);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int h = 0; h < 2; ++h) z[h][e] = to_float(from_float<Out>(wgmma_biased<P>(y[h][2 * i + e], scale, tokens[e], row[h])));
        if (rotates) {
          const float lower = z[0][e], upper = z[1][e], c = cosine[2 * i + e], s = sine[2 * i + e];
          z[0][e] = fmaf(lower, c, -__fmul_rn(upper, s));
          z[1][e] = fmaf(upper, c, __fmul_rn(lower, s));
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t word = ptx::transpose_matrix(ptx::pack<Out>(z[h][0], z[h][1]));
        if (to[i] != nullptr) *reinterpret_cast<uint32_t*>(to[i] + h * half) = word;
      }
    }
  }

 private:
  /// Where the head of the lane's token begins.
  __device__ __forceinline__ Out* place(const QkvRopeArgs& r, int i) const {
    const int64_t t = first + 8 * i + threadIdx.x % 32 / 4;
    if (t >= valid) return nullptr;
    if (head < r.Hq) return static_cast<Out*>(r.q) + t * r.q_stride + int64_t{head} * r.D;
    const bool key = head < r.Hq + r.Hkv;
    const int64_t of_kind = head - r.Hq - (key ? 0 : r.Hkv);
    if (r.k_out != nullptr) return static_cast<Out*>(key ? r.k_out : r.v_out) + t * (key ? r.k_stride : r.v_stride) + of_kind * r.D;
    const int64_t at = r.cache.first_head(cache_slot[i], cache_pos[i], key ? r.cache.k_stride : r.cache.v_stride);
    if (at < 0) return nullptr;
    return static_cast<Out*>(key ? r.cache.k : r.cache.v) + at + of_kind * r.cache.head_pitch();
  }
};

}  // namespace vivace::kernels
