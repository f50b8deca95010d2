// Arguments of `norm_micro`, shared by the CPU and CUDA kernels. POD; see vivace/ops/norm_micro.h.
#pragma once
#include "vivace/kernels/norm/norm.h"
#include "vivace/kernels/quantize/quantize_micro.h"

namespace vivace::kernels {

struct NormMicroArgs {
  NormArgs norm;    // no out, no scales of it
  MicroArgs micro;  // no values
};

}  // namespace vivace::kernels
