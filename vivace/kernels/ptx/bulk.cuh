// Copies of runs of bytes by the copy engine, without a tensor map (Hopper on).
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels::ptx {

/// `bytes` (a multiple of 16, both addresses too) to shared memory; they count down `barrier` (mbarrier.cuh).
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

}  // namespace vivace::kernels::ptx
