// Warp-wide products of 8-bit integers with exact 32-bit sums (sm_80 on).
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

/// d = start + A (16 x 32) times B (32 x 8), four signed bytes a register, the lowest index in the low one.
/// Lane i, g = i / 4, c = i % 4: a0 row g, a1 row g + 8 at k = 4c .. 4c + 3; a2, a3 the same rows at k + 16;
/// b0, b1 column g likewise; d0, d1 row g, columns 2c, 2c + 1; d2, d3 row g + 8. d0 and d2 start from s0, d1 and d3
/// from s1.
__device__ __forceinline__ void mma_s8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                       uint32_t b1, int s0, int s1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %10, "
      "%11};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(s0), "r"(s1));
}

/// The same over 16 elements: the first 16 bytes of each row.
__device__ __forceinline__ void mma_s8_half(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0, int s0, int s1) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %7, %8};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a0), "r"(a1), "r"(b0), "r"(s0), "r"(s1));
}

/// a.x b.x + a.y b.y + a.z b.z + a.w b.w + sum of signed bytes.
__device__ __forceinline__ int dot4(uint32_t a, uint32_t b, int sum) {
  asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  return sum;
}

}  // namespace vivace::kernels::ptx
