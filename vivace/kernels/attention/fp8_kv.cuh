// Queries that meet e4m3 keys: products in f16, in which every e4m3 is exact.
#pragma once
#include "vivace/kernels/ptx/mma.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

inline constexpr float kFp8ProbScale = 16384;  // probabilities times this, so that small ones keep their bits in f16

/// `count` rows of kDim queries in shared memory, `pitch` elements apart, become f16 in place, each divided by a power
/// of two that takes its largest element to 2^14 .. 2^15; by[r] is what row r was divided by. By `warps` warps, this
/// one `warp`; a barrier of theirs before and after.
template <class Q, int kDim>
__device__ __forceinline__ void scale_query_rows(Q* rows, int pitch, int count, int warp, int warps, int lane,
                                                 float* by) {
  for (int r = warp; r < count; r += warps) {
    Q* const row = rows + r * pitch;
    float most = 0;
    for (int at = lane * 4; at < kDim; at += 128) {
      float x[4];
      load<4>(row + at, x);
      most = fmaxf(fmaxf(most, fmaxf(fabsf(x[0]), fabsf(x[1]))), fmaxf(fabsf(x[2]), fabsf(x[3])));
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    const int exponent = max(static_cast<int>(__float_as_uint(most) >> 23), 30);
    const float factor = __uint_as_float(static_cast<uint32_t>(127 + 14 + 127 - exponent) << 23);
    for (int at = lane * 4; at < kDim; at += 128) {
      float x[4];
      load<4>(row + at, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] *= factor;
      store<4>(reinterpret_cast<f16*>(row) + at, x);
    }
    if (lane == 0) by[r] = __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23);
  }
}

template <bool kFirst, class A, class B>
struct OneOf {
  using Type = A;
};
template <class A, class B>
struct OneOf<false, A, B> {
  using Type = B;
};

}  // namespace vivace::kernels
