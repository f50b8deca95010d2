#include "vivace/kernels/copy/im2col.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

/// Row `t` from column `first` on, n values.
void patch(const kernels::Im2colArgs& a, int64_t t, int64_t first, int64_t n, float* y) {
  const int64_t frame = t / a.per_frame.by, at = t % a.per_frame.by;
  const int64_t y0 = at / a.per_line.by * a.stride_h - a.pad_h, x0 = at % a.per_line.by * a.stride_w - a.pad_w;
  const bool hwc = a.order == kernels::PatchOrder::hwc;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t j = first + i, outer = j / a.outer.by, q = j % a.outer.by / a.inner.by,
                  r = j % a.outer.by % a.inner.by;
    const int64_t line = y0 + (hwc ? outer : q), pixel = x0 + (hwc ? q : r), c = hwc ? r : outer;
    y[i] = 0;
    if (j >= a.columns() || line < 0 || line >= a.H || pixel < 0 || pixel >= a.W) continue;
    const int64_t element = frame * a.x_stride + (line * a.W + pixel) * a.C + c;
    if (a.x_dtype == DType::u8) y[i] = static_cast<const uint8_t*>(a.x)[element];
    else load_f32(a.x, a.x_dtype, element, 1, y + i);
    if (a.scale != nullptr) y[i] *= a.scale[c];
    if (a.offset != nullptr) y[i] += a.offset[c];
  }
}

}  // namespace

void im2col(const kernels::Im2colArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.K, [&](int64_t t) {
    for_chunks(a.K, [&](int64_t first, int64_t n) {
      float y[kChunk];
      patch(a, t, first, n, y);
      store_f32(a.out, a.out_dtype, t * a.out_stride + first, n, y);
    });
  });
}

}  // namespace vivace::cpu
