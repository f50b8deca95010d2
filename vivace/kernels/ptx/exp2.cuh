// The chip's own powers of two.
#pragma once

namespace vivace::kernels::ptx {

/// 2^x within 2 units in the last place; 0 for -inf, NaN for NaN.
__device__ __forceinline__ float exp2_fast(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

}  // namespace vivace::kernels::ptx
