// Arguments of `top_logprobs`, shared by the CPU and CUDA kernels. POD; see vivace/ops/top_logprobs.h for the rules.
#pragma once
#include "vivace/kernels/sampling/sample.h"

namespace vivace::kernels {

inline constexpr int64_t kMaxTop = 128;  // tokens a row

struct TopLogprobsArgs {
  const float* logits;       // [T, V]
  int32_t* token;            // [T, K]
  float* logprob;            // [T, K]
  float* asked_logprob;      // [T] or null, as all below
  const int32_t* asked;      // [T]
  const int32_t* wanted;     // [T]
  const int32_t* mask;       // [M, (V + 31) / 32], as `sample` has it
  const int32_t* mask_slot;  // [T]
  const int32_t* spans;      // [T, kSpanWords]
  const int32_t* rows;       // [1] device-side T
  int64_t logits_stride, token_stride, logprob_stride, mask_stride, spans_stride;  // elements a row
  int32_t T, V, K, M;
};

inline constexpr int kSpanWords = 5;

/// Which tokens of a row may come, but for the mask: [begin[0], end[0]) of those below the split, [begin[1], end[1]) of
/// those from it on; `together`: the first part must not where the second's probabilities sum to more than its largest.
struct TokenSpans {
  int32_t begin[2], end[2];
  bool together;
};

VV_HD inline int32_t held_to(int32_t v, int32_t low, int32_t high) {
  return v < low ? low : v > high ? high : v;
}

VV_HD inline TokenSpans spans_of(const TopLogprobsArgs& a, int64_t t) {
  if (a.spans == nullptr) return {{0, a.V}, {a.V, a.V}, false};
  const int32_t* const s = a.spans + t * a.spans_stride;
  const int32_t split = held_to(s[1], 0, a.V), first = held_to(s[0], 0, split), from = held_to(s[2], split, a.V),
                until = held_to(s[3], from, a.V);
  return {{first, from}, {split, until}, s[4] != 0};
}

/// The mask of row t; null: every token is allowed.
VV_HD inline const int32_t* mask_of(const TopLogprobsArgs& a, int64_t t) {
  if (a.mask == nullptr) return nullptr;
  const int64_t row = a.mask_slot != nullptr ? a.mask_slot[t] : t;
  return row >= 0 && row < a.M ? a.mask + row * a.mask_stride : nullptr;
}

VV_HD inline bool mask_allows(const int32_t* mask, int64_t v) {
  return mask == nullptr || (static_cast<uint32_t>(mask[v / 32]) >> (v % 32) & 1u) != 0;
}

/// Tokens of row t that are told.
VV_HD inline int32_t wanted_of(const TopLogprobsArgs& a, int64_t t) {
  const int32_t n = a.wanted != nullptr ? a.wanted[t] : a.K;
  return n >= 0 && n < a.K ? n : a.K;
}

/// A cluster of thread blocks owns a row, each block a stretch of it.
struct TopLogprobsPolicy {
  int32_t threads, cluster;
  constexpr bool operator==(const TopLogprobsPolicy&) const = default;
  VV_HD constexpr int stretch(int V) const { return (V + cluster - 1) / cluster; }
};

}  // namespace vivace::kernels
