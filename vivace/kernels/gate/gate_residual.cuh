// gate_residual on CUDA: formula in vivace/ops/gate_residual.h.
#pragma once
#include "vivace/kernels/gate/gate_residual.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/stretch.cuh"

namespace vivace::kernels {

/// Grid: T * ceil(H / stretch) blocks. Moves three elements a value (x, residual, out).
template <class E, StretchPolicy P>
__global__ void __launch_bounds__(P.threads) gate_residual(const __grid_constant__ GateResidualArgs a) {
  constexpr int V = P.vec;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const StretchPlace<P> place(a.H);
  const int64_t t = place.t;
  if (t >= valid_rows(a.rows, a.T)) return;
  const auto at = [&](const void* base, int64_t row, int64_t stride) { return static_cast<const E*>(base) + row * stride; };
  const int64_t ada = a.gate == nullptr ? 0 : a.ada_row ? a.ada_row[t] : min(static_cast<int>(t), a.R - 1);
  const float factor = a.dt ? a.alpha * *a.dt : a.alpha;
  float y[P.items][V], r[P.items][V];
  place.each([&](int k, int col) {
    load<V>(at(a.x, t, a.x_stride) + col, y[k]);
    if (a.residual != nullptr) load<V>(at(a.residual, t, a.residual_stride) + col, r[k]);
  });
  place.each([&](int k, int col) {
    float p[V];
    if (a.bias != nullptr) {
      load<V>(at(a.bias, 0, 0) + col, p);
#pragma unroll
      for (int i = 0; i < V; ++i) y[k][i] += p[i];
    }
    if (a.table != nullptr) {
      load<V>(at(a.table, t % a.P, a.table_stride) + col, p);
#pragma unroll
      for (int i = 0; i < V; ++i) y[k][i] += p[i];
    }
    if (a.gate != nullptr) {
      load<V>(at(a.gate, ada, a.gate_stride) + col, p);
#pragma unroll
      for (int i = 0; i < V; ++i) y[k][i] *= p[i];
    }
#pragma unroll
    for (int i = 0; i < V; ++i) y[k][i] = a.residual != nullptr ? y[k][i] * factor + r[k][i] : y[k][i] * factor;
    store<V>(static_cast<E*>(a.out) + t * a.out_stride + col, y[k]);
  });
}

}  // namespace vivace::kernels
