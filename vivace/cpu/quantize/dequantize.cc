#include "vivace/kernels/quantize/dequantize.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

using kernels::kQuantBlock;

void dequantize(const kernels::DequantizeArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.H, [&](int64_t t) {
    const float whole = a.scale ? *a.scale : a.row_scale ? a.row_scale[t] : 1.0f;
    for (int64_t first = 0; first < a.H; first += kQuantBlock) {
      const int64_t n = std::min<int64_t>(kQuantBlock, a.H - first);
      float y[kQuantBlock];
      if (a.x_dtype == DType::i8)
        for (int64_t i = 0; i < n; ++i) y[i] = static_cast<const int8_t*>(a.x)[t * a.x_stride + first + i];
      else
        load_f32(a.x, a.x_dtype, t * a.x_stride + first, n, y);
      const float scale = a.block_scale ? a.block_scale[t * a.block_stride + first / kQuantBlock] : whole;
      for (int64_t i = 0; i < n; ++i) y[i] *= scale;
      store_f32(a.out, a.out_dtype, t * a.out_stride + first, n, y);
    }
  });
}

}  // namespace vivace::cpu
