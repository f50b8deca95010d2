// Arguments of `act_mul_block_scaled`, shared by the CPU and CUDA kernels. POD; see vivace/ops/act_mul_block_scaled.h.
#pragma once
#include "vivace/kernels/gate/act_mul.h"
#include "vivace/kernels/quantize/quantize_block_scaled.h"

namespace vivace::kernels {

struct ActMulBlockScaledArgs {
  ActMulArgs act;   // no out, no scales of it
  BlockScaledArgs block_scaled;  // no values
};

/// A block takes threads * 8 columns of a row.
struct ActMulBlockScaledPolicy {
  int32_t threads;
  bool aligned;  // 8 elements an access, 4 bytes of codes; else element by element
  constexpr bool operator==(const ActMulBlockScaledPolicy&) const = default;
};

}  // namespace vivace::kernels
