// Rows of a matrix times one row of activations, out of the ring: columns are cut over the warps in units of 64, so
// that a warp needs the words of its own units alone.
// Chosen when: decode_layers, decode_layers_cross.
#pragma once
#include "vivace/kernels/decode/exchange.cuh"
#include "vivace/kernels/decode/ring.cuh"
#include "vivace/kernels/gemm/upcast.cuh"
#include "vivace/kernels/ptx/barrier.cuh"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/mma.cuh"
#include "vivace/kernels/ptx/pack.cuh"

namespace vivace::kernels::decode {

__device__ __forceinline__ float low_of(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_of(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

/// Two pairs of bf16 at element `at` (a multiple of four) of a row that is the left side of a tile: of eight elements
/// the pairs 0, 2, 1, 3 lie in turn, so that a lane reads with one load what row lane / 4 multiplies by pairs 0 and 1
/// and what row lane / 4 + 8 multiplies by pairs 2 and 3. So one row fills both halves of the tile.
__device__ __forceinline__ void write_left(uint32_t row, int at, uint32_t first, uint32_t second) {
  const uint32_t to = row + at / 8 * 16 + at / 4 % 2 * 4;
  write_shared(to, first);
  write_shared(to + 8, second);
}
/// c[0][0..1] and c[1][2..3] are the two halves of the sums of row lane / 4 and columns lane % 4 * 2, + 1.
__device__ __forceinline__ void multiply_piece(float (&c)[2][4], uint4 left, uint4 right) {
  ptx::mma16816<bf16>(c[0], left.x, left.y, left.z, left.w, right.x, right.y);
  ptx::mma16816<bf16>(c[1], left.x, left.y, left.z, left.w, right.z, right.w);
}

/// A lane's 16 columns of a unit of 64, as a stage holds them: of bf16 the eights lane % 4 and lane % 4 + 4, of e4m3
/// the eights that follow each other at lane % 4 * 2.
template <auto P>
struct LaneWeights {
  static constexpr bool kCodes = P.bytes == 1;
  static constexpr int kUnit = 64 * P.bytes;                          // bytes of a unit in a stage
  static constexpr int kLeft = kCodes ? 32 : 16, kSecond = kCodes ? 16 : 64;  // of the row that is multiplied, in bytes
  uint4 first, second;

  __device__ __forceinline__ static LaneWeights read(uint32_t at) {
    const uint4 v = read_shared(at);
    if constexpr (!kCodes) return {v, read_shared(at + 64)};
    LaneWeights w;
    upcast_e4m3_as<bf16>(v.x, w.first.x, w.first.y), upcast_e4m3_as<bf16>(v.y, w.first.z, w.first.w);
    upcast_e4m3_as<bf16>(v.z, w.second.x, w.second.y), upcast_e4m3_as<bf16>(v.w, w.second.z, w.second.w);
    return w;
  }
};

/// Rows of `n` that a block has: the first blocks have one more.
struct BlockRows {
  int first, count;
  __device__ __forceinline__ BlockRows(int n, int blocks) {
    const int me = static_cast<int>(blockIdx.x), each = n / blocks, more = n % blocks;
    first = me * each + min(me, more);
    count = each + (me < more);
  }
};

/// The words of a row of kK that a warp polls: units warp, warp + 8, ... of 64; half a warp a unit, four words a lane.
template <int kK>
struct Units {
  static constexpr int kWarps = DecodeLayersPolicy::kWarps, kCount = kK / 64;
  static constexpr int kLoads = ((kCount + kWarps - 1) / kWarps + 1) / 2;
  __device__ static __forceinline__ int unit(int j) {
    return static_cast<int>(threadIdx.x / 32 + kWarps * (2 * j + threadIdx.x % 32 / 16));
  }
  __device__ static __forceinline__ int at(int j) { return unit(j) * 64 + static_cast<int>(threadIdx.x % 16 * 4); }
  __device__ static __forceinline__ bool mine(int j) { return unit(j) < kCount; }
};

/// How a product with kK columns and at most kRowsOfBlock rows a block is taken.
template <auto P, int kK, int kRowsOfBlock>
struct Cut {
  static constexpr int kWarps = P.kWarps;
  static constexpr int kColumns = P.cut(kK), kPieces = (kK + kColumns - 1) / kColumns;  // stages of a tile of 8 rows
  static constexpr int kLast = kK - (kPieces - 1) * kColumns;                           // columns of the last of them
  static constexpr int kAhead = kColumns / 64 / kWarps;  // units of a stage that every warp has
  static constexpr int kTiles = (kRowsOfBlock + 7) / 8;
  /// Stages that a warp multiplies at once; where a row's words take many registers, fewer.
  static constexpr int kStages = kPieces > 1       ? (kPieces % 3 == 0 && Units<kK>::kLoads <= 6 ? 3 : 2)
                                 : kTiles == 1     ? 1
                                 : kTiles % 3 == 0 ? 3
                                                   : 2;
  static_assert(kK % 64 == 0 && (kPieces == 1 || kColumns % (64 * kWarps) == 0));
};

/// Rows [0, rows) of the block's part of a product times the row in `x`, as this warp's sums: sums[row]. What the ring
/// holds of the first stages is in registers before `take()` waits for the row.
template <auto P, class C, class Take>
__device__ __forceinline__ void multiply(Ring<P>& ring, uint32_t x, float* sums, int rows, Take take) {
  constexpr int kStages = C::kStages, kPieces = C::kPieces, kAhead = C::kAhead, kWarps = P.kWarps;
  constexpr int kHeld = kAhead > 0 ? kAhead : 1;
  constexpr int kMore = kPieces == 1 ? C::kColumns / 64 % kWarps : 0;  // warps that have one unit more
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  using W = LaneWeights<P>;
  const uint32_t right = lane / 4 * P.stage_row() + lane % 4 * 16 + warp * W::kUnit;
  const uint32_t left = x + lane % 4 * W::kLeft + warp * 128;
  const int all = (rows + 7) / 8 * kPieces;
  const auto piece_of = [](int first, int s) {
    return kPieces == 1 ? 0 : kStages % kPieces == 0 ? s % kPieces : (first + s) % kPieces;
  };
  int piece = 0;  // of the first stage
  float2 total = make_float2(0, 0);
#pragma unroll 1
  for (int stage = 0; stage < all; stage += kStages) {
    const int count = min(all - stage, kStages);
#pragma unroll
    for (int s = 0; s < kStages; ++s)
      if (s < count) ring.wait(s);
    uint32_t at[kStages], row[kStages];
    W w[kStages][kHeld];
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      at[s] = ring.bytes_at(s) + right, row[s] = left + piece_of(piece, s) * C::kColumns * 2;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) w[s][i] = W::read(at[s] + i * kWarps * W::kUnit);
    }
    if (stage == 0) take();
    float c[kStages][2][4] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      uint4 v[kStages][2];
#pragma unroll
      for (int s = 0; s < kStages; ++s)
        v[s][0] = read_shared(row[s] + i * kWarps * 128),
        v[s][1] = read_shared(row[s] + i * kWarps * 128 + W::kSecond);
#pragma unroll
      for (int s = 0; s < kStages; ++s) {
        const bool there = C::kLast == C::kColumns || piece_of(piece, s) < kPieces - 1 ||
                           warp + i * kWarps < C::kLast / 64;  // the last piece may have fewer units
        if (s < count && there)
          multiply_piece(c[s], v[s][0], w[s][i].first), multiply_piece(c[s], v[s][1], w[s][i].second);
      }
    }
    if (kMore > 0 && warp < kMore)
#pragma unroll
      for (int s = 0; s < kStages; ++s)
        if (s < count) {
          const W more = W::read(at[s] + kAhead * kWarps * W::kUnit);
          multiply_piece(c[s], read_shared(row[s] + kAhead * kWarps * 128), more.first);
          multiply_piece(c[s], read_shared(row[s] + kAhead * kWarps * 128 + W::kSecond), more.second);
        }
    ring.release(count);
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      total.x += c[s][0][0] + c[s][1][2], total.y += c[s][0][1] + c[s][1][3];
      if (piece_of(piece, s) == kPieces - 1) {
        if (lane < 4 && s < count) *reinterpret_cast<float2*>(sums + lane * 2) = total;
        sums += 8, total = make_float2(0, 0);
      }
    }
    if (kStages % kPieces) piece = (piece + kStages) % kPieces;
  }
}

