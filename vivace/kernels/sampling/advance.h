// Arguments of `advance`, shared by the CPU and CUDA kernels. POD; see vivace/ops/advance.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct AdvanceArgs {
  const int32_t* token;    // [T]
  const float* logprob;    // [T] or null
  int32_t* fed;            // [T] or null
  int32_t* pos;            // [T] or null
  int32_t* step;           // [T] or null
  int32_t* turn;         // [1]
  int32_t* ring;           // [N, C]
  float* ring_logprob;     // [N, C] or null
  const int32_t* rows;     // [1] device-side T, or null
  int64_t ring_stride, logprob_stride;  // elements a row of the rings
  int32_t T, N;
};

struct AdvancePolicy {
  int32_t threads;
  constexpr bool operator==(const AdvancePolicy&) const = default;
};

}  // namespace vivace::kernels
