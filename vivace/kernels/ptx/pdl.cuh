// Programmatic dependent launch: a kernel may start while its predecessor in the stream still runs.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

/// Waits until every kernel this one depends on has finished and its writes are visible. Every thread
/// block executes this before it reads anything that a kernel may have written and before its first
/// global write; before it only immutable weights and arguments are read. Nothing on chips before Hopper.
__device__ __forceinline__ void dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the dependent kernel start now. Says nothing about memory: its dependency_wait() still waits
/// for this grid to end.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Brings a kernel's parameters into the constant cache, which is cold in every launch: before dependency_wait(),
/// so that their first use after it does not wait for memory.
template <class Args>
__device__ __forceinline__ void touch_parameters(const Args& args) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(&args);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Args) / 4); i += 16) asm volatile("" ::"r"(words[i]));
  asm volatile("" ::"r"(words[sizeof(Args) / 4 - 1]));
}

}  // namespace vivace::kernels::ptx
