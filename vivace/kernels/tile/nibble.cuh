// FP4 codes (e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) in registers.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

/// Nearest code, ties to even, saturating at 6; NaN gives +-6. Bits 0..2 magnitude, bit 3 sign.
__device__ __forceinline__ uint32_t nibble_of(float f) {
  const float m = fminf(fabsf(f), 6.0f);
  const uint32_t u = __float_as_uint(m);
  const uint32_t small = __float_as_uint(m + 0x1p22f) - 0x4a800000u;  // the adder rounds to halves
  const uint32_t normal = ((u + 0x1fffffu + ((u >> 22) & 1u)) >> 22) - (126u << 1);
  return (m < 1.0f ? small : normal) | (__float_as_uint(f) >> 28 & 8u);
}

/// The value of a code: its bits in f32's places are the value times 2^-126.
__device__ __forceinline__ float float_of_nibble(uint32_t code) {
  return __uint_as_float((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
}

}  // namespace vivace::kernels
