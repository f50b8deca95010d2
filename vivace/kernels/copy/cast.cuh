// cast on CUDA: formula in vivace/ops/cast.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/copy/cast.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/stretch.cuh"

namespace vivace::kernels {

/// Grid: T * ceil(H / stretch) blocks. Moves In + Out bytes an element.
template <class In, class Out, StretchPolicy P>
__global__ void __launch_bounds__(P.threads) cast(const __grid_constant__ CastArgs a) {
  const StretchPlace<P> place(a.H);
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = place.t;
  if (t >= valid_rows(a.rows, a.T)) return;
  const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
  Out* out = static_cast<Out*>(a.out) + t * a.out_stride;
  float v[P.items][P.vec];
  place.each_clamped([&](int k, int col) { load<P.vec>(x + col, v[k]); });
  place.each([&](int k, int col) { store<P.vec>(out + col, v[k]); });
}

}  // namespace vivace::kernels
