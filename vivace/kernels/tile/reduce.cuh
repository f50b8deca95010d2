// Sums and maxima over a warp and a thread block, in a fixed order: the same bits every time.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

struct Sum {
  static constexpr float kIdentity = 0.0f;
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  // fmaxf drops NaN: callers that must see it test for it themselves.
  static constexpr float kIdentity = -3.402823466e38f;
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// The result is in every lane.
template <class Op>
__device__ __forceinline__ float warp_reduce(float v, Op op) {
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) v = op(v, __shfl_xor_sync(0xffffffffu, v, lane));
  return v;
}

/// The sums of a block's warps joined, a power of two of them: changes `part`.
template <int N, class Op>
__device__ __forceinline__ float reduce_parts(float (&part)[N], Op op) {
  static_assert((N & (N - 1)) == 0);
#pragma unroll
  for (int d = N / 2; d > 0; d >>= 1)
#pragma unroll
    for (int w = 0; w < d; ++w) part[w] = op(part[w], part[w + d]);
  return part[0];
}

/// A sum, as block_reduce() makes it, and a maximum with one barrier; both in every thread. `scratch` is as there
/// without kFree.
template <int kThreads>
__device__ __forceinline__ void block_sum_and_max(float& sum, float& most, float2 (&scratch)[kThreads / 32]) {
  constexpr int kWarps = kThreads / 32;
  static_assert(kWarps <= 8);
  sum = warp_reduce(sum, Sum());
  most = warp_reduce(most, Max());
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = {sum, most};
  __syncthreads();
  float part[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) part[w] = scratch[w].x, most = fmaxf(most, scratch[w].y);
  sum = reduce_parts(part, Sum());
}

/// The result is in every thread. `scratch` holds kThreads / 32 floats. It is free again at return if
/// kFree, which costs a barrier; else after the caller's next one.
template <int kThreads, bool kFree = true, class Op>
__device__ __forceinline__ float block_reduce(float v, float* scratch, Op op) {
  v = warp_reduce(v, op);
  if constexpr (kThreads == 32) return v;
  constexpr int kWarps = kThreads / 32;
  static_assert((kWarps & (kWarps - 1)) == 0);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  // Every warp reduces the partials for itself: one barrier fewer than a broadcast. Few of them are read
  // by every thread, which is quicker than shuffles; the order is the same.
  if constexpr (kWarps <= 8) {
    float part[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) part[w] = scratch[w];
    v = reduce_parts(part, op);
  } else {
    v = threadIdx.x % 32 < kWarps ? scratch[threadIdx.x % 32] : Op::kIdentity;
    v = warp_reduce(v, op);
  }
  if constexpr (kFree) __syncthreads();
  return v;
}

}  // namespace vivace::kernels
