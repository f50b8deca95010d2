// rope on CUDA: formula in vivace/ops/rope.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/rope/rotate.cuh"

namespace vivace::kernels {

/// Grid: T * P.blocks(N) blocks. Moves 2 elements a value.
template <class X, RopePolicy P>
__global__ void __launch_bounds__(P.threads) rope(const __grid_constant__ RopeArgs a) {
  __shared__ RopeAngles<P> angles;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int blocks = P.blocks(a.N);
  const int64_t t = blockIdx.x / blocks;
  if (t >= valid_rows(a.rows, a.T)) return;
  const int lane = static_cast<int>(threadIdx.x) % P.lanes;
  const int first =
      static_cast<int>(blockIdx.x % blocks) * P.slots() * P.heads + static_cast<int>(threadIdx.x) / P.lanes;
  const X* x = static_cast<const X*>(a.x) + t * a.x_stride;
  X* out = static_cast<X*>(a.out) + t * a.out_stride;
  HeadPart<P> part(lane, a.D, a.R, a.style);
  typename HeadPart<P>::template Raw<X> raw[P.heads];
#pragma unroll
  for (int n = 0; n < P.heads; ++n)
    if (first + n * P.slots() < a.N) part.load_head(x + int64_t{first + n * P.slots()} * a.D, raw[n]);
  angles.fill(a.inv_freq, a.R, static_cast<float>(a.pos[t]), a.attn_factor);
  __syncthreads();
  part.take_angles(angles, lane);
#pragma unroll
  for (int n = 0; n < P.heads; ++n) {
    if (first + n * P.slots() >= a.N) continue;
    float h[P.chunks][2 * P.vec];
    part.upcast(raw[n], h);
    part.rotate(h);
    part.store_head(out + int64_t{first + n * P.slots()} * a.D, h);
  }
}

}  // namespace vivace::kernels
