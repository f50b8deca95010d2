// Sums of gemm_wgmma on their way through shared memory: parts of a tile's K that meet in a cluster, and the epilogue
// that decides at run time what follows the sum.
#pragma once
#include "vivace/kernels/gemm/epilogue.cuh"
#include "vivace/kernels/gemm/wgmma_load.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/remote.cuh"

namespace vivace::kernels {

/// Sums that lie in shared memory as [token][row], floats `stride` apart, to memory: tokens t0 .. and rows n0 ..
/// by kThreads threads of number `tid`, each with its four rows and up to kMost tokens at a time.
template <class Out, int kTokens, int kRows, int kThreads, int kMost>
__device__ __forceinline__ void epilogue_transposed(const GemmEpilogue<Out>& epilogue, const float* turn, int stride,
                                                    int tid, int t0, int n0, int M, bool vector) {
  constexpr int V = 4, kAcross = kRows / V, kStep = kThreads / kAcross, kEach = (kTokens + kStep - 1) / kStep,
                R = kEach < kMost ? kEach : kMost;
  static_assert(kThreads % kAcross == 0);
  const int n = n0 + tid % kAcross * V;
  if (n >= epilogue.a.N) return;
#pragma unroll 1
  for (int t = tid / kAcross; t < kTokens; t += R * kStep) {
    float y[R][V];
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (kTokens % (R * kStep) == 0 || t + r * kStep < kTokens)
        load<V>(turn + (t + r * kStep) * stride + tid % kAcross * V, y[r]);
    epilogue.finish_rows(t0 + t, kStep, M < t0 + kTokens ? M : t0 + kTokens, n, y, vector);
  }
}

/// Whole sums to memory: through the warpgroup's own shared memory, some tokens at a time, so that a token's
/// rows leave side by side. Two such places take turns.
template <class Out, GemmWgmma P>
__device__ __forceinline__ void wgmma_epilogue(const GemmEpilogue<Out>& epilogue, float* turns,
                                               const float (&acc)[P.tokens / 2], int t0, int n0, int M, bool vector) {
  constexpr int kTokens = P.transpose_tokens(), kRuns = (P.tokens + kTokens - 1) / kTokens,
                kStride = P.transpose_stride();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
  if constexpr (P.tokens % kTokens != 0)
    M = min(M, t0 + P.tokens);  // the last run has half of the tokens: behind them lie those of another
#pragma unroll 1
  for (int run = 0; run < kRuns && t0 + run * kTokens < M; ++run) {
    float* const turn = turns + run % 2 * kTokens * kStride;
#pragma unroll
    for (int j = 0; j < P.tokens / 8; ++j) {
      if (j / (kTokens / 8) != run) continue;  // registers have no run-time index
      float* to = turn + (j % (kTokens / 8) * 8 + lane % 4 * 2) * kStride + row;
      to[0] = acc[4 * j], to[kStride] = acc[4 * j + 1];
      to[8] = acc[4 * j + 2], to[kStride + 8] = acc[4 * j + 3];
    }
    ptx::named_barrier<128>(1 + group);
    epilogue_transposed<Out, kTokens, 64, 128, (P.tokens > 128 ? 2 : 4)>(epilogue, turn, kStride, threadIdx.x % 128,
                                                                         t0 + run * kTokens, n0, M, vector);
  }
  ptx::named_barrier<128>(1 + group);  // the next tile starts with the first place again
}

/// Parts of sums: a block finishes P.slice() rows, whose parts the others send it. A unit is 8 rows, what
/// half the registers of a warp hold; a part of a unit travels as it lies in the registers.
template <GemmWgmma P>
struct WgmmaMerge {
  static constexpr int kUnits = P.rows / 8 / P.parts();          // of a block
  static constexpr int kPairs = P.tokens / 8;                  // pairs of tokens a lane, unit
  static constexpr int kVec = kPairs > 1 ? 4 : 2;              // floats at a time
  static constexpr int kPieces = 2 * kPairs / kVec;            // of a lane, unit
  static constexpr int kPartFloats = kUnits * kPairs * 64;
  static constexpr int kItems = kUnits * kPieces * 32;         // groups of kVec floats
  static constexpr bool kStaged = P.parts() > 1 && P.tokens >= 32;  // send_staged()
  static constexpr int kComing = (P.parts() - kStaged) * kPartFloats * 4;  // bytes that a block is sent

