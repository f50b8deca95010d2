#include "vivace/kernels/quantize/quantize_micro.h"

#include "vivace/base/float_types.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

using kernels::kMicroBlock;
using kernels::MicroArgs;
using kernels::ScaleLayout;

/// Nearest FP4 code, ties to even: each threshold is the middle of two neighbours and goes to the even one.
uint8_t nibble_of(float f) {
  const float m = std::fabs(f);
  const int code = std::isnan(f) ? 7 : (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
  return static_cast<uint8_t>(code | (std::signbit(f) ? 8 : 0));
}

}  // namespace

void quantize_micro(const MicroArgs& a, Pool& pool) {
  const int64_t blocks = a.H / kMicroBlock, valid = valid_rows(a.rows, a.T);
  const bool swizzled = a.layout == ScaleLayout::swizzled;
  const int64_t all_rows = swizzled ? (int64_t{a.T} + 127) / 128 * 128 : a.T, all_blocks = swizzled ? (blocks + 3) / 4 * 4 : blocks;
  for_rows(pool, all_rows, a.H, [&](int64_t t) {
    for (int64_t b = 0; b < all_blocks; ++b) {
      auto& scale = static_cast<uint8_t*>(a.scales)[fp4_scale_at(t, b, blocks, a.layout)];
      scale = 0;
      if (t >= valid || b >= blocks) continue;
      float y[kMicroBlock], amax = 0;
      load_f32(a.values, a.dtype, t * a.values_stride + b * kMicroBlock, kMicroBlock, y);
      for (float v : y) amax = std::max(amax, std::fabs(v));
      scale = e4m3_of_f32(amax / 6.0f / *a.tensor_scale);
      const float d = f32_of_e4m3(scale) * *a.tensor_scale;
      const float inv = d >= 0x1p-126f ? 1.0f / d : 0.0f;
      auto* out = static_cast<uint8_t*>(a.packed) + t * a.packed_stride + b * (kMicroBlock / 2);
      for (int i = 0; i < kMicroBlock; i += 2) out[i / 2] = static_cast<uint8_t>(nibble_of(y[i] * inv) | nibble_of(y[i + 1] * inv) << 4);
    }
  });
}

}  // namespace vivace::cpu
