// exp for the CPU kernels, without a call or a branch.
#pragma once
#include <cstdint>
#include <cstring>

namespace vivace::cpu {

// static: each instruction-set level compiles its own, and no level may get another's.
/// first ? a : b by a mask. Of a plain choice the compiler sinks what makes a or b into a branch, may not take it out
/// again as it could trap, and makes no vectors of the loop.
static inline float either(bool first, float a, float b) {
  const uint32_t mask = first ? ~0u : 0u;
  uint32_t u, v;
  std::memcpy(&u, &a, 4);
  std::memcpy(&v, &b, 4);
  u = (u & mask) | (v & ~mask);
  std::memcpy(&a, &u, 4);
  return a;
}

/// exp of x <= 0 to 2 units in the last place; 0 below -87; NaN stays NaN. Loops of it become vectors.
static inline float exp_negative(float x) {
  const float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;  // n = rint(x / ln 2)
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, 4);
  bits = (bits + 127u) << 23;  // 2^n
  float power;
  std::memcpy(&power, &bits, 4);
  const float y = p * power;
  return either(x < -87.0f, 0.0f, y);
}

}  // namespace vivace::cpu
