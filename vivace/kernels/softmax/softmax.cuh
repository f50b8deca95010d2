// softmax on CUDA: formula in vivace/ops/softmax.h. One thread block a row; the row stays in registers
// where it fits, so that x is read once.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/softmax/softmax.h"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// A sum of exponentials in units of exp(max).
struct ExpSum {
  float max, sum;
  __device__ __forceinline__ float in_units_of(float other) const { return sum * expf(max - other); }
};

/// The row's, in every thread, behind one barrier: maxima and sums travel together, each warp's sum in
/// units of its own maximum.
template <int kThreads>
__device__ __forceinline__ ExpSum exp_sum_of_row(ExpSum s, ExpSum* scratch) {
  if constexpr (kThreads == 32) return s;
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) scratch[threadIdx.x / 32] = s;
  __syncthreads();
  s = lane < kWarps ? scratch[lane] : ExpSum{Max::kIdentity, 0.0f};
  const float max = warp_reduce(s.max, Max());
  return {max, warp_reduce(s.in_units_of(max), Sum())};
}

/// Grid: T blocks. Moves (In + Out) * H bytes a row, In twice where items is 0 (the second time from L2).
/// A NaN or +inf makes the sum NaN and with it the row; only a row of nothing but -inf has a sum of 0.
template <class In, class Out, SoftmaxPolicy P>
__global__ void __launch_bounds__(P.threads) softmax(const __grid_constant__ SoftmaxArgs a) {
  constexpr int V = P.vec, A = P.wide ? V : 1, kStep = P.threads * V;
  __shared__ ExpSum scratch[P.threads / 32];
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (static_cast<int>(blockIdx.x) >= valid_rows(a.rows, a.T)) return;
  const In* x = static_cast<const In*>(a.x) + blockIdx.x * a.x_stride;
  Out* out = static_cast<Out*>(a.out) + blockIdx.x * a.out_stride;
  const int first = static_cast<int>(threadIdx.x) * V;
  ExpSum own{Max::kIdentity, 0.0f};

  if constexpr (P.items > 0) {
    float z[P.items][V];
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < a.H) load_by<A>(x + first + k * kStep, z[k]);
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < a.H)
#pragma unroll
        for (int i = 0; i < V; ++i) own.max = fmaxf(own.max, z[k][i] = __fmul_rn(z[k][i], a.scale));
    own.max = warp_reduce(own.max, Max());
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < a.H)
#pragma unroll
        for (int i = 0; i < V; ++i) own.sum += z[k][i] = expf(__fsub_rn(z[k][i], own.max));
    own.sum = warp_reduce(own.sum, Sum());
    const ExpSum row = exp_sum_of_row<P.threads>(own, scratch);
    const float factor = row.sum == 0.0f ? 0.0f : expf(own.max - row.max) / row.sum;
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < a.H) {
#pragma unroll
        for (int i = 0; i < V; ++i) z[k][i] *= factor;
        store_by<A>(out + first + k * kStep, z[k]);
      }
  } else {
    // Each thread sums in units of exp(its own maximum so far), then all sums come to the row's.
    for (int col = first; col < a.H; col += kStep) {
      float z[V], top = own.max;
      load_by<A>(x + col, z);
#pragma unroll
      for (int i = 0; i < V; ++i) top = fmaxf(top, z[i] = __fmul_rn(z[i], a.scale));
      own.sum = own.in_units_of(top);
      own.max = top;
#pragma unroll
      for (int i = 0; i < V; ++i) own.sum += expf(__fsub_rn(z[i], own.max));
    }
    const float max = warp_reduce(own.max, Max());
    const ExpSum row = exp_sum_of_row<P.threads>({max, warp_reduce(own.in_units_of(max), Sum())}, scratch);
    const float inverse = row.sum == 0.0f ? 0.0f : 1.0f / row.sum;
    for (int col = first; col < a.H; col += kStep) {
      float z[V];
      load_by<A>(x + col, z);
#pragma unroll
      for (int i = 0; i < V; ++i) z[i] = expf(__fsub_rn(__fmul_rn(z[i], a.scale), row.max)) * inverse;
      store_by<A>(out + col, z);
    }
  }
}

}  // namespace vivace::kernels
