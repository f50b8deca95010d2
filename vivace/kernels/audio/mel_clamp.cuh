// mel_clamp on CUDA: formula in vivace/ops/mel_clamp.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/audio/mel_clamp.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Grid: ceil(T / warps of a block).
template <class Out, MelClampPolicy P>
__global__ void __launch_bounds__(P.threads) mel_clamp(const __grid_constant__ MelClampArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int t = static_cast<int>(blockIdx.x * (P.threads / 32) + threadIdx.x / 32);
  if (t >= valid_rows(a.rows, a.T)) return;
  const int b = a.frames.quotient(t), f = a.frames.remainder(t, b);
  const bool silent = a.length != nullptr && f >= a.length[b];
  const float least = a.peak[b] - a.range;
  const float* const x = a.x + t * a.x_stride;
  Out* const out = static_cast<Out*>(a.out) + t * a.out_stride;
  for (int m = static_cast<int>(threadIdx.x) % 32; m < a.M; m += 32)
    out[m] = from_float<Out>(silent ? 0.0f : clamped_mel(x[m], least));
}

}  // namespace vivace::kernels
