// Runs of a tile's tokens that share a slot, and what they see; by whole warps.
#pragma once
#include "vivace/kernels/attention/attention.h"

namespace vivace::kernels {

/// End of the run of tokens from t on that share its slot; the same in every warp.
__device__ __forceinline__ int run_end(const AttentionArgs& a, int t, int past, int lane) {
  if (a.slot == nullptr) return past;
  const int32_t slot = a.slot[t];
  for (int at = t + 1; at < past; at += 32) {
    const uint32_t other = __ballot_sync(0xffffffffu, at + lane < past && a.slot[at + lane] != slot);
    if (other != 0) return at + __ffs(static_cast<int>(other)) - 1;
  }
  return past;
}

/// Places [least, most) that any of tokens [ta, tb) sees, the same in every warp; most is 0 if they see none.
__device__ __forceinline__ void span_of_tokens(const AttentionArgs& a, int ta, int tb, int lane, int* least, int* most) {
  int lo = 0x7fffffff, hi = 0;
  for (int t = ta + lane; t < tb; t += 32) {
    const AttentionSpan see(a, t);
    if (see.end > see.first) lo = min(lo, static_cast<int>(see.first)), hi = max(hi, static_cast<int>(see.end));
  }
  *least = __reduce_min_sync(0xffffffffu, lo);
  *most = __reduce_max_sync(0xffffffffu, hi);
}

}  // namespace vivace::kernels
