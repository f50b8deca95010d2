// gate_residual on CUDA: formula in vivace/ops/gate_residual.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/gate/gate_residual.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/stretch.cuh"

namespace vivace::kernels {

/// Grid: T * ceil(H / stretch) blocks. Moves three elements a value (x, residual, out).
template <class E, StretchPolicy P>
__global__ void __launch_bounds__(P.threads) gate_residual(const __grid_constant__ GateResidualArgs a) {
  constexpr int V = P.vec;
  const StretchPlace<P> place(a.H);
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = place.t;
  if (t >= valid_rows(a.rows, a.T)) return;
  const auto at = [&](const void* base, int64_t row, int64_t stride) {
    return static_cast<const E*>(base) + row * stride;
  };
  const int64_t ada = a.gate == nullptr ? 0 : a.ada_row ? a.ada_row[t] : min(static_cast<int>(t), a.R - 1);
  const bool lost =
      ada < 0 ||
      ada >= a.R;  // ada_row names a row that is not there: the token is NaN. Looked at where there is a gate
  const float factor = a.dt ? a.alpha * *a.dt : a.alpha;
  Vec<E, V> x[P.items], r[P.items], g[P.items];
  place.each_clamped([&](int k, int col) { x[k] = load_raw<V, V>(at(a.x, t, a.x_stride) + col); });
  if (a.residual != nullptr)
    place.each_clamped([&](int k, int col) { r[k] = load_raw<V, V>(at(a.residual, t, a.residual_stride) + col); });
  if (a.gate != nullptr)
    place.each_clamped([&](int k, int col) { g[k] = load_raw<V, V>(at(a.gate, lost ? 0 : ada, a.gate_stride) + col); });
  place.each([&](int k, int col) {
    float y[V], p[V];
    to_floats(x[k], y);
    if (a.bias != nullptr) {
      load<V>(at(a.bias, 0, 0) + col, p);
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] += p[i];
    }
    if (a.table != nullptr) {
      load<V>(at(a.table, t % a.P, a.table_stride) + col, p);
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] += p[i];
    }
    if (a.gate != nullptr) {
      to_floats(g[k], p);
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] = lost ? __uint_as_float(0x7fc00000u) : y[i] * p[i];
    }
    if (a.residual != nullptr) {
      to_floats(r[k], p);
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] = fmaf(y[i], factor, p[i]);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] *= factor;
    }
    activate_all(a.act, y);
    store<V>(static_cast<E*>(a.out) + t * a.out_stride + col, y);
  });
}

}  // namespace vivace::kernels
