// The sums of an RMS norm that is taken behind a product, in the one order that all kernels have.
#pragma once
#include "vivace/kernels/norm/rms_rows.h"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Squares of two columns. A sum of eight is ((0, 1) + (2, 3)) + ((4, 5) + (6, 7)).
__device__ __forceinline__ float rms_pair(float first, float second) {
  return __fmaf_rn(second, second, __fmul_rn(first, first));
}

/// The sum of row t's sums by kThreads threads, a power of two up to 16, side by side in a warp that is all here: each
/// gets it. Its order is one of 16 lanes: lane l adds the eights of sums l, l + 16, ... in turn, then lanes meet that
/// are 8, 4, 2 and 1 apart. `valid`: of the row.
template <int kThreads>
__device__ __forceinline__ float rms_sum(const RmsSquares& s, int64_t t, int thread, bool valid) {
  constexpr int kLanes = 16 / kThreads, kGroup = kLanes < 4 ? kLanes : 4,
                kRounds = 4 / kGroup;  // four eights of sums on their way together
  const float* const row = s.sums + t * s.stride;
  const auto four = [](const float (&v)[4]) { return __fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3])); };
  float lane[kLanes] = {};
  if (valid && s.count % 4 == 0 && s.stride % 4 == 0 && reinterpret_cast<uint64_t>(s.sums) % 16 == 0) {
    for (int first = thread * 8; first < s.count; first += 128 * kRounds) {
#pragma unroll
      for (int g = 0; g < kLanes; g += kGroup) {
        float v[kRounds][kGroup][2][4] = {};
#pragma unroll
        for (int r = 0; r < kRounds; ++r)
#pragma unroll
          for (int i = 0; i < kGroup; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h)
              if (const int at = first + (r * 16 + (g + i) * kThreads) * 8 + h * 4; at < s.count)
                load<4>(row + at, v[r][i][h]);
#pragma unroll
        for (int r = 0; r < kRounds; ++r)
#pragma unroll
          for (int i = 0; i < kGroup; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) lane[g + i] = __fadd_rn(lane[g + i], four(v[r][i][h]));
      }
    }
  } else if (valid) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i)
#pragma unroll 1
      for (int at = (thread + i * kThreads) * 8; at < s.count; at += at % 8 == 0 ? 4 : 124) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = at + j < s.count ? row[at + j] : 0.0f;
        lane[i] = __fadd_rn(lane[i], four(v));
      }
  }
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2)
#pragma unroll
    for (int j = 0; j < d; ++j) lane[j] = __fadd_rn(lane[j], lane[j + d]);
#pragma unroll
  for (int d = kThreads / 2; d > 0; d /= 2) lane[0] = __fadd_rn(lane[0], __shfl_xor_sync(0xffffffffu, lane[0], d));
  return lane[0];
}

/// Factor of a row.
__device__ __forceinline__ float rms_factor(const RmsSquares& s, float sum) {
  return rsqrtf(__fmaf_rn(sum, __frcp_rn(static_cast<float>(s.H)), s.eps));
}

}  // namespace vivace::kernels
