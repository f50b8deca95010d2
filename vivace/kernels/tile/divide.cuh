// Many divisions by one divisor: correctly rounded, without the general division's slow path.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

/// x / s. For s in [2^-60, 2^60] two corrected steps from the reciprocal round correctly wherever the
/// quotient is not subnormal (smaller quotients vanish in every 8-bit format); other s divide as usual.
struct Divider {  // intrinsics in the body: nvcc's host pass reads member initialisers
  float s, r;
  bool quick;

  __device__ __forceinline__ explicit Divider(float divisor) : s(divisor), quick(divisor >= 0x1p-60f && divisor <= 0x1p60f) { r = __frcp_rn(divisor); }
  __device__ __forceinline__ float operator()(float x) const {
    if (!quick) return x / s;
    const float rough = x * r;
    float q = fmaf(fmaf(-s, rough, x), r, rough);
    q = fmaf(fmaf(-s, q, x), r, q);
    return fabsf(rough) <= 3.402823466e38f ? q : rough;  // infinity and NaN stay
  }
};

/// x / s within a unit in the last place, by a product where 1 / s is a normal number: for quotients that
/// are about to be rounded to 8 bits or fewer.
struct RoughDivider {
  float s, r;
  bool quick;

  __device__ __forceinline__ explicit RoughDivider(float divisor) : s(divisor), quick(divisor >= 0x1p-120f && divisor <= 0x1p120f) { r = __frcp_rn(divisor); }
  template <int N>
  __device__ __forceinline__ void divide(float (&x)[N]) const {
    if (quick) {
#pragma unroll
      for (float& v : x) v *= r;
    } else {
#pragma unroll
      for (float& v : x) v /= s;
    }
  }
};

}  // namespace vivace::kernels
