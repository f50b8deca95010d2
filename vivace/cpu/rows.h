// What row kernels of the CPU backend share: rows spread over threads, rows walked in chunks, and the
// scale of a quantized output row.
#pragma once
#include <algorithm>
#include <cmath>

#include "vivace/cpu/convert.h"
#include "vivace/cpu/pool.h"

namespace vivace::cpu {

/// Calls f(t) for t in [0, T) on the pool. `work` is about the elements a row touches: rows too small to
/// pay for waking a thread are run several at a time.
template <class F>
void for_rows(Pool& pool, int64_t T, int64_t work, F&& f) {
  const int64_t together = std::max<int64_t>(1, 4096 / std::max<int64_t>(work, 1));
  const auto body = [&](int64_t chunk) {
    for (int64_t t = chunk * together; t < std::min(T, (chunk + 1) * together); ++t) f(t);
  };
  pool.run((T + together - 1) / together, body);
}

/// Calls f(first, n) over [0, H) in stretches of at most kChunk.
template <class F>
void for_chunks(int64_t H, F&& f) {
  for (int64_t i = 0; i < H; i += kChunk) f(i, std::min(kChunk, H - i));
}

/// What row t is divided by before it is stored: *out_scale (static), amax / 448 which is also written
/// to row_scale[t] (dynamic, 1 for a zero row), or 1 without either. `fill(first, n, y)` recomputes n
/// unrounded values of the row from `first` on.
template <class F>
float output_scale(const float* out_scale, float* row_scale, int64_t t, int64_t H, F&& fill) {
  if (row_scale == nullptr) return out_scale != nullptr ? *out_scale : 1.0f;
  float amax = 0, y[kChunk];
  for_chunks(H, [&](int64_t first, int64_t n) {
    fill(first, n, y);
    for (int64_t i = 0; i < n; ++i) amax = std::max(amax, std::fabs(y[i]));
  });
  return row_scale[t] = amax > 0 ? amax / 448.0f : 1.0f;
}

/// y / scale, stored as n elements of `dtype` at element `first`; y is clobbered.
inline void store_scaled(void* dst, DType dtype, int64_t first, int64_t n, float* y, float scale) {
  if (scale != 1.0f)
    for (int64_t i = 0; i < n; ++i) y[i] /= scale;
  store_f32(dst, dtype, first, n, y);
}

}  // namespace vivace::cpu
