// delta_gates on CUDA: formula in vivace/ops/delta_gates.h.
#pragma once
#include "vivace/kernels/linear/delta_gates.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/as_float.cuh"

namespace vivace::kernels {

/// Grid: ceil(T * H / kThreads) blocks, a value a thread.
template <class E>
__global__ void __launch_bounds__(DeltaGatesArgs::kThreads) delta_gates(const __grid_constant__ DeltaGatesArgs args) {
  const int64_t at = int64_t{blockIdx.x} * DeltaGatesArgs::kThreads + threadIdx.x;
  const int64_t t = at / args.H;
  const int h = static_cast<int>(at - t * args.H);
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (t >= valid_rows(args.rows, args.T)) return;
  const float rate = expf(load_as_float(args.rate, args.rate_dtype, h));
  const float x = to_float(static_cast<const E*>(args.a)[t * args.a_stride + h]) +
                  load_as_float(args.bias, args.bias_dtype, h);
  const float y = to_float(static_cast<const E*>(args.b)[t * args.b_stride + h]);
  args.decay[t * args.decay_stride + h] = -rate * (x > 20.0f ? x : log1pf(expf(x)));
  args.beta[t * args.beta_stride + h] = 1.0f / (1.0f + expf(-y));
}

}  // namespace vivace::kernels
