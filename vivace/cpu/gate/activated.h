// kernels::activate as the CPU's kernels take it: the exact GELU by vectors.
#pragma once
#include "vivace/cpu/simd/gelu.h"
#include "vivace/kernels/gate/activation.h"

namespace vivace::cpu {

inline float activated(kernels::Activation kind, float x) {
  return kind == kernels::Activation::gelu_erf ? gelu_erf(x) : kernels::activate(kind, x);
}

}  // namespace vivace::cpu
