// Arguments of `act_mul_micro`, shared by the CPU and CUDA kernels. POD; see vivace/ops/act_mul_micro.h.
#pragma once
#include "vivace/kernels/gate/act_mul.h"
#include "vivace/kernels/quantize/quantize_micro.h"

namespace vivace::kernels {

struct ActMulMicroArgs {
  ActMulArgs act;   // no out, no scales of it
  MicroArgs micro;  // no values
};

/// A block takes threads * 8 columns of a row.
struct ActMulMicroPolicy {
  int32_t threads;
  bool aligned;  // 8 elements an access, 4 bytes of codes; else element by element
  constexpr bool operator==(const ActMulMicroPolicy&) const = default;
};

}  // namespace vivace::kernels
