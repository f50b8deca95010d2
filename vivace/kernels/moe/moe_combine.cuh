// moe_combine on CUDA: formula in vivace/ops/moe_combine.h.
#pragma once
#include "vivace/kernels/moe/moe_combine.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/stretch.cuh"

namespace vivace::kernels {

/// Grid: T * ceil(N / stretch) blocks. Moves K rows of In in and one of Out out (two with a residual) a token.
template <class In, class Out, StretchPolicy P>
__global__ void __launch_bounds__(P.threads) moe_combine(const __grid_constant__ MoeCombineArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  const StretchPlace<P> place(a.N);
  const int64_t t = place.t, A = int64_t{a.T} * a.K;
  if (t >= valid_rows(a.rows, a.T)) return;
  const int32_t* row = a.place + t * a.place_stride;
  const float* weight = a.weights + t * a.weights_stride;
  float sum[P.items][P.vec] = {};
#pragma unroll 4
  for (int k = 0; k < a.K; ++k) {
    const int64_t at = row[k];
    const bool there = at >= 0 && at < A;
    const float w = weight[k];
    const In* y = static_cast<const In*>(a.y) + (there ? at : 0) * a.y_stride;
    place.each([&](int i, int col) {
      float v[P.vec];
      load<P.vec>(y + col, v);
#pragma unroll
      for (int e = 0; e < P.vec; ++e) sum[i][e] = fmaf(w, there ? v[e] : __uint_as_float(0x7fc00000u), sum[i][e]);
    });
  }
  place.each([&](int i, int col) {
    if (a.residual != nullptr) {
      float v[P.vec];
      load<P.vec>(static_cast<const Out*>(a.residual) + t * a.residual_stride + col, v);
#pragma unroll
      for (int e = 0; e < P.vec; ++e) sum[i][e] = v[e] + sum[i][e];
    }
    store<P.vec>(static_cast<Out*>(a.out) + t * a.out_stride + col, sum[i]);
  });
}

}  // namespace vivace::kernels
