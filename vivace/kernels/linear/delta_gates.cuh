// delta_gates on CUDA: formula in vivace/ops/delta_gates.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/linear/delta_gates.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/as_float.cuh"

namespace vivace::kernels {

/// Of token t and head h.
template <class E>
__device__ __forceinline__ float delta_decay(const DeltaProjections& in, int64_t t, int h) {
  const float rate = expf(load_as_float(in.rate, in.rate_dtype, h));
  const float x = to_float(static_cast<const E*>(in.a)[t * in.a_stride + h]) + load_as_float(in.bias, in.bias_dtype, h);
  return -rate * (x > 20.0f ? x : log1pf(expf(x)));
}
template <class E>
__device__ __forceinline__ float delta_beta(const DeltaProjections& in, int64_t t, int h) {
  return 1.0f / (1.0f + expf(-to_float(static_cast<const E*>(in.b)[t * in.b_stride + h])));
}

/// Grid: ceil(T * H / kThreads) blocks, a value a thread.
template <class E>
__global__ void __launch_bounds__(DeltaGatesArgs::kThreads) delta_gates(const __grid_constant__ DeltaGatesArgs args) {
  const int64_t at = int64_t{blockIdx.x} * DeltaGatesArgs::kThreads + threadIdx.x;
  const int64_t t = at / args.H;
  const int h = static_cast<int>(at - t * args.H);
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (t >= valid_rows(args.rows, args.T)) return;
  args.decay[t * args.decay_stride + h] = delta_decay<E>(args.in, t, h);
  args.beta[t * args.beta_stride + h] = delta_beta<E>(args.in, t, h);
}

}  // namespace vivace::kernels
