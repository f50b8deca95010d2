// Warp-wide matrix products with f32 sums (sm_80 on).
#pragma once
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels::ptx {

/// d += A times B of 32 bytes of K: as below for 16-bit elements; of f32, which the units cut to 10 bits of mantissa, A
/// is 16 x 8 and B 8 x 8, an element a register: a0, a1, b0 at k = c, the others at k = c + 4.
template <class T>
__device__ __forceinline__ void mma_words(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                          uint32_t b0, uint32_t b1);

/// d += A (16 x 16) times B (16 x 8), two 16-bit elements a register, the lower index in the low half.
/// Lane i, g = i / 4, c = i % 4:
///   a0 row g, a1 row g + 8 at k = 2c, 2c + 1; a2, a3 the same rows at k + 8
///   b0 column g at k = 2c, 2c + 1; b1 at k + 8
///   d0, d1 row g, columns 2c, 2c + 1; d2, d3 row g + 8
/// Any permutation of k that A and B share gives the same product.
template <class T>
__device__ __forceinline__ void mma16816(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1);

template <>
__device__ __forceinline__ void mma16816<bf16>(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma16816<f16>(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                              uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <class T>
__device__ __forceinline__ void mma_words(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                          uint32_t b0, uint32_t b1) {
  mma16816<T>(d, a0, a1, a2, a3, b0, b1);
}
template <>
__device__ __forceinline__ void mma_words<float>(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                 uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Four e4m3 as two pairs of f16, exactly.
__device__ __forceinline__ void upcast_e4m3(uint32_t four, uint32_t& low, uint32_t& high) {
#if __CUDA_ARCH__ >= 890
  asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, l;\n\tcvt.rn.f16x2.e4m3x2 %1, h;\n\t}"
      : "=r"(low), "=r"(high)
      : "r"(four));
#else
  // Seven magnitude bits moved to f16's places are the value times 2^-8: one exact product restores it,
  // subnormals included. 0x7f, NaN, becomes an f16 NaN by hand.
  const uint32_t pair[2] = {(four & 0xffu) | (four & 0xff00u) << 8, (four >> 16 & 0xffu) | (four >> 24) << 16};
  uint32_t out[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t magnitude = pair[i] & 0x007f007fu, sign = (pair[i] & 0x00800080u) << 8;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out[i]) : "r"(magnitude << 7), "r"(0x5c005c00u));  // 256, 256
    if ((magnitude & 0xffffu) == 0x7fu) out[i] = (out[i] & 0xffff0000u) | 0x7fffu;
    if (magnitude >> 16 == 0x7fu) out[i] = (out[i] & 0xffffu) | 0x7fff0000u;
    out[i] |= sign;
  }
  low = out[0];
  high = out[1];
#endif
}

}  // namespace vivace::kernels::ptx
