// Cache hints.
#pragma once

namespace vivace::kernels::ptx {

/// Asks L2 to fetch the line of a global address. Reads nothing into the program, so it is allowed
/// before the dependency wait whoever writes the line: L2 is where writes of all SMs meet.
__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

}  // namespace vivace::kernels::ptx
