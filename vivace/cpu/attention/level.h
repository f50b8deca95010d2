// The inner part of attention, one an instruction-set level. Light includes only, as in gemm/level.h.
#pragma once
#include "vivace/kernels/attention/attention.h"

namespace vivace::cpu {

inline constexpr int kQueriesTogether = 64;  // rows of one slot that share a pass: tokens, each with
inline constexpr int kHeadsTogether = 4;     // at most this many of its heads
inline constexpr int kMaxHeadDim = 1024;     // as ops/attention.h says
inline constexpr int kQueryFloats = 1 << 15;  // of a pass on the stack: its queries and their sums

static constexpr int padded16(int n) { return (n + 15) / 16 * 16; }

/// Rows of a pass with heads of D and values of Dv elements.
static constexpr int queries_together(int D, int Dv) {
  const int fit = kQueryFloats / (padded16(D) + padded16(Dv));
  return fit < kQueriesTogether ? fit : kQueriesTogether;
}
static_assert(queries_together(kMaxHeadDim, kMaxHeadDim) >= 4 * kHeadsTogether);

/// `tokens` consecutive queries from `t` on, all of `slot`, heads [h0, h0 + heads) of one kv head. Query i sees
/// keys [first[i], end[i]). tokens * heads <= queries_together(D, Dv).
struct AttentionTile {
  int64_t t, slot;
  int tokens, h0, heads;
  int64_t first[kQueriesTogether], end[kQueriesTogether];
};
using AttentionHeads = void (*)(const kernels::AttentionArgs& a, const AttentionTile& tile);

AttentionHeads attention_portable();
AttentionHeads attention_avx2();    // nullptr in builds for other CPUs
AttentionHeads attention_avx512();  // likewise

}  // namespace vivace::cpu
