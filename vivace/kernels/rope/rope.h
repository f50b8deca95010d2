// Arguments of `rope`, shared by the CPU and CUDA kernels. POD; see vivace/ops/rope.h for the formula.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

/// half: pairs (i, i + R), GPT-NeoX and Llama; interleaved: pairs (2i, 2i + 1), GPT-J.
enum class RopeStyle : int32_t { half, interleaved };

/// Largest head dim of the rotating ops: one head is held at a time.
inline constexpr int kMaxRopeHeadDim = 1024;

struct RopeArgs {
  const void* x;          // [T, N, D] dtype
  const float* inv_freq;  // [R]
  const int32_t* pos;     // [T]
  void* out;              // [T, N, D] dtype
  const int32_t* rows;    // [1] device-side T, or null
  int64_t x_stride, out_stride;  // elements a token
  int32_t T, N, D, R;
  float attn_factor;
  RopeStyle style;
  DType dtype;
};

/// `lanes` neighbouring threads own a head: each holds `chunks` chunks of 2 * vec of its elements (vec
/// pairs where they rotate), of `heads` heads one after another.
struct RopePolicy {
  int32_t threads;  // a block; all of one token
  int32_t vec;      // neighbouring elements of a thread
  int32_t access;   // elements an access: vec, or 1 for any alignment, with the same arithmetic
  int32_t lanes;    // a power of two, at most a warp
  int32_t chunks;
  int32_t heads;
  int32_t tokens = 1;  // a block; more than one come through shared memory, all on their way at once (qkv_rope)
  constexpr bool operator==(const RopePolicy&) const = default;
  /// Chunks that a head has: pairs first, then what is copied. Vec 8 wants R and D in whole vectors.
  VV_HD constexpr int chunk_count(int D, int R) const {
    return (R + vec - 1) / vec + (D - 2 * R + 2 * vec - 1) / (2 * vec);
  }
  VV_HD constexpr bool holds(int D, int R) const {
    return chunk_count(D, R) <= lanes * chunks && (vec == 1 || (R % vec == 0 && D % vec == 0));
  }
  /// Pairs of a head that there is room for.
  VV_HD constexpr int pairs() const { return lanes * chunks * vec; }
  /// Heads that run side by side in a block, and blocks a token.
  VV_HD constexpr int slots() const { return threads / lanes; }
  VV_HD constexpr int blocks(int heads_in_token) const {
    return (heads_in_token + slots() * heads - 1) / (slots() * heads);
  }
};

}  // namespace vivace::kernels
