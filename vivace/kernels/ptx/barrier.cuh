// Barriers among part of a block's warps.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

/// `kThreads` threads (whole warps) meet at barrier `id`, 1 to 15; 0 is __syncthreads().
template <int kThreads>
__device__ __forceinline__ void named_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

/// The same; whether `x` holds in any of their threads.
template <int kThreads>
__device__ __forceinline__ bool named_barrier_any(int id, bool x) {
  int any;
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.b32 p, %3, 0;\n\tbar.red.or.pred q, %1, %2, p;\n\tselp.b32 %0, 1, 0, q;\n\t}"
      : "=r"(any)
      : "r"(id), "n"(kThreads), "r"(static_cast<int>(x))
      : "memory");
  return any != 0;
}

/// Arrives at barrier `id` for kThreads in all and does not wait.
template <int kThreads>
__device__ __forceinline__ void named_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

/// This warp's number in the block, known to be the same in all its lanes: what follows from it lives in the warp's own
/// registers.
__device__ __forceinline__ int warp_of_block() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}
/// True in one lane of a whole warp (Hopper on).
__device__ __forceinline__ bool elect_lane() {
  uint32_t elected;
  asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(elected));
  return elected != 0;
}

}  // namespace vivace::kernels::ptx
