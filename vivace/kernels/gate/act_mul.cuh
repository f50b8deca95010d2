// act_mul on CUDA: formula in vivace/ops/act_mul.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/gate/act_mul.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/divide.cuh"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// V neighbouring columns of a row by accesses of kAccess, as they lie in memory until they are used.
template <class In, int V, int kAccess = V>
struct ActMulPart {
  Vec<In, V> gate, up;

  __device__ __forceinline__ void load(const ActMulArgs& a, int64_t t, int col) {
    gate = load_raw<kAccess, V>(static_cast<const In*>(a.gate) + t * a.gate_stride + col);
    if (a.up != nullptr) up = load_raw<kAccess, V>(static_cast<const In*>(a.up) + t * a.up_stride + col);
  }
  __device__ __forceinline__ void compute(const ActMulArgs& a, int col, float (&y)[V]) const {
    to_floats(gate, y);
    activate_all(a.act, y);
    if (a.up != nullptr) {
      float factor[V];
      to_floats(up, factor);
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] *= factor[i];
    }
    if (a.inv_scale != nullptr)
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] *= a.inv_scale[col + i];
  }
};

/// f(k, col) for this thread's columns of a row: `items` of them, or all where items is 0.
template <ActMulPolicy P, class F>
__device__ __forceinline__ void act_mul_sweep(int first, int H, F&& f) {
  constexpr int kStep = P.threads * P.vec;
  if constexpr (P.items > 0) {
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (first + k * kStep < H) f(k, first + k * kStep);
  } else {
    for (int col = first; col < H; col += kStep) f(0, col);
  }
}

/// Grid: T blocks (whole_row), or T * ceil(H / stretch). Moves 2 In + 1 Out elements a value.
template <class In, class Out, ActMulPolicy P>
__global__ void __launch_bounds__(P.threads, P.blocks) act_mul(const __grid_constant__ ActMulArgs a) {
  constexpr int V = P.vec, kItems = P.items > 0 ? P.items : 1;
  __shared__ float scratch[32];
  const uint32_t stretches = P.whole_row ? 1 : (static_cast<uint32_t>(a.H) + P.stretch() - 1) / P.stretch();
  const int64_t t = blockIdx.x / stretches;
  const int first = static_cast<int>(blockIdx.x % stretches * P.stretch() + threadIdx.x * V);
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (t >= valid_rows(a.rows, a.T)) return;
  Out* out = static_cast<Out*>(a.out) + t * a.out_stride;
  ActMulPart<In, V> part[kItems];
  if constexpr (P.items > 0) act_mul_sweep<P>(first, a.H, [&](int k, int col) { part[k].load(a, t, col); });
  const auto compute = [&](int k, int col, float (&y)[V]) {
    if constexpr (P.items == 0) part[k].load(a, t, col);
    part[k].compute(a, col, y);
  };

  float scale = a.out_scale ? *a.out_scale : 1.0f;
  if constexpr (P.whole_row) {
    float amax = 0;
    act_mul_sweep<P>(first, a.H, [&](int k, int col) {
      float y[V];
      compute(k, col, y);
#pragma unroll
      for (int i = 0; i < V; ++i) amax = fmaxf(amax, fabsf(y[i]));
    });
    amax = block_reduce<P.threads, false>(amax, scratch, Max());
    scale = amax > 0 ? amax / 448.0f : 1.0f;
    if (threadIdx.x == 0) a.row_scale[t] = scale;
  }
  const RoughDivider by(scale);
  act_mul_sweep<P>(first, a.H, [&](int k, int col) {
    float y[V];
    compute(k, col, y);
    if (scale != 1.0f) by.divide(y);
    store<V>(out + col, y);
  });
}

}  // namespace vivace::kernels
