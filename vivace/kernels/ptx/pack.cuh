// Two f32 rounded into one register of 16-bit elements.
#pragma once
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels::ptx {

/// `low` in the lower half; T is bf16 or f16.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack<bf16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <>
__device__ __forceinline__ uint32_t pack<f16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

/// Two e4m3, saturated (sm_89 on).
__device__ __forceinline__ uint32_t pack_e4m3(float low, float high) {
  uint16_t r = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
#endif
  return r;
}

}  // namespace vivace::kernels::ptx
