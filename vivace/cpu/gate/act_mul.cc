#include "vivace/cpu/gate/act_mul.h"

#include "vivace/cpu/gate/activated.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void act_mul_row(const kernels::ActMulArgs& a, int64_t t) {
  const auto fill = [&](int64_t first, int64_t n, float* y) {
    float up[kChunk];
    load_f32(a.gate, a.dtype, t * a.gate_stride + first, n, y);
    for (int64_t i = 0; i < n; ++i) y[i] = activated(a.act, y[i]);
    if (a.up != nullptr) {
      load_f32(a.up, a.dtype, t * a.up_stride + first, n, up);
      for (int64_t i = 0; i < n; ++i) y[i] *= up[i];
    }
    if (a.inv_scale != nullptr)
      for (int64_t i = 0; i < n; ++i) y[i] *= a.inv_scale[first + i];
  };
  const float scale = output_scale(a.out_scale, a.row_scale, t, a.H, fill);
  for_chunks(a.H, [&](int64_t first, int64_t n) {
    float y[kChunk];
    fill(first, n, y);
    store_scaled(a.out, a.out_dtype, t * a.out_stride + first, n, y, scale);
  });
}

void act_mul(const kernels::ActMulArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.H * 4,
           [&](int64_t t) { act_mul_row(a, t); });  // an activation costs about four loads
}

}  // namespace vivace::cpu
