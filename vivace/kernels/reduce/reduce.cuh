// reduce on CUDA: formula in vivace/ops/reduce.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/reduce/reduce.h"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// As Max, but a row of -inf stays -inf.
struct MaxOfAny {
  static constexpr float kIdentity = -__builtin_bit_cast(float, 0x7f800000u);
  __device__ __forceinline__ float operator()(float p, float q) const { return fmaxf(p, q); }
};

/// Grid: T blocks. Reads each element once; P.flight accesses of 8 in flight a thread, which does not change the order
/// of a sum.
template <class In, ReducePolicy P>
__global__ void __launch_bounds__(P.threads) reduce(const __grid_constant__ ReduceArgs a) {
  constexpr int V = 8, kFlight = P.flight;
  __shared__ float scratch[32];
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = blockIdx.x;
  if (t >= valid_rows(a.rows, a.T)) return;
  const int H = valid_rows(a.cols, a.H);
  const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
  const bool adds = a.kind == Reduction::sum || a.kind == Reduction::mean;
  const float identity = a.kind == Reduction::max ? -__uint_as_float(0x7f800000u) : 0.0f;
  const uint32_t kept = a.kind == Reduction::amax ? 0x7fffffffu : 0xffffffffu;  // of a value's bits
  float total = identity;
  for (int64_t base = int64_t{threadIdx.x} * V; base < H; base += int64_t{P.threads} * V * kFlight) {
    float v[kFlight][V];
    constexpr int64_t kStep = int64_t{P.threads} * V;
    Vec<In, V> raw[kFlight];
    if (P.wide && base + (kFlight - 1) * kStep + V <= H) {  // no branch between the loads: they travel together
#pragma unroll
      for (int k = 0; k < kFlight; ++k) raw[k] = load_raw<V, V>(x + base + k * kStep);
#pragma unroll
      for (int k = 0; k < kFlight; ++k) to_floats(raw[k], v[k]);
    } else if (P.wide &&
               H % V == 0) {  // nor here: behind the row's end is its last group once more, which does not count
#pragma unroll
      for (int k = 0; k < kFlight; ++k) raw[k] = load_raw<V, V>(x + min(base + k * kStep, int64_t{H} - V));
#pragma unroll
      for (int k = 0; k < kFlight; ++k) {
        to_floats(raw[k], v[k]);
#pragma unroll
        for (float& f : v[k]) f = base + k * kStep < H ? f : identity;
      }
    } else {
#pragma unroll
      for (int k = 0; k < kFlight; ++k)
#pragma unroll
        for (int i = 0; i < V; ++i) v[k][i] = base + k * kStep + i < H ? to_float(x[base + k * kStep + i]) : identity;
    }
    if (adds) {
#pragma unroll
      for (int k = 0; k < kFlight; ++k)
#pragma unroll
        for (int i = 0; i < V; ++i) total += v[k][i];
    } else {
#pragma unroll
      for (int k = 0; k < kFlight; ++k) {
        float p[V];
#pragma unroll
        for (int i = 0; i < V; ++i) p[i] = __uint_as_float(__float_as_uint(v[k][i]) & kept);
        total = fmaxf(total, reduce_parts(p, MaxOfAny()));  // by halves: a maximum has no order
      }
    }
  }
  if (adds) {
    total = block_reduce<P.threads, false>(total, scratch, Sum());
  } else {
    total = block_reduce<P.threads, false>(total, scratch, MaxOfAny());
  }
  if (threadIdx.x == 0) a.out[t] = a.kind == Reduction::mean ? total / static_cast<float>(H) : total;
}

}  // namespace vivace::kernels
