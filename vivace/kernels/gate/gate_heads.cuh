// gate_heads on CUDA: formula in vivace/ops/gate_heads.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/gate/activation.h"
#include "vivace/kernels/gate/gate_heads.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/as_float.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// 1 / (1 + exp(-y)), within 8 units in the last place also where it is small: what the exponent's product with log2(e)
/// lost is worth |y| units, so it is made up for.
__device__ __forceinline__ float sigmoid(float y) {
  constexpr float kLog2e = 1.44269502f, kRest = 1.92596299e-8f, kLn2 = 0.693147182f;
  const float e = -kLog2e * y, lost = fmaf(-kLog2e, y, -e) - kRest * y;
  const float power = quick_exp2(e) * (fabsf(e) < 256.0f ? fmaf(kLn2, lost, 1.0f) : 1.0f);  // beyond: 0 or infinite
  return quick_reciprocal(1.0f + power);
}

/// N neighbours of a weight from element i on, at an address that whole accesses of its type allow.
template <int N>
__device__ __forceinline__ void load_weights(const void* p, DType t, int64_t i, float (&out)[N]) {
  if (t == DType::bf16) load<N>(static_cast<const bf16*>(p) + i, out);
  else if (t == DType::f16) load<N>(static_cast<const f16*>(p) + i, out);
  else load<N>(static_cast<const float*>(p) + i, out);
}

/// Grid: ceil(T * N / warps) blocks. A head that one access of each lane holds is asked for at once with its gate and
/// weight; longer ones are read twice where there is a norm, the second time from the first-level cache.
template <class E, GateHeadsPolicy P>
__global__ void __launch_bounds__(P.warps * 32) gate_heads(const __grid_constant__ GateHeadsArgs a) {
  // Each lane's share is the same neighbours by one access or by many: the sum of squares has one order.
  constexpr int V = 16 / sizeof(E);
  static_assert(!P.held || P.vec == V);
  // T * N is below 2^31; a division of 64 bits would be a call, with registers kept around it.
  const uint32_t head = blockIdx.x * P.warps + threadIdx.x / 32, N = static_cast<uint32_t>(a.N);
  const int64_t t = head / N;
  const int n = static_cast<int>(head % N), lane = static_cast<int>(threadIdx.x % 32);
  ptx::touch_parameters(a);
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (t >= valid_rows(a.rows, a.T)) return;
  const E* const x = static_cast<const E*>(a.x) + t * a.x_stride + int64_t{n} * a.D;
  const E* const gate = static_cast<const E*>(a.gate) + t * a.gate_stride + int64_t{n} * a.G;
  E* const out = static_cast<E*>(a.out) + t * a.out_stride + int64_t{n} * a.D;
  const bool normed = a.weight != nullptr, one = a.G == 1;
  const float of_all = one ? to_float(gate[0]) : 0.0f;
  float v[V] = {}, g[V], w[V], factor = 1.0f, square = 0.0f;
  const auto take = [&](int d) {
    load<V>(x + d, v);
    if (!one) load<V>(gate + d, g);
    if (normed) load_weights<V>(a.weight, a.weight_dtype, d, w);
  };
  if constexpr (P.held) {
    if (lane * V < a.D) take(lane * V);
#pragma unroll
    for (int i = 0; i < V; ++i) square += v[i] * v[i];
  } else if (normed) {
    for (int d = lane * V; d < a.D; d += 32 * V) {
      if constexpr (P.vec == V) {
        load<V>(x + d, v);
#pragma unroll
        for (int i = 0; i < V; ++i) square += v[i] * v[i];
      } else {
        for (int i = d; i < min(d + V, a.D); ++i) square += to_float(x[i]) * to_float(x[i]);
      }
    }
  }
  if (normed) factor = rsqrtf(warp_reduce(square, Sum{}) / static_cast<float>(a.D) + a.eps);
  const auto gated = [&](float value, float y, float weight) {
    const float open = sigmoid(y);
    if (normed) value *= factor * weight;
    return value * (a.silu ? y * open : open);
  };
  for (int d = lane * V; d < a.D; d += 32 * V) {
    if constexpr (P.vec == V) {
      if constexpr (!P.held) take(d);
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] = gated(v[i], one ? of_all : g[i], w[i]);
      store<V>(out + d, v);
    } else {
      for (int i = d; i < min(d + V, a.D); ++i) {
        const float y = one ? of_all : to_float(gate[i]);
        const float weight = normed ? load_as_float(a.weight, a.weight_dtype, i) : 1.0f;
        out[i] = from_float<E>(gated(to_float(x[i]), y, weight));
      }
    }
  }
}

}  // namespace vivace::kernels
