// Words between registers and memory as one access, where the source has it: compilers move a load behind the branch
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
/// Two bytes from a shared address, in the lower half; in the order of other volatile instructions.
__device__ __forceinline__ uint32_t load_half_word(uint32_t from) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from));
  return v;
}
/// To global memory.
__device__ __forceinline__ void store_words(void* to, const uint32_t (&v)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

}  // namespace vivace::kernels::ptx
