#include <algorithm>
#include <cmath>
#include <limits>

#include "vivace/cpu/norm/norm.h"
#include "vivace/cpu/rows.h"
#include "vivace/kernels/norm/norm.h"

namespace vivace::cpu {
namespace {

using kernels::NormArgs;
using kernels::NormKind;

/// One token's row: where its adaptive parameters live and how a stretch of h and y is computed.
struct Row {
  const NormArgs& a;
  int64_t t, ada;
  bool lost;  // ada_row names a row that is not there: everything this token writes is NaN

  Row(const NormArgs& args, int64_t token)
      : a(args), t(token), ada(args.ada_row ? args.ada_row[token] : std::min<int64_t>(token, args.R - 1)),
        lost((a.gate || a.scale || a.shift) && (ada < 0 || ada >= a.R)) {}

  /// h[i] for i in [first, first + n): x, or residual + gate * x.
  void load_h(int64_t first, int64_t n, float* h) const {
    if (lost) return void(std::fill_n(h, n, std::numeric_limits<float>::quiet_NaN()));
    load_f32(a.x, a.x_dtype, t * a.x_stride + first, n, h);
    if (a.residual == nullptr) return;
    float tmp[kChunk];
    if (a.gate != nullptr) {
      load_f32(a.gate, a.x_dtype, ada * a.gate_stride + first, n, tmp);
      for (int64_t i = 0; i < n; ++i) h[i] *= tmp[i];
    }
    load_f32(a.residual, a.x_dtype, t * a.residual_stride + first, n, tmp);
    for (int64_t i = 0; i < n; ++i) h[i] += tmp[i];
  }

  /// h -> y in place.
  void apply(int64_t first, int64_t n, float mean, float inv, float* h) const {
    if (lost) return;
    float tmp[kChunk];
    for (int64_t i = 0; i < n; ++i) h[i] = (h[i] - mean) * inv;
    if (a.weight != nullptr) {
      load_f32(a.weight, a.w_dtype, first, n, tmp);
      const float plus = a.weight_plus_one ? 1.0f : 0.0f;
      for (int64_t i = 0; i < n; ++i) h[i] *= tmp[i] + plus;
    }
    if (a.bias != nullptr) {
      load_f32(a.bias, a.w_dtype, first, n, tmp);
      for (int64_t i = 0; i < n; ++i) h[i] += tmp[i];
    }
    if (a.scale != nullptr) {
      load_f32(a.scale, a.x_dtype, ada * a.scale_stride + first, n, tmp);
      for (int64_t i = 0; i < n; ++i) h[i] *= 1.0f + tmp[i];
    }
    if (a.shift != nullptr) {
      load_f32(a.shift, a.x_dtype, ada * a.shift_stride + first, n, tmp);
      for (int64_t i = 0; i < n; ++i) h[i] += tmp[i];
    }
  }
};

}  // namespace

void norm_row(const NormArgs& a, int64_t t) {
  const Row row(a, t);
  float h[kChunk];
  // Sixteen partial sums: a fixed order that vectorises, the same for every T and thread count.
  float part[16] = {};
  const auto total = [&] {
    float s = 0;
    for (float& p : part) s += p, p = 0;
    return s;
  };
  float mean = 0;
  if (a.kind == NormKind::layer) {
    for_chunks(a.H, [&](int64_t first, int64_t n) {
      row.load_h(first, n, h);
      for (int64_t i = 0; i < n; ++i) part[i % 16] += h[i];
    });
    mean = total() / static_cast<float>(a.H);
  }
  for_chunks(a.H, [&](int64_t first, int64_t n) {
    row.load_h(first, n, h);
    for (int64_t i = 0; i < n; ++i) part[i % 16] += (h[i] - mean) * (h[i] - mean);
  });
  const float inv = 1.0f / std::sqrt(total() / static_cast<float>(a.H) + a.eps);

  const float scale = output_scale(a.out_scale, a.row_scale, t, a.H, [&](int64_t first, int64_t n, float* y) {
    row.load_h(first, n, y);
    row.apply(first, n, mean, inv, y);
  });
  for_chunks(a.H, [&](int64_t first, int64_t n) {
    row.load_h(first, n, h);
    if (a.residual != nullptr) store_f32(a.residual, a.x_dtype, t * a.residual_stride + first, n, h);
    row.apply(first, n, mean, inv, h);
    store_scaled(a.out, a.out_dtype, t * a.out_stride + first, n, h, scale);
  });
}

void norm(const NormArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.H, [&](int64_t t) { norm_row(a, t); });
}

}  // namespace vivace::cpu
