// Cache hints.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

/// Asks L2 to fetch the line of a global address. Reads nothing into the program, so it is allowed
/// before the dependency wait whoever writes the line: L2 is where writes of all SMs meet.
__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/// Stores 16 bytes that the multiprocessor need not keep.
template <class V>
__device__ __forceinline__ void store_past_l1(V* p, const V& v) {
  static_assert(sizeof(V) == 16);
  const uint32_t* w = reinterpret_cast<const uint32_t*>(&v);
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}

}  // namespace vivace::kernels::ptx