/// The producer's side of multiply().
template <auto P, int kK>
__device__ __forceinline__ void bring(Ring<P>& ring, const void* matrix, int first, int rows, uint64_t policy) {
  constexpr int kColumns = P.cut(kK);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto* const w = static_cast<const unsigned char*>(matrix) + static_cast<int64_t>(first) * kK * P.bytes;
#pragma unroll 1
  for (int row = 0; row < rows; row += 8)
#pragma unroll 1
    for (int column = 0; column < kK; column += kColumns) {
      const int count = min(8, rows - row), bytes = min(kColumns, kK - column) * P.bytes;
      ring.claim();
      ring.expect(count * bytes);
      if (lane < count)
        copy_bulk(ring.bytes_at(0) + lane * P.stage_row(),
                  w + (static_cast<int64_t>(row + lane) * kK + column) * P.bytes, bytes, ring.full(0), policy);
      ring.advance(1);
    }
}

__device__ __forceinline__ float sum_of_lanes(float v) {
#pragma unroll
  for (int m = 16; m; m /= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
  return v;
}
/// Of row `row` of a product.
template <auto P>
__device__ __forceinline__ float sum_of_warps(const float* sums, int row) {
  float v[P.kWarps];
#pragma unroll
  for (int w = 0; w < P.kWarps; ++w) v[w] = sums[w * P.rows() + row];
  return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}
/// The warps that consume.
__device__ __forceinline__ void consumers_meet() {
  ptx::named_barrier<DecodeLayersPolicy::kWarps * 32>(1);
}

}  // namespace vivace::kernels::decode
