// The epilogue of gemm_wgmma where heads are rotated in registers and stored where attention reads them
// (kEpilogueRope). A tile's rows lie eight of a head's first half, then the eight of the second that turn with them:
// both meet in a lane.
#pragma once
#include "vivace/kernels/gemm/rms_gemm.h"
#include "vivace/kernels/gemm/wgmma_epilogue.cuh"
#include "vivace/kernels/gemm/wgmma_merge.cuh"

namespace vivace::kernels {

/// What a lane finishes of its block's one tile: kTurns times two pieces (WgmmaPiece), eight pairs of a head's elements
/// and kPairs * 8 tokens, the tokens of all alike. As qkv_rope makes them of the rounded product and angles, in its
/// order.
template <class Out, GemmWgmma P>
struct WgmmaHeads {
  using Merge = WgmmaMerge<P>;
  static constexpr int kWarps = P.rows / 16, kPairs = Merge::kVec / 2, kItems = Merge::kItems / 64,
                       kTurns = (kItems + kWarps - 1) / kWarps,
                       kStep = 8 * kWarps / Merge::kPieces;  // pairs of a head from one turn to the next
  static_assert(sizeof(Out) == 2 && Merge::kUnits % 2 == 0 && kWarps % Merge::kPieces == 0 &&
                (kItems % kWarps == 0 || kTurns == 1));
  WgmmaRowFactors row[kTurns][2];
  float cosine[kTurns][2 * kPairs], sine[kTurns][2 * kPairs];  // of tokens lane % 4 * 2 + (0, 1) of each eight
  Out* to[kPairs];  // where the tokens of lane / 4 of each eight go, the first turn's; null: nowhere
  int t, head, pair;  // the first token; the first turn's first pair in its head
  bool rotates;       // all of a tile alike

  /// Whether the warp has nothing to finish.
  __device__ __forceinline__ static bool idle() {
    return kItems < kWarps && static_cast<int>(threadIdx.x) / 32 >= kItems;
  }

  /// Where it lies and how far it turns, known before the dependency wait. `t0`, `n0`: the tile's, `part`: the block's.
  __device__ __forceinline__ void aim(const GemmArgs& a, const GemmHeads& r, int t0, int n0, int part) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    t = t0 + warp % Merge::kPieces * kPairs * 8, head = n0 / r.D;
    pair = (n0 - head * r.D + part * P.slice()) / 2 + warp / Merge::kPieces * 8;
    rotates = head < r.Hq + r.Hkv;
    if (idle()) return;  // its pairs may lie beyond the head
    if (rotates) {
#pragma unroll
      for (int j = 0; j < 2 * kPairs; ++j) {
        const int token = min(t + j / 2 * 8 + lane % 4 * 2 + j % 2, a.T - 1);
        const float *const c = r.angles + token * r.angles_stride + pair + lane / 4, *const s = c + r.R;
#pragma unroll
        for (int p = 0; p < kTurns; ++p) cosine[p][j] = c[p * kStep], sine[p][j] = s[p * kStep];
      }
    }
    const bool query = head < r.Hq, key = rotates && !query;
    const int64_t stride = query ? r.q_stride : int64_t{r.Hkv} * r.D;
    Out* const base = static_cast<Out*>(query ? r.q : key ? r.k : r.v) +
                      (head - (query ? 0 : key ? r.Hq : r.Hq + r.Hkv)) * r.D + pair + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int token = min(t + 8 * i + lane / 4, a.T - 1);
      int64_t at = token * stride;
      bool there = true;
      if (!query) {
        const int slot = r.slot != nullptr ? r.slot[token] : 0, pos = r.pos[token];
        there = slot >= 0 && slot < r.B && pos >= 0 && pos < r.L;
        at = slot * (key ? r.k_stride : r.v_stride) + pos * stride;
      }
      to[i] = there ? base + at : nullptr;
      asm volatile("" : "+l"(to[i]));
    }
  }
  /// Before the sums are there.
  __device__ __forceinline__ void prefetch(const GemmArgs& a, const GemmHeads& r) {
    const int n = head * r.D + pair + threadIdx.x % 32 / 4;
#pragma unroll
    for (int p = 0; p < kTurns; ++p)
#pragma unroll
      for (int h = 0; h < 2; ++h) row[p][h].template load<Out, P>(a, n + h * r.R + p * kStep);
  }
  /// Parts of sums to outputs where they go. Each step for all turns: one after the other each would wait for its own
  /// results.
  __device__ __forceinline__ void finish(const GemmArgs& a, const GemmHeads& r, float scale, int M,
                                         const float* parts) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (idle()) return;
    float y[kTurns][2][Merge::kVec];
    uint32_t word[kTurns][2][kPairs];  // of a half: two tokens of a row
#pragma unroll
    for (int p = 0; p < kTurns; ++p) {
      const int at = (2 * (warp / Merge::kPieces) * Merge::kPieces + warp % Merge::kPieces) * 32 + lane;
#pragma unroll
      for (int h = 0; h < 2; ++h) Merge::sum(parts, at + (p * kWarps * 2 + h * Merge::kPieces) * 32, y[p][h]);
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float s[2], z[2];
      token_scales<P>(a, t + 8 * i + lane % 4 * 2, M, s);
#pragma unroll
      for (int p = 0; p < kTurns; ++p)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int e = 0; e < 2; ++e) z[e] = wgmma_biased<P>(y[p][h][2 * i + e], scale, s[e], row[p][h]);
          word[p][h][i] = ptx::pack<Out>(z[0], z[1]);
        }
    }
    if (rotates) {
#pragma unroll
      for (int p = 0; p < kTurns; ++p)
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          float z[2][2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float lower = half_of<Out>(word[p][0][i], e), upper = half_of<Out>(word[p][1][i], e),
                        c = cosine[p][2 * i + e], s = sine[p][2 * i + e];
            z[0][e] = fmaf(lower, c, -__fmul_rn(upper, s));
            z[1][e] = fmaf(upper, c, __fmul_rn(lower, s));
          }
#pragma unroll
          for (int h = 0; h < 2; ++h) word[p][h][i] = ptx::pack<Out>(z[h][0], z[h][1]);
        }
    }
#pragma unroll
    for (int p = 0; p < kTurns; ++p)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kPairs; ++i) word[p][h][i] = ptx::transpose_matrix(word[p][h][i]);
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      if (t + 8 * i + lane / 4 < M && to[i] != nullptr) {
#pragma unroll
        for (int p = 0; p < kTurns; ++p)
#pragma unroll
          for (int h = 0; h < 2; ++h) *reinterpret_cast<uint32_t*>(to[i] + h * r.R + p * kStep) = word[p][h][i];
      }
  }
};

}  // namespace vivace::kernels
