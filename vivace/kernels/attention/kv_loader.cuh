// How a producer warp brings blocks of keys and values by TMA: what each lane asks for. Loads by cp.async, for KV
// blocks that TMA does not map, are those of stream_blocks.cuh.
#pragma once
#include "vivace/kernels/attention/attention.h"
#include "vivace/kernels/ptx/cp_async.cuh"
#include "vivace/kernels/ptx/mbarrier.cuh"
#include "vivace/kernels/ptx/tma_box.cuh"

namespace vivace::kernels {

/// Positions that one lane's request brings, at most kMost: a page's, at least 8, so that a warp suffices for a block.
template <int kMost>
__device__ __forceinline__ int kv_box(const AttentionArgs& a) {
  return a.page_table != nullptr && a.L < kMost ? a.L : kMost;
}
/// The page of position j, where the lane's box begins; -1 (TMA brings zeros) from hi on and where a block of kKeys has
/// no box for the lane.
template <int kKeys>
__device__ __forceinline__ int kv_page(const AttentionArgs& a, int64_t slot, int j, int hi, int lane, int box) {
  return lane * box < kKeys && j < hi ? static_cast<int>(a.block(slot, j)) : -1;
}

/// Asks for a block of k.kKeys keys or values of kv head k.kv, a box of `page` from `position` on a lane; `full` counts
/// the bytes down. In memory: kPanels of [k.kKeys][128 bytes], each 64 elements (e4m3: 128) wide and swizzled.
template <int kPanels, class Kernel, class E>
__device__ __forceinline__ void tma_load_kv(const Kernel& k, E* to, const TensorMap& map, uint32_t full, int box,
                                            int page, int position) {
  if (k.lane == 0) ptx::mbarrier_expect(full, k.kKeys * kPanels * 128);
  __syncwarp();
  if (k.lane * box >= k.kKeys) return;
#pragma unroll
  for (int p = 0; p < kPanels; ++p)
    ptx::tma_box(ptx::shared_address(to + (p * k.kKeys + k.lane * box) * (128 / static_cast<int>(sizeof(E)))), map,
                 full, p * 64, position, k.kv, page);
}

}  // namespace vivace::kernels
