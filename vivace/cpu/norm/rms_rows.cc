#include <cmath>

#include "vivace/cpu/rows.h"
#include "vivace/kernels/norm/rms_rows.h"

namespace vivace::cpu {

void rms_rows(const kernels::RmsRowsArgs& a, Pool& pool) {
  constexpr int64_t kColumns = kernels::kRmsColumns;
  const int64_t T = a.rows ? std::clamp<int64_t>(*a.rows, 0, a.T) : a.T;
  const float by = a.scaled_scale != nullptr ? *a.scaled_scale : 1.0f;
  for_rows(pool, T, a.H, [&](int64_t t) {
    float* const squares = a.squares + t * a.squares_stride;
    for (int64_t col = 0; col < a.H; col += kColumns) {
      const int64_t n = std::min<int64_t>(kColumns, a.H - col);
      float x[kColumns] = {}, scale[kColumns], four[kColumns / 4];
      load_f32(a.x, a.dtype, t * a.x_stride + col, n, x);
      for (int64_t i = 0; i < kColumns / 4; ++i) {
        const float* v = x + 4 * i;
        four[i] = std::fma(v[1], v[1], v[0] * v[0]) + std::fma(v[3], v[3], v[2] * v[2]);
      }
      squares[col / kColumns] = four[0] + four[1];
      if (a.scale != nullptr) {
        load_f32(a.scale, a.dtype, std::min<int64_t>(t, a.R - 1) * a.scale_stride + col, n, scale);
        for (int64_t i = 0; i < n; ++i) x[i] *= 1.0f + scale[i];
      } else if (a.weight != nullptr) {
        load_f32(a.weight, a.weight_dtype, col, n, scale);
        for (int64_t i = 0; i < n; ++i) x[i] *= scale[i];
      }
      store_scaled(a.scaled, a.scaled_dtype(), t * a.scaled_stride + col, n, x, by);
    }
  });
}

void rms_scale(const kernels::RmsScaleArgs& a, Pool& pool) {
  const int64_t T = a.rows ? std::clamp<int64_t>(*a.rows, 0, a.T) : a.T;
  for_rows(pool, T, a.squares.count, [&](int64_t t) {
    const float* const row = a.squares.sums + t * a.squares.stride;
    float lane[16] = {};  // of fours in pairs
    for (int64_t i = 0; i < a.squares.count; i += 4) {
      const auto at = [&](int64_t j) { return i + j < a.squares.count ? row[i + j] : 0.0f; };
      lane[i / 8 % 16] += (at(0) + at(1)) + (at(2) + at(3));
    }
    for (int64_t d = 8; d > 0; d /= 2)
      for (int64_t j = 0; j < d; ++j) lane[j] += lane[j + d];
    a.row_scale[t] = 1.0f / std::sqrt(lane[0] / static_cast<float>(a.squares.H) + a.squares.eps);
  });
}

}  // namespace vivace::cpu
