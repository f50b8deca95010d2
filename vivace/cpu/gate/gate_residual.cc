#include "vivace/kernels/gate/gate_residual.h"

#include <algorithm>
#include <limits>

#include "vivace/cpu/gate/activated.h"
#include "vivace/cpu/rows.h"

namespace vivace::cpu {
namespace {

using kernels::GateResidualArgs;

void gate_residual_row(const GateResidualArgs& a, int64_t t) {
  const int64_t ada = a.gate == nullptr ? 0 : a.ada_row ? a.ada_row[t] : std::min<int64_t>(t, a.R - 1);
  const float factor = a.dt ? a.alpha * *a.dt : a.alpha;
  const bool lost = a.gate != nullptr && (ada < 0 || ada >= a.R);  // ada_row names a row that is not there
  for_chunks(a.H, [&](int64_t first, int64_t n) {
    float y[kChunk], p[kChunk];
    if (lost) {
      std::fill_n(y, n, std::numeric_limits<float>::quiet_NaN());
      return store_f32(a.out, a.dtype, t * a.out_stride + first, n, y);
    }
    load_f32(a.x, a.dtype, t * a.x_stride + first, n, y);
    if (a.bias != nullptr) {
      load_f32(a.bias, a.dtype, first, n, p);
      for (int64_t i = 0; i < n; ++i) y[i] += p[i];
    }
    if (a.table != nullptr) {
      load_f32(a.table, a.dtype, t % a.P * a.table_stride + first, n, p);
      for (int64_t i = 0; i < n; ++i) y[i] += p[i];
    }
    if (a.gate != nullptr) {
      load_f32(a.gate, a.dtype, ada * a.gate_stride + first, n, p);
      for (int64_t i = 0; i < n; ++i) y[i] *= p[i];
    }
    for (int64_t i = 0; i < n; ++i) y[i] *= factor;
    if (a.residual != nullptr) {
      load_f32(a.residual, a.dtype, t * a.residual_stride + first, n, p);
      for (int64_t i = 0; i < n; ++i) y[i] += p[i];
    }
    if (a.act != kernels::Activation::none)
      for (int64_t i = 0; i < n; ++i) y[i] = activated(a.act, y[i]);
    store_f32(a.out, a.dtype, t * a.out_stride + first, n, y);
  });
}

}  // namespace

void gate_residual(const GateResidualArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.H, [&](int64_t t) { gate_residual_row(a, t); });
}

}  // namespace vivace::cpu
