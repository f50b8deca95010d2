// Arguments of `norm_block_scaled`, shared by the CPU and CUDA kernels. POD; see vivace/ops/norm_block_scaled.h.
#pragma once
#include "vivace/kernels/norm/norm.h"
#include "vivace/kernels/quantize/quantize_block_scaled.h"

namespace vivace::kernels {

struct NormBlockScaledArgs {
  NormArgs norm;    // no out, no scales of it
  BlockScaledArgs block_scaled;  // no values
};

}  // namespace vivace::kernels
