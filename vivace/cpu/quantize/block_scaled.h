// 16 values to FP4 codes and their e4m3 scale.
#pragma once
#include <algorithm>
#include <cmath>

#include "vivace/base/float_types.h"
#include "vivace/kernels/quantize/quantize_block_scaled.h"

namespace vivace::cpu {

/// Nearest FP4 code, ties to even: each threshold is the middle of two neighbours and goes to the even one.
inline uint8_t nibble_of(float f) {
  const float m = std::fabs(f);
  const int code =
      std::isnan(f) ? 7
                    : (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
  return static_cast<uint8_t>(code | (std::signbit(f) ? 8 : 0));
}

/// Codes of y[0 .. 16) to out[0 .. 8); the bits of their scale.
inline uint8_t quantize_block_scaled_block(const float* y, float tensor_scale, uint8_t* out) {
  float amax = 0;
  for (int i = 0; i < kernels::kBlockScaledGroup; ++i) amax = std::max(amax, std::fabs(y[i]));
  const uint8_t scale = e4m3_of_f32(amax / 6.0f / tensor_scale);
  const float d = f32_of_e4m3(scale) * tensor_scale;
  const float inv = d >= 0x1p-126f ? 1.0f / d : 0.0f;
  for (int i = 0; i < kernels::kBlockScaledGroup; i += 2)
    out[i / 2] = static_cast<uint8_t>(nibble_of(y[i] * inv) | nibble_of(y[i + 1] * inv) << 4);
  return scale;
}

/// Codes and scales of all rows, those of the layout's padding zero. `row(t)` gives H values of a valid row, good
/// until its thread asks for the next.
template <class ForRows, class Row>
void quantize_block_scaled_rows(const kernels::BlockScaledArgs& a, int64_t valid, ForRows&& for_all, Row&& row) {
  const int64_t blocks = a.H / kernels::kBlockScaledGroup;
  const bool swizzled = a.layout == kernels::ScaleLayout::swizzled;
  const int64_t all_rows = swizzled ? (int64_t{a.T} + 127) / 128 * 128 : a.T,
                all_blocks = swizzled ? (blocks + 3) / 4 * 4 : blocks;
  for_all(all_rows, [&](int64_t t) {
    const float* y = t < valid ? row(t) : nullptr;
    for (int64_t b = 0; b < all_blocks; ++b) {
      auto& scale = static_cast<uint8_t*>(a.scales)[fp4_scale_at(t, b, blocks, a.layout)];
      scale = y == nullptr || b >= blocks
                  ? uint8_t{0}
                  : quantize_block_scaled_block(
                        y + b * kernels::kBlockScaledGroup, *a.tensor_scale,
                        static_cast<uint8_t*>(a.packed) + t * a.packed_stride + b * (kernels::kBlockScaledGroup / 2));
    }
  });
}

}  // namespace vivace::cpu
