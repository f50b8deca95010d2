// Copies of tiles by TMA (Hopper on).
#pragma once
#include "vivace/kernels/tile/tensor_map.h"

namespace vivace::kernels::ptx {

__device__ __forceinline__ void tma_prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// The box at (column, row) of the map's tensor to shared memory, zeros beyond its edges; its bytes count
/// down `barrier`. `map` lies in the kernel's parameters. `policy`: an L2 policy as evict_first() gives it.
__device__ __forceinline__ void tma_load(uint32_t to, const TensorMap& map, uint32_t barrier, int column, int row,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "l"(policy)
      : "memory");
}
/// The same without a policy.
__device__ __forceinline__ void tma_load(uint32_t to, const TensorMap& map, uint32_t barrier, int column, int row) {
#if __CUDA_ARCH__ >= 1200  // no clusters: the other form asks where the address lies
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
#else
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
#endif
}
/// The same into every block of the cluster that `mask` names, at the same place, each with its own barrier.
__device__ __forceinline__ void tma_load_multicast(uint32_t to, const TensorMap& map, uint32_t barrier, int column,
                                                   int row, uint64_t policy, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_"
      "hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"(mask), "l"(policy)
      : "memory");
}

/// The same of a map of four dimensions: the box at (column, 0, 0, block).
__device__ __forceinline__ void tma_load_blocks(uint32_t to, const TensorMap& map, uint32_t barrier, int column,
                                                int block, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(0), "r"(block), "l"(policy)
      : "memory");
}
/// The same without a policy.
__device__ __forceinline__ void tma_load_blocks(uint32_t to, const TensorMap& map, uint32_t barrier, int column,
                                                int block) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(0), "r"(block)
      : "memory");
}
__device__ __forceinline__ void tma_load_blocks_multicast(uint32_t to, const TensorMap& map, uint32_t barrier,
                                                          int column, int block, uint64_t policy, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_"
      "hint [%0], [%1, {%3, %4, %4, %5}], [%2], %6, %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(0), "r"(block), "h"(mask), "l"(policy)
      : "memory");
}

/// The box at (column, row) of the map's tensor from shared memory; what lies beyond its edges is left out. Those who
/// wrote it have said fence.proxy.async. Goes to the thread's group of stores that bulk_commit() closes next.
__device__ __forceinline__ void tma_store(const TensorMap& map, uint32_t from, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(row)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until all of the thread's groups but the last kLeft have been read from shared memory.
template <int kLeft>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

}  // namespace vivace::kernels::ptx
