// Vector stores into the shared memory of a cluster's other blocks (Hopper on).
#pragma once
#include "vivace/kernels/ptx/cluster.cuh"

namespace vivace::kernels::ptx {

/// To block `rank`'s copy of `shared`, aligned to 8 or 16 bytes. That block must be running, and sees it
/// after a cluster_sync().
template <int kCluster>
__device__ __forceinline__ void remote_store2(void* shared, int rank, float x, float y) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(remote_address<kCluster>(shared, rank)), "f"(x), "f"(y) : "memory");
#endif
}
template <int kCluster>
__device__ __forceinline__ void remote_store4(void* shared, int rank, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote_address<kCluster>(shared, rank)), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
#endif
}

}  // namespace vivace::kernels::ptx
