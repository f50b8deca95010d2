// cast on CUDA: formula in vivace/ops/cast.h.
#pragma once
#include "vivace/kernels/copy/cast.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Grid: T * ceil(H / stretch) blocks. Moves In + Out bytes an element.
template <class In, class Out, CastPolicy P>
__global__ void __launch_bounds__(P.threads) cast(const __grid_constant__ CastArgs a) {
  constexpr int kStep = P.threads * P.vec;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int stretches = (a.H + kStep * P.items - 1) / (kStep * P.items);
  const int64_t t = blockIdx.x / stretches;
  if (t >= valid_rows(a.rows, a.T)) return;
  const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
  Out* out = static_cast<Out*>(a.out) + t * a.out_stride;
  const int first = static_cast<int>(blockIdx.x % stretches) * kStep * P.items + static_cast<int>(threadIdx.x) * P.vec;
  float v[P.items][P.vec];
#pragma unroll
  for (int k = 0; k < P.items; ++k) load<P.vec>(x + min(first + k * kStep, a.H - P.vec), v[k]);  // no branch: they travel together
#pragma unroll
  for (int k = 0; k < P.items; ++k)
    if (first + k * kStep < a.H) store<P.vec>(out + first + k * kStep, v[k]);
}

}  // namespace vivace::kernels
