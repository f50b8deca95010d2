// Arguments of `resample`, shared by the CPU and CUDA kernels. POD; see vivace/ops/resample.h.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

struct ResampleArgs {
  const float* x;       // [B, N]
  const float* filter;  // [up, K]
  float* out;           // [B, O]
  int64_t x_stride, filter_stride, out_stride;
  int64_t down, first;
  int32_t B, N, O, up, K;
};

/// A block takes a stretch of one signal's outputs, a thread one of them.
struct ResamplePolicy {
  int32_t threads;
  constexpr bool operator==(const ResamplePolicy&) const = default;
};

/// Products of an output are summed in this many parts, whose order the device keeps too.
inline constexpr int kResampleParts = 8;

}  // namespace vivace::kernels
