// One value of delta_gates' formula (vivace/ops/delta_gates.h), for the ops that have it.
#pragma once
#include <cmath>

namespace vivace::cpu {

inline float delta_decay(float a, float rate, float bias) {
  const float x = a + bias;
  return -std::exp(rate) * (x > 20.0f ? x : std::log1p(std::exp(x)));
}
inline float delta_beta(float b) {
  return 1.0f / (1.0f + std::exp(-b));
}

}  // namespace vivace::cpu
