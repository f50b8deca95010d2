// Online softmax of warpgroup kernels: scores as wgmma leaves them (16- or 8-bit operands) to probabilities. A lane
// holds two rows: s[n][0, 1] are of the first, s[n][2, 3] of the second, positions 8 n + 2 (lane % 4) and the next.
#pragma once
#include "vivace/kernels/attention/epilogue.cuh"
#include "vivace/kernels/attention/mask.cuh"
#include "vivace/kernels/ptx/pack.cuh"

namespace vivace::kernels {

/// The largest products so far, what they make the base of a row's powers of two, and by what its sums must shrink.
template <int kTiles>
__device__ __forceinline__ void softmax_bases(const float (&factor)[2], const float (&s)[kTiles][4],
                                              float (&row_max)[2], float (&base)[2], float (&by)[2]) {
  // Four chains of maxima, so that none waits for its own last step.
  float m[4] = {row_max[0], row_max[0], row_max[1], row_max[1]};
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) m[e] = fmaxf(m[e], s[n][e]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float largest = fmaxf(m[2 * i], m[2 * i + 1]);
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    base[i] = softmax_base(largest) * factor[i];
    by[i] = ptx::exp2_fast(row_max[i] * factor[i] - base[i]);
    row_max[i] = largest;
  }
}

/// Products into probabilities, 2^kProbExponent times what they are. `factor`, above 0, takes a row's products to
/// powers of two; `row_max` counts in products. row_sum: this lane's share; by: what the sums so far must shrink by.
template <int kProbExponent, int kTiles>
__device__ __forceinline__ void online_softmax(const float (&factor)[2], float (&s)[kTiles][4], float (&row_max)[2],
                                               float (&row_sum)[2], float (&by)[2]) {
  float base[2], sum[4] = {};
  softmax_bases(factor, s, row_max, base, by);
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[n][e] = ptx::exp2_fast(__fmaf_rn(s[n][e], factor[e / 2], kProbExponent - base[e / 2]));
      sum[e] += s[n][e];
    }
#pragma unroll
  for (int i = 0; i < 2; ++i) row_sum[i] = row_sum[i] * by[i] + (sum[2 * i] + sum[2 * i + 1]);
}

/// Keeps the making of probabilities before what follows: the assembler would move it behind a wait for other products,
/// so that nothing would run beside them. It moves nothing over a branch that every weight decides; no wgmma stands
/// inside, whichever way a lane goes.
__device__ __forceinline__ void probabilities_first(const float (&row_sum)[2]) {
  if (!(row_sum[0] >= 0 && row_sum[1] >= 0)) asm volatile("nanosleep.u32 0;");
}

/// A lane's i-th row, times `factor`, from column 0 at `row`, four columns a store: lanes of a pair exchange, so that
/// one has four columns of a tile of eight and the other of the next. mine: whether the row is to be written, the same
/// in the four lanes that share it.
template <int kColumns, class Q, class Out, int kTiles>
__device__ __forceinline__ void write_pairs(const AttentionEpilogue<Q, Out>& epilogue, Out* row, bool mine, int lane,
                                            int i, float factor, const float (&sums)[kTiles][4]) {
  const bool odd = lane % 2 != 0;
  row += (odd ? 8 : 0) + lane % 4 / 2 * 4;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    const uint32_t x = ptx::pack<Q>(sums[n][2 * i] * factor, sums[n][2 * i + 1] * factor),
                   y = ptx::pack<Q>(sums[n + 1][2 * i] * factor, sums[n + 1][2 * i + 1] * factor);
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? x : y, 1);
    if (mine && (n + 2 <= kColumns / 8 || n * 8 + (odd ? 8 : 0) < kColumns))
      epilogue.store_words(row + n * 8, odd ? got : x, odd ? y : got);
  }
}

}  // namespace vivace::kernels
