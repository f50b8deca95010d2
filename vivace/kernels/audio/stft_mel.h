// Arguments of `stft_mel`, shared by the CPU and CUDA kernels. POD; see vivace/ops/stft_mel.h.
#pragma once
#include "vivace/kernels/tile/divisor.h"

namespace vivace::kernels {

inline constexpr int kMostWindow =
    512;  // samples of a frame: what a block of the CUDA kernel holds of it in shared memory
inline constexpr float kLeastMel = 1e-10f;

/// Where frames lie: centred on every hop with the signal reflected at its ends, or within it.
enum class FramePad : int32_t { reflect, none };

struct StftMelArgs {
  const float* x;        // [B, N]
  const float* window;   // [W], W even
  const float* filters;  // [M, F], F = W / 2 + 1
  float* out;            // [T, M], T = B * frames
  float* peak;           // [T] or null
  const int32_t* rows;   // [1] device-side T, or null
  int64_t x_stride, filters_stride, out_stride;
  int32_t T, N, W, M, hop;
  FramePad pad;
  Divisor frames;        // of one signal

  VV_HD constexpr int32_t F() const { return W / 2 + 1; }
  /// The sample that element `n` of frame `f` is.
  VV_HD constexpr int32_t sample(int32_t f, int32_t n) const {
    int32_t at = f * hop + n;
    if (pad == FramePad::none) return at;
    at -= W / 2;
    at = at < 0 ? -at : at;
    return at < N ? at : 2 * (N - 1) - at;
  }
};

/// A block takes `frames` frames, a thread one frequency of all of them.
struct StftMelPolicy {
  int32_t threads, frames;
  constexpr bool operator==(const StftMelPolicy&) const = default;
};

}  // namespace vivace::kernels
