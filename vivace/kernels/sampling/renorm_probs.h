// Arguments of `renorm_probs`, shared by the CPU and CUDA kernels. POD; see vivace/ops/renorm_probs.h.
#pragma once
#include "vivace/kernels/sampling/sample.h"

namespace vivace::kernels {

struct RenormProbsArgs {
  const float* probs;    // [T, V]
  float* out;            // [T, V]
  const int32_t* top_k;  // [T] or null
  const float* top_p;    // [T] or null
  const int32_t* rows;   // [1] device-side T, or null
  int64_t probs_stride, out_stride;  // elements a row
  int32_t T, V;
};

}  // namespace vivace::kernels
