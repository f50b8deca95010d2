// Arguments of `gated_delta_heads`. POD; see vivace/ops/gated_delta_heads.h.
#pragma once
#include "vivace/kernels/gate/gate_heads.h"
#include "vivace/kernels/linear/gated_delta.h"

namespace vivace::kernels {

struct GatedDeltaHeadsArgs {
  GatedDeltaArgs delta;  // its out is where gated heads go
  GateHeadsArgs heads;   // its x is not read
  static constexpr int kBlocks = 4;  // of a head, in one cluster
};

}  // namespace vivace::kernels
