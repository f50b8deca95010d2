// Vector stores into the shared memory of a cluster's other blocks (Hopper on).
#pragma once
#include "vivace/kernels/ptx/cluster.cuh"

namespace vivace::kernels::ptx {

/// To block `rank`'s copy of `shared`, aligned to 8 or 16 bytes. That block must be running, and sees it
/// after a cluster_sync().
template <int kCluster>
__device__ __forceinline__ void remote_store2(void* shared, int rank, float x, float y) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(remote_address<kCluster>(shared, rank)), "f"(x), "f"(y)
               : "memory");
#endif
}
template <int kCluster>
__device__ __forceinline__ void remote_store4(void* shared, int rank, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote_address<kCluster>(shared, rank)),
               "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#endif
}

/// `bytes` of this block's shared memory to block `rank`'s `to`; they count down that block's `barrier`. Addresses and
/// bytes are multiples of 16. By one thread, after tensor_fence() in those that wrote them; they stay until the
/// receiver has seen all.
__device__ __forceinline__ void remote_copy(uint32_t to, uint32_t from, int bytes, uint32_t barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   remote_shared(to, rank)),
               "r"(from), "r"(bytes), "r"(remote_shared(barrier, rank))
               : "memory");
#endif
}

}  // namespace vivace::kernels::ptx
