// Arguments of `sample_chain`, shared by the CPU and CUDA kernels. POD; see vivace/ops/sample_chain.h.
#pragma once
#include "vivace/kernels/sampling/philox.h"

namespace vivace::kernels {

struct SampleChainArgs {
  const int32_t* draft;      // [T, N]
  const float* draft_probs;  // [T, N, V]
  const float* probs;        // [T, N + 1, V]
  int32_t* tokens;           // [T, N + 1]
  int32_t* accepted;         // [T]
  const int64_t* seed;       // [T] or null
  const int32_t* step;       // [T] or null
  const int32_t* rows;       // [1] device-side T, or null
  int64_t draft_stride, draft_probs_stride, probs_stride, tokens_stride;  // elements a row
  int32_t T, N, V;
};

/// The third counter word keeps the noise of these draws apart from each other's and from sample's, which is 0.
inline constexpr uint32_t kChainDraw = 1, kChainAccept = 2;

/// Whether draft token `i` with probabilities q (draft) and p (target) is accepted: u * q < p.
VV_HD inline bool chain_accepts(float p, float q, uint64_t seed, uint32_t step, uint32_t i) {
  const PhiloxWords w =
      philox4x32_10({{i, step, kChainAccept, 0}}, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const float u = (static_cast<float>(w.w[0]) + 0.5f) * 0x1p-32f;
  return u * q < p;
}
/// The noise words of tokens 4 * group .. 4 * group + 3 of the draw.
VV_HD inline PhiloxWords chain_words(uint64_t seed, uint32_t step, uint32_t group) {
  return philox4x32_10({{group, step, kChainDraw, 0}}, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

/// A cluster of thread blocks owns a row.
struct SampleChainPolicy {
  int32_t threads;
  int32_t cluster;
  constexpr bool operator==(const SampleChainPolicy&) const = default;
};

}  // namespace vivace::kernels
