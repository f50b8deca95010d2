// gate_heads on CUDA: formula in vivace/ops/gate_heads.h.
#pragma once
#include "vivace/kernels/gate/activation.h"
#include "vivace/kernels/gate/gate_heads.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/as_float.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// Grid: ceil(T * N / warps) blocks. With a norm a head is read twice, the second time from the first-level cache.
template <class E, GateHeadsPolicy P>
__global__ void __launch_bounds__(P.warps * 32) gate_heads(const __grid_constant__ GateHeadsArgs a) {
  constexpr int V = P.vec;
  // T * N is below 2^31; a division of 64 bits would be a call, with registers kept around it.
  const uint32_t head = blockIdx.x * P.warps + threadIdx.x / 32, N = static_cast<uint32_t>(a.N);
  const int64_t t = head / N;
  const int n = static_cast<int>(head % N), lane = static_cast<int>(threadIdx.x % 32);
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (t >= valid_rows(a.rows, a.T)) return;
  const E* const x = static_cast<const E*>(a.x) + t * a.x_stride + int64_t{n} * a.D;
  const E* const gate = static_cast<const E*>(a.gate) + t * a.gate_stride + int64_t{n} * a.G;
  E* const out = static_cast<E*>(a.out) + t * a.out_stride + int64_t{n} * a.D;
  float factor = 1.0f, v[V], g[V];
  if (a.weight != nullptr) {
    float square = 0.0f;
    for (int d = lane * V; d < a.D; d += 32 * V) {
      load<V>(x + d, v);
#pragma unroll
      for (int i = 0; i < V; ++i) square += v[i] * v[i];
    }
    factor = rsqrtf(warp_reduce(square, Sum{}) / static_cast<float>(a.D) + a.eps);
  }
  const bool one = a.G == 1;
  const float of_all = one ? to_float(gate[0]) : 0.0f;
  for (int d = lane * V; d < a.D; d += 32 * V) {
    load<V>(x + d, v);
    if (!one) load<V>(gate + d, g);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float y = one ? of_all : g[i], open = quick_reciprocal(1.0f + quick_exp2(-1.4426950409f * y));
      if (a.weight != nullptr) v[i] *= factor * load_as_float(a.weight, a.weight_dtype, d + i);
      v[i] *= a.silu ? y * open : open;
    }
    store<V>(out + d, v);
  }
}

}  // namespace vivace::kernels
