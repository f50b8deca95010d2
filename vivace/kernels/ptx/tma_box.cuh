// Copies by TMA of boxes of a four-dimensional tensor (Hopper on).
#pragma once
#include "vivace/kernels/tile/tensor_map.h"

namespace vivace::kernels::ptx {

/// The box at (x, y, z, w), innermost first, of the map's tensor to shared memory, zeros beyond its edges
/// and at negative coordinates; its bytes count down `barrier`, those beyond the edges too. `map` lies in
/// the kernel's parameters.
__device__ __forceinline__ void tma_box(uint32_t to, const TensorMap& map, uint32_t barrier, int x, int y, int z,
                                        int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

/// The same into every block of the cluster that `mask` names, at the same place, each with its own barrier.
__device__ __forceinline__ void tma_box_multicast(uint32_t to, const TensorMap& map, uint32_t barrier, int x, int y,
                                                  int z, int w, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(mask)
      : "memory");
}

}  // namespace vivace::kernels::ptx
