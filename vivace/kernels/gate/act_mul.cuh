// act_mul on CUDA: formula in vivace/ops/act_mul.h.
#pragma once
#include "vivace/kernels/gate/act_mul.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/divide.cuh"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

template <class In, int V>
__device__ __forceinline__ void act_mul_at(const ActMulArgs& a, int64_t t, int col, float (&y)[V]) {
  float up[V];
  load<V>(static_cast<const In*>(a.gate) + t * a.gate_stride + col, y);
  if (a.up != nullptr) load<V>(static_cast<const In*>(a.up) + t * a.up_stride + col, up);
#pragma unroll
  for (int i = 0; i < V; ++i) y[i] = activate(a.act, y[i]);
  if (a.up != nullptr)
#pragma unroll
    for (int i = 0; i < V; ++i) y[i] *= up[i];
  if (a.inv_scale != nullptr)
#pragma unroll
    for (int i = 0; i < V; ++i) y[i] *= a.inv_scale[col + i];
}

/// Grid: T blocks (whole_row), or T * ceil(H / stretch). Moves 2 In + 1 Out elements a value.
template <class In, class Out, ActMulPolicy P>
__global__ void __launch_bounds__(P.threads) act_mul(const __grid_constant__ ActMulArgs a) {
  constexpr int V = P.vec;
  constexpr int kStep = P.threads * V;
  __shared__ float scratch[32];
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int stretches = P.whole_row ? 1 : (a.H + kStep * P.items - 1) / (kStep * P.items);
  const int64_t t = blockIdx.x / stretches;
  if (t >= valid_rows(a.rows, a.T)) return;
  Out* out = static_cast<Out*>(a.out) + t * a.out_stride;
  const int first = static_cast<int>(blockIdx.x % stretches) * kStep * P.items + static_cast<int>(threadIdx.x) * V;

  float scale = a.out_scale ? *a.out_scale : 1.0f;
  if constexpr (P.whole_row) {
    float amax = 0;
    for (int col = first; col < a.H; col += kStep) {
      float y[V];
      act_mul_at<In>(a, t, col, y);
#pragma unroll
      for (int i = 0; i < V; ++i) amax = fmaxf(amax, fabsf(y[i]));
    }
    amax = block_reduce<P.threads>(amax, scratch, Max());
    scale = amax > 0 ? amax / 448.0f : 1.0f;
    if (threadIdx.x == 0) a.row_scale[t] = scale;
  }
  const Divider divide(scale);
  const auto write = [&](int col, float (&y)[V]) {
    if (scale != 1.0f)
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] = divide(y[i]);
    store<V>(out + col, y);
  };
  if constexpr (P.whole_row) {
    for (int col = first; col < a.H; col += kStep) {
      float y[V];
      act_mul_at<In>(a, t, col, y);
      write(col, y);
    }
  } else {
    float y[P.items][V];
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < a.H) act_mul_at<In>(a, t, first + k * kStep, y[k]);
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < a.H) write(first + k * kStep, y[k]);
  }
}

}  // namespace vivace::kernels
