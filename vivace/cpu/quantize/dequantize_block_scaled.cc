#include "vivace/kernels/quantize/dequantize_block_scaled.h"

#include "vivace/base/float_types.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {

using kernels::kBlockScaledGroup;

void dequantize_block_scaled(const kernels::BlockScaledArgs& a, Pool& pool) {
  static constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const int64_t blocks = a.H / kBlockScaledGroup;
  for_rows(pool, valid_rows(a.rows, a.T), a.H, [&](int64_t t) {
    for (int64_t b = 0; b < blocks; ++b) {
      const float d =
          f32_of_e4m3(static_cast<const uint8_t*>(a.scales)[fp4_scale_at(t, b, blocks, a.layout)]) * *a.tensor_scale;
      const auto* in = static_cast<const uint8_t*>(a.packed) + t * a.packed_stride + b * (kBlockScaledGroup / 2);
      float y[kBlockScaledGroup];
      for (int i = 0; i < kBlockScaledGroup; ++i) y[i] = kValues[in[i / 2] >> (i % 2 * 4) & 15] * d;
      store_f32(a.values, a.dtype, t * a.values_stride + b * kBlockScaledGroup, kBlockScaledGroup, y);
    }
  });
}

}  // namespace vivace::cpu
