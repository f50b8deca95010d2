// Runs of a tile's tokens that share a slot, and what they see; by whole warps.
#pragma once
#include "vivace/kernels/attention/attention.h"

namespace vivace::kernels {

/// End of the run of tokens from t on of whose spans each touches its neighbour's; the same in every warp. [t, past)
/// share a slot.
__device__ __forceinline__ int touching_end(const AttentionArgs& a, int t, int past, int lane) {
#pragma unroll 1
  for (int at = t; at + 1 < past; at += 31) {
    const AttentionSpan see(a, min(at + lane, past - 1));
    const int first = static_cast<int>(see.first), end = static_cast<int>(see.end);
    const int next_first = __shfl_down_sync(0xffffffffu, first, 1), next_end = __shfl_down_sync(0xffffffffu, end, 1);
    const uint32_t parts =
        __ballot_sync(0xffffffffu, lane < 31 && at + lane + 1 < past && max(first, next_first) > min(end, next_end));
    if (parts != 0) return at + __ffs(static_cast<int>(parts));
  }
  return past;
}

/// End of the run of tokens from t on that share its slot; the same in every warp. With a window it also ends where
/// spans leave a gap: a run's positions are then one span of which some token sees each, and what lies in a gap (NaN
/// too: evicted pages hold anything) meets no weight of 0.
__device__ __forceinline__ int run_end(const AttentionArgs& a, int t, int past, int lane) {
  if (t + 1 == past) return past;
  if (a.slot != nullptr) {
    const int32_t slot = a.slot[t];
#pragma unroll 1
    for (int at = t + 1; at < past; at += 32) {
      const uint32_t other = __ballot_sync(0xffffffffu, at + lane < past && a.slot[at + lane] != slot);
      if (other != 0) {
        past = at + __ffs(static_cast<int>(other)) - 1;
        break;
      }
    }
  }
  return a.window > 0 ? touching_end(a, t, past, lane) : past;
}

/// run_end() of at most kMost tokens, without a window: every slot is on its way at once.
template <int kMost>
__device__ __forceinline__ int slot_end(const AttentionArgs& a, int t, int past, int lane) {
  if (a.slot == nullptr || t + 1 == past) return past;
  const int32_t slot = a.slot[t];
  int32_t other[kMost / 32];
#pragma unroll
  for (int i = 0; i < kMost / 32; ++i) other[i] = a.slot[min(t + 1 + lane + 32 * i, past - 1)];
  int end = past;
#pragma unroll
  for (int i = kMost / 32 - 1; i >= 0; --i)
    if (const uint32_t parts = __ballot_sync(0xffffffffu, other[i] != slot); parts != 0)
      end = t + 32 * i + __ffs(static_cast<int>(parts));
  return min(end, past);
}

/// Places [least, most) that any of tokens [ta, tb) sees, the same in every warp; most is 0 if they see none.
__device__ __forceinline__ void span_of_tokens(const AttentionArgs& a, int ta, int tb, int lane, int* least,
                                               int* most) {
  int lo = 0x7fffffff, hi = 0;
  for (int t = ta + lane; t < tb; t += 32) {
    const AttentionSpan see(a, t);
    if (see.end > see.first) lo = min(lo, static_cast<int>(see.first)), hi = max(hi, static_cast<int>(see.end));
  }
  *least = __reduce_min_sync(0xffffffffu, lo);
  *most = __reduce_max_sync(0xffffffffu, hi);
}

}  // namespace vivace::kernels
