// Barriers among part of a block's warps.
#pragma once

namespace vivace::kernels::ptx {

/// `kThreads` threads (whole warps) meet at barrier `id`, 1 to 15; 0 is __syncthreads().
template <int kThreads>
__device__ __forceinline__ void named_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

/// Arrives at barrier `id` for kThreads in all and does not wait.
template <int kThreads>
__device__ __forceinline__ void named_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

}  // namespace vivace::kernels::ptx
