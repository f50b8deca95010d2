// What a run of tokens sees and where it ends, with fewer loads one behind the other than runs.cuh: of the forms of
// prefill that prefill.cu times.
#pragma once
#include "vivace/kernels/attention/runs.cuh"

namespace vivace::kernels {

/// run_end() of at most kMost tokens, with every slot on its way at once.
template <int kMost>
__device__ __forceinline__ int run_end_at_once(const AttentionArgs& a, int t, int past, int lane) {
  if (t + 1 == past) return past;
  if (a.slot != nullptr) {
    const int32_t slot = a.slot[t];
    int32_t other[kMost / 32];
#pragma unroll
    for (int i = 0; i < kMost / 32; ++i) other[i] = a.slot[min(t + 1 + lane + 32 * i, past - 1)];
    int end = past;
#pragma unroll
    for (int i = kMost / 32 - 1; i >= 0; --i)
      if (const uint32_t parts = __ballot_sync(0xffffffffu, other[i] != slot); parts != 0)
        end = t + 32 * i + __ffs(static_cast<int>(parts));
    past = min(end, past);
  }
  return a.window > 0 ? touching_end(a, t, past, lane) : past;
}

/// Whether tokens that share a slot see the same places, whatever their positions.
__device__ __forceinline__ bool one_span(const AttentionArgs& a) {
  return a.mask == AttentionMask::full && a.window == 0;
}

}  // namespace vivace::kernels
