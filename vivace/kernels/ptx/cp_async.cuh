// Copies from global to shared memory that bypass registers (sm_80 on), 16 bytes at a time.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

/// Address of a shared variable as the instructions want it.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// L2 policy of data that is read once: it leaves first, so that what others keep stays.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// L2 policies of data that many blocks read soon, and of data that has no special place.
__device__ __forceinline__ uint64_t evict_last() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_normal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// 16 bytes, both addresses aligned to 16; with `valid` false 16 zeros and `from` is not read.
__device__ __forceinline__ void copy16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy16(void* to, const void* from, bool valid, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0), "l"(policy)
               : "memory");
}

/// The first `bytes` (0 .. 16) of them, then zeros.
__device__ __forceinline__ void copy16_part(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
}

/// Closes this thread's group of copies; groups finish in order.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kLeft of this thread's newest groups are unfinished. Other threads' copies need a barrier.
template <int kLeft>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// Arrives at a barrier of shared memory (mbarrier.cuh) once this thread's copies so far have landed; its count expects
/// each thread.
__device__ __forceinline__ void mbarrier_arrive_copied(uint32_t at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}

}  // namespace vivace::kernels::ptx
