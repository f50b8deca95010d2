// Words that blocks of a grid hand to each other in device memory.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

/// Seen by all of the chip, whole, in no order with anything else.
__device__ __forceinline__ void store_relaxed(uint64_t* at, uint64_t v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory"); }
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* at) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
  return v;
}

}  // namespace vivace::kernels::ptx
