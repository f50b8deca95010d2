// The sums of an RMS norm that is taken behind a product, in the one order that all kernels have.
#pragma once
#include "vivace/kernels/norm/rms_rows.h"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Squares of two columns. A sum of 16 columns is that of two eights, each ((0, 1) + (2, 3)) + ((4, 5) + (6, 7)).
__device__ __forceinline__ float rms_pair(float first, float second) { return __fmaf_rn(second, second, __fmul_rn(first, first)); }

/// One half of a row's sums: every second four of them, from `half` on, in order.
__device__ __forceinline__ float rms_half(const RmsSquares& s, int64_t t, int half) {
  constexpr int kAhead = 8;  // fours on their way together
  const float* const row = s.sums + t * s.stride;
  const bool wide = s.count % 4 == 0 && s.stride % 4 == 0 && reinterpret_cast<uint64_t>(s.sums) % 16 == 0;
  float sum = 0.0f;
  for (int first = half * 4; first < s.count; first += kAhead * 8) {
    float v[kAhead][4];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * 8;
      if (wide) {
        load<4>(row + min(at, s.count - 4), v[i]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[i][j] = at + j < s.count ? row[at + j] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + i * 8 < s.count) sum = __fadd_rn(sum, __fadd_rn(__fadd_rn(v[i][0], v[i][1]), __fadd_rn(v[i][2], v[i][3])));
  }
  return sum;
}

/// Factor of a row from both halves.
__device__ __forceinline__ float rms_factor(const RmsSquares& s, float even, float odd) { return rsqrtf(__fmaf_rn(__fadd_rn(even, odd), __frcp_rn(static_cast<float>(s.H)), s.eps)); }

}  // namespace vivace::kernels
