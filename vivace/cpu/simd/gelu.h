// The exact GELU for the CPU kernels, without a call or a branch.
#pragma once
#include "vivace/cpu/simd/exp.h"

namespace vivace::cpu {

/// x/2 (1 + erf(x / sqrt 2)) within 2e-7 |x|: the formula of the GPU's (kernels/gate/activation.h), whose negative side
/// has no cancellation. NaN stays NaN. Loops of it become vectors, with the bits of each alone.
static inline float gelu_erf(float x) {
  const float size = x < 0.0f ? -x : x, z = size * 0.7071067812f, t = 1.0f / (0.3275911f * z + 1.0f);
  const float p = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
  const float tail = 0.5f * t * p * exp_negative(-z * z);
  return x * either(x < 0.0f, tail, 1.0f - tail);
}

}  // namespace vivace::cpu
