// Thread block clusters and their distributed shared memory (Hopper on). With a cluster of one these are
// the block's own barrier and memory, on every chip.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

template <int kCluster>
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}

/// Every thread of the cluster arrives; shared memory written before it is visible to all after it.
template <int kCluster>
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

/// The barrier in two halves. First use: arrive at the start, wait before the first remote access, so
/// that all blocks of the cluster are known to run. Orders no memory: arrivals at another block's barriers
/// may be on their way still when that block comes out of wait, so it must not end for this alone.
template <int kCluster>
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
template <int kCluster>
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// Address of block `rank`'s copy of a shared variable. That block must not have ended.
template <int kCluster>
__device__ __forceinline__ uint32_t remote_address(const void* shared, int rank) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(at), "r"(rank));
#endif
  return at;
}

/// Stores to an address that remote_address() gave.
template <int kCluster>
__device__ __forceinline__ void remote_store(uint32_t address, float v) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
    return;
  }
#endif
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

/// Stores N floats (2 or 4) to another block of a cluster, `address` and `barrier` as mapa gives them, the first
/// aligned to the whole; their bytes count down the barrier there. Hopper on.
template <int N>
__device__ __forceinline__ void remote_store_async(uint32_t address, const float (&v)[N], uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  static_assert(N == 2 || N == 4);
  if constexpr (N == 2)
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
        "f"(v[0]), "f"(v[1]), "r"(barrier)
        : "memory");
  else
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            address),
        "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
        : "memory");
#endif
}
/// A shared address of this block as block `rank`'s.
__device__ __forceinline__ uint32_t remote_shared(uint32_t at, int rank) {
  uint32_t r = at;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(rank));
#endif
  return r;
}

template <int kCluster>
__device__ __forceinline__ void remote_store(uint32_t address, uint32_t v) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
    return;
  }
#endif
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
template <int kCluster>
__device__ __forceinline__ void remote_store(uint32_t address, uint64_t v) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) {
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(v) : "memory");
    return;
  }
#endif
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(address), "l"(v) : "memory");
}

template <int kCluster>
__device__ __forceinline__ uint32_t remote_load(const uint32_t* shared, int rank) {
  if constexpr (kCluster == 1) return *shared;
  uint32_t v = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(remote_address<kCluster>(shared, rank)) : "memory");
#endif
  return v;
}

template <int kCluster>
__device__ __forceinline__ uint64_t remote_load(const uint64_t* shared, int rank) {
  if constexpr (kCluster == 1) return *shared;
  uint64_t v = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(v) : "r"(remote_address<kCluster>(shared, rank)) : "memory");
#endif
  return v;
}

}  // namespace vivace::kernels::ptx
