// Arguments of `sample`, shared by the CPU and CUDA kernels. POD; see vivace/ops/sample.h for the rules.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

/// Temperatures below this are greedy: logits divided by less would overflow f32.
inline constexpr float kMinTemperature = 1e-6f;
/// Probability masses are summed in whole units of 2^-40 of the top token's, so that their sum does not
/// depend on its order; kMaxSampleVocab of them fit into 62 bits.
inline constexpr float kMassUnit = 0x1p40f;
inline constexpr int64_t kMaxSampleVocab = int64_t{1} << 22;

struct SampleArgs {
  const void* logits;        // [T, V] dtype
  int32_t* token;            // [T]
  float* logprob;            // [T] or null
  const float* temperature;  // [T] or null, as all below
  const int32_t* top_k;      // [T]
  const float* top_p;        // [T]
  const float* min_p;        // [T]
  const int64_t* seed;       // [T]
  const int32_t* step;       // [T]
  const int32_t* counts;     // [S, V]
  const int32_t* slot;       // [T] row of counts
  const float* repetition;   // [T]
  const float* presence;     // [T]
  const float* frequency;    // [T]
  const int32_t* mask;       // [M, (V + 31) / 32] bit v % 32 of word v / 32 set: token v is allowed
  const int32_t* mask_slot;  // [T] row of mask, outside [0, M): all are allowed; or null: the row's own, M is T
  const int32_t* rows;       // [1] device-side T
  int64_t logits_stride, counts_stride, mask_stride;  // elements a row
  int32_t T, V, S, M;
  DType dtype;
};

/// The mask of row t; null: every token is allowed.
VV_HD inline const int32_t* mask_of(const SampleArgs& a, int64_t t) {
  if (a.mask == nullptr) return nullptr;
  const int64_t row = a.mask_slot != nullptr ? a.mask_slot[t] : t;
  return row >= 0 && row < a.M ? a.mask + row * a.mask_stride : nullptr;
}

inline constexpr int kSampleUnroll = 4, kSampleChunks = 8;

/// A cluster of thread blocks owns a row, each block a stretch of it.
struct SamplePolicy {
  int32_t threads;  // a block
  int32_t cluster;  // blocks a row
  int32_t vec;      // logits an access: 4, or 1 for any alignment
  bool greedy;      // there is no temperature: the largest logit, one pass
  constexpr bool operator==(const SamplePolicy&) const = default;
  /// Tokens of a block: whole words of the mask.
  VV_HD constexpr int stretch(int V) const { return (V + cluster * 32 - 1) / (cluster * 32) * 32; }
  /// A thread takes its tokens four at a time, kSampleUnroll such fours on their way at once. It keeps the
  /// maximum of each of up to kSampleChunks runs of them, so that a second look reads only what can matter.
  VV_HD constexpr int batch() const { return threads * 4 * kSampleUnroll; }
  VV_HD constexpr int batches_a_chunk(int V) const {
    return ((stretch(V) + batch() - 1) / batch() + kSampleChunks - 1) / kSampleChunks;
  }
};

/// What a score counts for against the largest: logits by the exponential, probabilities by themselves.
enum class ScoreKind : int32_t { logit, probability };

/// Order of scores as order of unsigned integers; -0 and +0 are one value.
VV_HD inline uint32_t score_key(float z) {
  union {
    float f;
    uint32_t u;
  } bits{z + 0.0f};
  return bits.u & 0x80000000u ? ~bits.u : bits.u | 0x80000000u;
}

}  // namespace vivace::kernels
