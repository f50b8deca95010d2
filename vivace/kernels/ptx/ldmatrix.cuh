// Matrix fragments from shared memory (sm_75 on) and to it.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

/// Four 8 x 8 matrices of 16-bit words: lane i gives the address of row i % 8 of matrix i / 8 (16 bytes,
/// aligned); register j of lane i then holds words 2 (i % 4) and + 1 of row i / 4 of matrix j.
__device__ __forceinline__ void load_matrix4(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// The same, transposed: a lane gets rows 2c, 2c + 1 of column g (g = lane / 4, c = lane % 4).
__device__ __forceinline__ void load_matrix4_transposed(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// The way back, transposed (Hopper on): register j of a lane holds column g of rows 2c, 2c + 1 of matrix j.
__device__ __forceinline__ void store_matrix4_transposed(uint32_t address, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

/// The same with two matrices: lanes 0 to 15 give addresses.
__device__ __forceinline__ void store_matrix2_transposed(uint32_t address, const uint32_t (&r)[2]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r[0]), "r"(r[1])
               : "memory");
#endif
}

/// An 8 x 8 matrix of 16-bit words in a warp, transposed: a lane gives words 2c, 2c + 1 of row g and gets those of
/// column g.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t word) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(word));
  return r;
}

}  // namespace vivace::kernels::ptx
