// Which positions of a block a row sees, as kernels of the tensor cores ask: s[n][0, 1] are scores of a lane's first
// row (lane / 4), s[n][2, 3] of its second (lane / 4 + 8), positions 8 n + 2 (lane % 4) and the next.
#pragma once
#include "vivace/kernels/attention/softmax.cuh"

namespace vivace::kernels {

/// The positions that every row of a warp sees: blocks between need no mask.
struct SeenByAll {
  int from = 0, to = 0x7fffffff;

  __device__ __forceinline__ void row(int first, int end) { from = max(from, first), to = min(to, end); }
  /// What the warp's lanes have found, each its rows.
  __device__ __forceinline__ void agree() {
    from = __reduce_max_sync(0xffffffffu, from), to = __reduce_min_sync(0xffffffffu, to);
  }
  __device__ __forceinline__ bool operator()(int key0, int past) const { return key0 >= from && past <= to; }
};

/// Products of positions that their row does not see become -inf. key0: the block's first position.
template <int kTiles>
__device__ __forceinline__ void mask_scores(int key0, int lane, const int (&first)[2], const int (&end)[2],
                                            float (&s)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int j = key0 + n * 8 + lane % 4 * 2 + e % 2;
      if (j < first[e / 2] || j >= end[e / 2]) s[n][e] = kMinusInfinity;
    }
}

/// Products of row i (0, 1) times `factor`, -inf where it does not see the position; the largest of these and of
/// `largest`, the same in the row's four lanes. key0: the block's first position. References: what lies in a kernel's
/// state is read where it is used.
template <int kTiles>
__device__ __forceinline__ float mask_row(int i, int key0, int lane, const int& first, const int& end,
                                          const float& factor, float largest, float (&s)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int j = key0 + n * 8 + lane % 4 * 2 + e;
      float& x = s[n][2 * i + e];
      x = j >= first && j < end ? x * factor : kMinusInfinity;
      largest = fmaxf(largest, x);
    }
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  return fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
}

}  // namespace vivace::kernels
