// resample on CUDA: formula in vivace/ops/resample.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/audio/resample.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// Grid: (ceil(O / P.threads), B).
template <ResamplePolicy P>
__global__ void __launch_bounds__(P.threads) resample(const __grid_constant__ ResampleArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t o = int64_t{blockIdx.x} * P.threads + threadIdx.x;
  if (o >= a.O) return;
  const int64_t at = o * a.down, whole = at / a.up;
  const float* const filter = a.filter + (at - whole * a.up) * a.filter_stride;
  const int64_t from = whole + a.first;
  const float* const x = a.x + blockIdx.y * a.x_stride;
  const int begin = static_cast<int>(from < 0 ? (-from < a.K ? -from : a.K) : 0);
  const int end = static_cast<int>(from + a.K > a.N ? (a.N > from ? a.N - from : 0) : a.K);
  float part[kResampleParts] = {};
  for (int k = begin; k < end; k += kResampleParts)
#pragma unroll
    for (int i = 0; i < kResampleParts; ++i)
      if (k + i < end) part[i] = fmaf(filter[k + i], x[from + k + i], part[i]);
  a.out[blockIdx.y * a.out_stride + o] = reduce_parts(part, Sum());
}

}  // namespace vivace::kernels
