// 16 bytes between registers and memory as one access, where the source has it: compilers move a load behind the branch
// of its store, and take a value that passes through an array to pieces.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

/// From a shared address.
__device__ __forceinline__ void load_words(uint32_t from, uint32_t (&v)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}
/// To global memory.
__device__ __forceinline__ void store_words(void* to, const uint32_t (&v)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

}  // namespace vivace::kernels::ptx
