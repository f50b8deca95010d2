// A copy by TMA that lays the halves of heads side by side (Hopper on).
#pragma once
#include "vivace/kernels/tile/tensor_map.h"

namespace vivace::kernels::ptx {

/// tma_load() of a map of five dimensions, as device::encode_halved_map() makes it: the box at (column, 0, 0, block,
/// head).
__device__ __forceinline__ void tma_load_halves(uint32_t to, const TensorMap& map, uint32_t barrier, int column,
                                                int block, int head, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(0), "r"(block), "r"(head), "l"(policy)
      : "memory");
}

}  // namespace vivace::kernels::ptx