  /// `sums` and `barrier`: shared addresses, the same in every block.
  template <class T>
  __device__ __forceinline__ static void send(uint32_t sums, uint32_t barrier, const WgmmaTileCoord<T, P>& coord,
                                              const float (&acc)[P.tokens / 2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int unit = warp * 2 + h,
                rank = unit / kUnits * (P.multicast_x * P.multicast_w) + coord.of_w * P.multicast_x + coord.of_x;
      const uint32_t to = ptx::remote_shared(
                         sums + 4 * (coord.part * kPartFloats + unit % kUnits * kPairs * 64 + lane * kVec), rank),
                     done = ptx::remote_shared(barrier, rank);
#pragma unroll
      for (int q = 0; q < kPieces; ++q) {
        float v[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) v[i] = acc[4 * (q * kVec / 2 + i / 2) + 2 * h + i % 2];
        ptx::remote_store_async(to + q * 128 * kVec, v, done);
      }
    }
  }
  /// The same through this block's own memory `staged`, which nobody else uses any more, by TMA. What stays in
  /// this block goes to its place at once: `barrier` counts the others' bytes only, and named_barrier orders these.
  template <class T>
  __device__ __forceinline__ static void send_staged(float* sums, uint32_t barrier, float* staged,
                                                     const WgmmaTileCoord<T, P>& coord,
                                                     const float (&acc)[P.tokens / 2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int unit = warp * 2 + h;
      float* const to = (unit / kUnits == coord.part ? sums : staged) + unit * kPairs * 64 +
                        lane * kVec;  // unit / kUnits: whose it is
#pragma unroll
      for (int q = 0; q < kPieces; ++q) {
        float v[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) v[i] = acc[4 * (q * kVec / 2 + i / 2) + 2 * h + i % 2];
        store<kVec>(to + q * 32 * kVec, v);
      }
    }
    ptx::tensor_fence();        // ordinary stores, for TMA
    if constexpr (P.apart()) {  // each warp its two units, to one block or to two
      __syncwarp();
      constexpr int kTogether = kUnits > 1 ? 2 : 1;
      if (lane < 2 / kTogether) {
        const int unit = warp * 2 + lane, to = unit / kUnits,
                  rank = to * (P.multicast_x * P.multicast_w) + coord.of_w * P.multicast_x + coord.of_x;
        if (to != coord.part)
          ptx::remote_copy(ptx::shared_address(sums + coord.part * kPartFloats + unit % kUnits * kPairs * 64),
                           ptx::shared_address(staged + unit * kPairs * 64), 4 * kTogether * kPairs * 64, barrier,
                           rank);
      }
      return ptx::named_barrier<2 * P.rows>(1);
    }
    ptx::named_barrier<2 * P.rows>(1);
    const int part = static_cast<int>(threadIdx.x);
    if (part < P.parts() && part != coord.part) {
      const int rank = part * (P.multicast_x * P.multicast_w) + coord.of_w * P.multicast_x + coord.of_x;
      ptx::remote_copy(ptx::shared_address(sums + coord.part * kPartFloats),
                       ptx::shared_address(staged + part * kPartFloats), 4 * kPartFloats, barrier, rank);
    }
  }
  /// Item i of this block's rows: its parts added in order.
  __device__ __forceinline__ static void sum(const float* sums, int i, float (&y)[kVec]) {
    constexpr int kPair =
        P.splits_per_block == 1 && P.split > 1 ? 2 : 1;  // in pairs, as blocks that add two parts themselves do
#pragma unroll
    for (int p = 0; p < P.parts(); p += kPair) {
      float more[kVec];
      load<kVec>(sums + p * kPartFloats + i * kVec, more);
      if constexpr (kPair > 1) {
        float second[kVec];
        load<kVec>(sums + (p + 1) * kPartFloats + i * kVec, second);
#pragma unroll
        for (int j = 0; j < kVec; ++j) more[j] += second[j];
      }
#pragma unroll
      for (int j = 0; j < kVec; ++j) y[j] = p == 0 ? more[j] : y[j] + more[j];
    }
  }
  /// Adds the parts in order and turns them into [token][row of the slice].
  __device__ __forceinline__ static void add(const float* sums, float* turn) {
#pragma unroll 1
    for (int i = threadIdx.x; i < kItems; i += 2 * P.rows) {
      const int lane = i % 32, piece = i / 32 % kPieces, unit = i / 32 / kPieces;
      float y[kVec];
      sum(sums, i, y);
      float* to = turn + (piece * kVec / 2 * 8 + lane % 4 * 2) * P.transpose_stride() + unit * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < kVec; ++j) to[(j / 2 * 8 + j % 2) * P.transpose_stride()] = y[j];
    }
  }
};

}  // namespace vivace::kernels
