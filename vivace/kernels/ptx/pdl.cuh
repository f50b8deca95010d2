// Programmatic dependent launch: a kernel may start while its predecessor in the stream still runs.
#pragma once

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
/// for this grid to end. Before dependency_wait() it lets the one after that start as well, and so on: short
/// kernels that stand between products do so (docs/design/040-llm-step.md).
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace vivace::kernels::ptx
