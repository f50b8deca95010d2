// fill on CUDA: formula in vivace/ops/fill.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/copy/fill.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/stretch.cuh"

namespace vivace::kernels {

/// Grid: T * ceil(H / stretch) blocks. Writes one element a value.
template <class E, StretchPolicy P>
__global__ void __launch_bounds__(P.threads) fill(const __grid_constant__ FillArgs a) {
  const StretchPlace<P> place(a.H);
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (place.t >= valid_rows(a.rows, a.T)) return;
  float v[P.vec];
#pragma unroll
  for (int i = 0; i < P.vec; ++i) v[i] = a.value;
  place.each([&](int, int col) { store<P.vec>(static_cast<E*>(a.out) + place.t * a.out_stride + col, v); });
}

}  // namespace vivace::kernels
