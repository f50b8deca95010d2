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

}  // namespace vivace::kernels
