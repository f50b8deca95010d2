// The TMA's description of a tensor, made on the host and passed by value. Opaque. POD.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

struct alignas(64) TensorMap {
  uint64_t words[16];
};

}  // namespace vivace::kernels
