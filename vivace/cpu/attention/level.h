// The inner part of attention, one an instruction-set level. Light includes only, as in gemm/level.h.
#pragma once
#include "vivace/kernels/attention/attention.h"

namespace vivace::cpu {

/// Keys [first, end) are what query t sees; one call does heads [h0, h0 + heads) of one kv head.
using AttentionHeads = void (*)(const kernels::AttentionArgs& a, int64_t t, int64_t slot, int64_t first, int64_t end, int h0, int heads);

inline constexpr int kHeadsTogether = 4;     // query heads that share one pass over keys and values
inline constexpr int kMaxHeadDim = 1024;     // as ops/attention.h says

AttentionHeads attention_portable();
AttentionHeads attention_avx2();    // nullptr in builds for other CPUs
AttentionHeads attention_avx512();  // likewise

}  // namespace vivace::cpu
