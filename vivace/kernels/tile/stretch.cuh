// A thread's place in [T, H] under a StretchPolicy. Grid: T * ceil(H / stretch) blocks.
#pragma once
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/stretch.h"

namespace vivace::kernels {

template <StretchPolicy P>
struct StretchPlace {
  static constexpr int kStep = P.threads * P.vec;
  int64_t t;       // row
  int first, H;    // first column of this thread; columns of the row

  __device__ __forceinline__ explicit StretchPlace(int width) : H(width) {
    const uint32_t stretches = (static_cast<uint32_t>(H) + kStep * P.items - 1) / (kStep * P.items);
    t = stretches == 1 ? blockIdx.x : blockIdx.x / stretches;
    first = static_cast<int>(blockIdx.x - static_cast<uint32_t>(t) * stretches) * kStep * P.items +
            static_cast<int>(threadIdx.x) * P.vec;
  }
  /// f(k, col) for each access of this thread, those behind the row's end at its last columns once more: for loads,
  /// which a branch before them would keep from travelling together.
  template <class F>
  __device__ __forceinline__ void each_clamped(F&& f) const {
#pragma unroll
    for (int k = 0; k < P.items; ++k) f(k, min(first + k * kStep, H - P.vec));
  }
  /// f(k, col) for each access of this thread within the row.
  template <class F>
  __device__ __forceinline__ void each(F&& f) const {
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < H) f(k, first + k * kStep);
  }
};

}  // namespace vivace::kernels
