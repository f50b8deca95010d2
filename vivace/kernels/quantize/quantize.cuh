// quantize on CUDA: formula in vivace/ops/quantize.h.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/quantize/quantize.h"
#include "vivace/kernels/tile/divide.cuh"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

template <class Out>
constexpr float kQuantTop = 448.0f;
template <>
inline constexpr float kQuantTop<signed char> = 127.0f;

/// Largest magnitude -> scale; 1 where everything is zero.
template <class Out>
__device__ __forceinline__ float quant_scale(float amax) {
  return amax > 0 ? amax / kQuantTop<Out> : 1.0f;
}

template <class Out, int V>
__device__ __forceinline__ void store_quantized(Out* p, const float (&x)[V], const Divider& by) {
  float q[V];
#pragma unroll
  for (int i = 0; i < V; ++i) q[i] = by(x[i]);
  if constexpr (sizeof(Out) == 1 && kQuantTop<Out> == 127.0f) {
    Vec<Out, V> raw;
#pragma unroll
    for (int i = 0; i < V; ++i)  // NaN converts to 0
      raw.v[i] = q[i] != q[i] ? 0 : static_cast<Out>(__float2int_rn(fminf(fmaxf(q[i], -127.0f), 127.0f)));
    *reinterpret_cast<Vec<Out, V>*>(p) = raw;
  } else {
    store<V>(p, q);
  }
}

template <int V>
__device__ __forceinline__ float largest(const float (&x)[V], float amax) {
#pragma unroll
  for (int i = 0; i < V; ++i) amax = fmaxf(amax, fabsf(x[i]));
  return amax;
}

template <class In, class Out, QuantizePolicy P>
__device__ __forceinline__ void quantize_given(const QuantizeArgs& a) {
  constexpr int kStep = P.threads * P.vec;
  const uint32_t stretches = (static_cast<uint32_t>(a.H) + kStep * P.items - 1) / (kStep * P.items);
  const int64_t t = blockIdx.x / stretches;
  const float scale = a.amax ? quant_scale<Out>(*a.amax) : *a.out_scale;
  if (a.tensor_scale != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *a.tensor_scale = scale;
  if (t >= valid_rows(a.rows, a.T)) return;
  const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
  Out* out = static_cast<Out*>(a.out) + t * a.out_stride;
  const int first = static_cast<int>(blockIdx.x % stretches) * kStep * P.items + static_cast<int>(threadIdx.x) * P.vec;
  float v[P.items][P.vec];
#pragma unroll
  for (int k = 0; k < P.items; ++k)
    if (first + k * kStep < a.H) load<P.vec>(x + first + k * kStep, v[k]);
  const Divider by(scale);
#pragma unroll
  for (int k = 0; k < P.items; ++k)
    if (first + k * kStep < a.H) store_quantized(out + first + k * kStep, v[k], by);
}

template <class In, class Out, QuantizePolicy P>
__device__ __forceinline__ void quantize_row(const QuantizeArgs& a) {
  constexpr int kStep = P.threads * P.vec;
  constexpr int kKept = P.items > 0 ? P.items : 1;
  __shared__ float scratch[32];
  const int64_t t = blockIdx.x;
  if (t >= valid_rows(a.rows, a.T)) return;
  const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
  Out* out = static_cast<Out*>(a.out) + t * a.out_stride;
  const int first = static_cast<int>(threadIdx.x) * P.vec;
  float v[kKept][P.vec], amax = 0;
  if constexpr (P.items > 0) {
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (first + k * kStep < a.H) load<P.vec>(x + first + k * kStep, v[k]);
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (first + k * kStep < a.H) amax = largest(v[k], amax);
  } else {
    for (int64_t col = first; col < a.H; col += kStep) {
      load<P.vec>(x + col, v[0]);
      amax = largest(v[0], amax);
    }
  }
  const float scale = quant_scale<Out>(block_reduce<P.threads>(amax, scratch, Max()));
  if (threadIdx.x == 0) a.row_scale[t] = scale;
  const Divider by(scale);
  if constexpr (P.items > 0) {
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (first + k * kStep < a.H) store_quantized(out + first + k * kStep, v[k], by);
  } else {
    for (int64_t col = first; col < a.H; col += kStep) {
      load<P.vec>(x + col, v[0]);
      store_quantized(out + col, v[0], by);
    }
  }
}

/// P.lanes() neighbouring lanes share 128 columns; lanes whose columns lie beyond H hold zeros.
template <class In, class Out, QuantizePolicy P>
__device__ __forceinline__ void quantize_block(const QuantizeArgs& a) {
  constexpr int kLanes = P.lanes();
  static_assert(kLanes * P.vec * P.items == kQuantBlock && kLanes <= 32);
  const uint32_t blocks = (static_cast<uint32_t>(a.H) + kQuantBlock - 1) / kQuantBlock;
  const int64_t unit = (int64_t{blockIdx.x} * P.threads + threadIdx.x) / kLanes;
  const int64_t t = unit / blocks;
  const int b = static_cast<int>(unit - t * blocks), lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool live = t < valid_rows(a.rows, a.T);  // others still take part in the shuffles
  const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
  float v[P.items][P.vec] = {}, amax = 0;
#pragma unroll
  for (int k = 0; k < P.items; ++k) {
    const int col = b * kQuantBlock + (k * kLanes + lane) * P.vec;
    if (live && col < a.H) load<P.vec>(x + col, v[k]);
  }
#pragma unroll
  for (int k = 0; k < P.items; ++k) amax = largest(v[k], amax);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step >>= 1) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
  if (!live) return;
  const float scale = quant_scale<Out>(amax);
  if (lane == 0) a.block_scale[t * a.block_stride + b] = scale;
  const Divider by(scale);
  Out* out = static_cast<Out*>(a.out) + t * a.out_stride;
#pragma unroll
  for (int k = 0; k < P.items; ++k) {
    const int col = b * kQuantBlock + (k * kLanes + lane) * P.vec;
    if (col < a.H) store_quantized(out + col, v[k], by);
  }
}

/// Grid: given: T * ceil(H / stretch); row: T; block: all 128-blocks. Moves In + 1 bytes a value.
template <class In, class Out, QuantizePolicy P>
__global__ void __launch_bounds__(P.threads) quantize(const __grid_constant__ QuantizeArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  if constexpr (P.scope == QuantScope::given) quantize_given<In, Out, P>(a);
  else if constexpr (P.scope == QuantScope::row) quantize_row<In, Out, P>(a);
  else quantize_block<In, Out, P>(a);
}

}  // namespace vivace::kernels
