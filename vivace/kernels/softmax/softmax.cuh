// softmax on CUDA: formula in vivace/ops/softmax.h. One thread block a row; the row stays in registers
// where it fits, so that x is read once.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/softmax/softmax.h"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// Grid: T blocks. Moves (In + Out) * H bytes a row, In twice where items is 0 (the second time from L2).
/// A NaN or +inf makes the sum NaN and with it the row; only a row of nothing but -inf has a sum of 0.
template <class In, class Out, SoftmaxPolicy P>
__global__ void __launch_bounds__(P.threads) softmax(const __grid_constant__ SoftmaxArgs a) {
  constexpr int V = P.vec, kStep = P.threads * V;
  __shared__ float scratch[32];
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (static_cast<int>(blockIdx.x) >= valid_rows(a.rows, a.T)) return;
  const In* x = static_cast<const In*>(a.x) + blockIdx.x * a.x_stride;
  Out* out = static_cast<Out*>(a.out) + blockIdx.x * a.out_stride;
  const int first = static_cast<int>(threadIdx.x) * V;
  float max = Max::kIdentity, sum = 0;

  if constexpr (P.items > 0) {
    float z[P.items][V];
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < a.H) load<V>(x + first + k * kStep, z[k]);
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < a.H)
#pragma unroll
        for (int i = 0; i < V; ++i) max = fmaxf(max, z[k][i] *= a.scale);
    max = block_reduce<P.threads>(max, scratch, Max());
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < a.H)
#pragma unroll
        for (int i = 0; i < V; ++i) sum += z[k][i] = expf(z[k][i] - max);
    sum = block_reduce<P.threads>(sum, scratch, Sum());
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < a.H) {
#pragma unroll
        for (int i = 0; i < V; ++i) z[k][i] *= inverse;
        store<V>(out + first + k * kStep, z[k]);
      }
  } else {
    // Each thread sums in units of exp(its own maximum so far), then all sums come to the row's.
    for (int col = first; col < a.H; col += kStep) {
      float z[V], top = max;
      load<V>(x + col, z);
#pragma unroll
      for (int i = 0; i < V; ++i) top = fmaxf(top, z[i] *= a.scale);
      sum *= expf(max - top);
      max = top;
#pragma unroll
      for (int i = 0; i < V; ++i) sum += expf(z[i] - max);
    }
    const float row_max = block_reduce<P.threads>(max, scratch, Max());
    sum = block_reduce<P.threads>(sum * expf(max - row_max), scratch, Sum());
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int col = first; col < a.H; col += kStep) {
      float z[V];
      load<V>(x + col, z);
#pragma unroll
      for (int i = 0; i < V; ++i) z[i] = expf(z[i] * a.scale - row_max) * inverse;
      store<V>(out + col, z);
    }
  }
}

}  // namespace vivace::kernels
