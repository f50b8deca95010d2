// The rotation of one token's heads, for every CPU op that rotates.
#pragma once
#include <algorithm>
#include <cmath>

#include "vivace/kernels/rope/rope.h"

namespace vivace::cpu {

/// cos and sin of one token, computed once and applied to all of its heads.
class Rotation {
 public:
  Rotation(const float* inv_freq, int R, int32_t pos, float attn_factor, kernels::RopeStyle style)
      : Rotation(inv_freq, R, attn_factor, style, [pos](int) { return pos; }) {}

  /// Where each pair has a position of its own, `at(pair)`.
  template <class At>
  Rotation(const float* inv_freq, int R, float attn_factor, kernels::RopeStyle style, At&& at)
      : R_(R), half_(style == kernels::RopeStyle::half) {
    for (int i = 0; i < R; ++i) {
      const float angle = static_cast<float>(at(i)) * inv_freq[i];
      cos_[i] = std::cos(angle) * attn_factor;
      sin_[i] = std::sin(angle) * attn_factor;
    }
  }

  /// Of angles that are made: R cosines, then R sines.
  Rotation(const float* angles, int R, kernels::RopeStyle style) : R_(R), half_(style == kernels::RopeStyle::half) {
    std::copy(angles, angles + R, cos_);
    std::copy(angles + R, angles + 2 * R, sin_);
  }

  /// Rotates the first 2R dims of `head` in place.
  void apply(float* head) const {
    for (int i = 0; i < R_; ++i) {
      float& a = head[half_ ? i : 2 * i];
      float& b = head[half_ ? i + R_ : 2 * i + 1];
      const float a0 = a, b0 = b;
      a = a0 * cos_[i] - b0 * sin_[i];
      b = b0 * cos_[i] + a0 * sin_[i];
    }
  }

 private:
  int R_;
  bool half_;
  float cos_[kernels::kMaxRopeHeadDim / 2], sin_[kernels::kMaxRopeHeadDim / 2];
};

}  // namespace vivace::cpu
