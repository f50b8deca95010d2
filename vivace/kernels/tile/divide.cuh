// Many divisions by one divisor: correctly rounded, without the general division's slow path.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

/// x / s of N values. For s in [2^-60, 2^60] by the reciprocal and one correction: rounded correctly but where the
/// quotient lies within 2^-22 of a unit of the middle between two f32 (and is not subnormal: such quotients
/// vanish in every 8-bit format). Other s divide as usual.
struct Divider {  // intrinsics in the body: nvcc's host pass reads member initialisers
  float s, r;
  bool quick;

  __device__ __forceinline__ explicit Divider(float divisor)
      : s(divisor), quick(divisor >= 0x1p-60f && divisor <= 0x1p60f) {
    r = __frcp_rn(divisor);
  }
  /// kFinite: the caller knows that no quotient is infinite.
  template <bool kFinite, int N>
  __device__ __forceinline__ void divide(float (&x)[N]) const {
    if (quick) {
#pragma unroll
      for (float& v : x) {
        const float rough = v * r, better = fmaf(fmaf(-s, rough, v), r, rough);
        v = kFinite || fabsf(rough) <= 3.402823466e38f ? better : rough;  // infinity and NaN stay
      }
    } else {
#pragma unroll
      for (float& v : x) v /= s;
    }
  }
};

/// x / s, and with kTimes x * factor / s, within a unit in the last place, by products: for quotients that are about to
/// be rounded to 8 bits or fewer. Where 1 / s is no normal number a power of two, `up`, goes before it; where factor /
/// s is not finite, x is multiplied by one after the other.
template <bool kTimes = false>
struct RoughDivider {
  float up, factor, r, each;
  bool quick;

  __device__ __forceinline__ explicit RoughDivider(float s, float times = 1.0f)
      : up(fabsf(s) < 0x1p-120f  ? 0x1p64f
           : fabsf(s) > 0x1p120f ? 0x1p-64f
                                 : 1.0f),
        factor(times) {
    r = __frcp_rn(__fmul_rn(s, up));
    each = kTimes ? __fmul_rn(factor, r) : r;
    quick = up == 1.0f && (!kTimes || each <= 3.402823466e38f);
  }
  /// The same bits without a branch: a product more a value, less code.
  template <int N>
  __device__ __forceinline__ void divide_flat(float (&x)[N]) const {
    static_assert(!kTimes);
#pragma unroll
    for (float& v : x) v = __fmul_rn(__fmul_rn(v, up), r);
  }
  template <int N>
  __device__ __forceinline__ void divide(float (&x)[N]) const {
    if (quick) {
#pragma unroll
      for (float& v : x) v = __fmul_rn(v, each);
    } else {
#pragma unroll
      for (float& v : x) {
        v = __fmul_rn(v, up);  // tiny where s is, while factor may be as large as 1e22
        if constexpr (kTimes) v = __fmul_rn(v, factor);
        v = __fmul_rn(v, r);
      }
    }
  }
};

}  // namespace vivace::kernels
