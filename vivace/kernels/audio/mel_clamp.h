// Arguments of `mel_clamp`, shared by the CPU and CUDA kernels. POD; see vivace/ops/mel_clamp.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/tile/divisor.h"

namespace vivace::kernels {

struct MelClampArgs {
  const float* x;        // [T, M]
  const float* peak;     // [B]
  const int32_t* length;  // [B] or null
  void* out;             // [T, M] out_dtype
  const int32_t* rows;   // [1] device-side T, or null
  int64_t x_stride, out_stride;
  float range;
  int32_t T, M;
  Divisor frames;        // of one signal
  DType out_dtype;
};

struct MelClampPolicy {
  int32_t threads;       // a warp takes a row
  constexpr bool operator==(const MelClampPolicy&) const = default;
};

/// NaN stays NaN.
VV_HD constexpr float clamped_mel(float x, float least) { return ((x < least ? least : x) + 4.0f) * 0.25f; }

}  // namespace vivace::kernels
