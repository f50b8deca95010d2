// Barriers in shared memory that count arrivals and bytes (Hopper on).
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

/// By one thread; then mbarrier_fence() and a barrier of the block or cluster before first use.
__device__ __forceinline__ void mbarrier_init(uint32_t at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the cluster and to TMA.
__device__ __forceinline__ void mbarrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/// Shared memory that ordinary stores and cp.async have written, for the tensor core and TMA: by each writing thread,
/// before it arrives.
__device__ __forceinline__ void tensor_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Arrives and announces bytes that TMA will count down.
__device__ __forceinline__ void mbarrier_expect(uint32_t at, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_many(uint32_t at, int count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
/// Arrives at block `rank`'s copy of a barrier. Releases no ordinary writes to the cluster: such an arrival
/// waits for all memory of the chip (MEMBAR.GPU), which a ring cannot afford at every turn.
__device__ __forceinline__ void mbarrier_arrive(uint32_t at, int rank) {
  asm volatile(
      "{\n\t.reg .b32 remote;\n\tmapa.shared::cluster.u32 remote, %0, %1;\n\tmbarrier.arrive.shared::cluster.b64 _, "
      "[remote];\n\t}" ::"r"(at),
      "r"(rank)
      : "memory");
}
/// `count` such arrivals.
__device__ __forceinline__ void mbarrier_arrive_many(uint32_t at, int rank, int count) {
  asm volatile(
      "{\n\t.reg .b32 remote;\n\tmapa.shared::cluster.u32 remote, %0, %1;\n\tmbarrier.arrive.shared::cluster.b64 _, "
      "[remote], %2;\n\t}" ::"r"(at),
      "r"(rank), "r"(count)
      : "memory");
}
/// Until the phase of this parity is complete. `kCluster`: and then sees what other blocks have stored with
/// remote_store_async(); empties the L1 cache.
template <bool kCluster>
__device__ __forceinline__ void mbarrier_wait(uint32_t at, int parity) {
  uint32_t done;
  do {
    if constexpr (kCluster)
      asm volatile(
          "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, "
          "1, 0, p;\n\t}"
          : "=r"(done)
          : "r"(at), "r"(parity)
          : "memory");
    else
      asm volatile(
          "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
          : "=r"(done)
          : "r"(at), "r"(parity)
          : "memory");
  } while (!done);
}

}  // namespace vivace::kernels::ptx
