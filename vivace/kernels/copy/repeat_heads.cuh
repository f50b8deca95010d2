// repeat_heads on CUDA: formula in vivace/ops/repeat_heads.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/copy/repeat_heads.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/stretch.cuh"

namespace vivace::kernels {

/// Grid: T * ceil(Hq * D / stretch) blocks. Moves every element once in and `repeats` times out: threads lie along out,
/// whose rows are written in order, and what is read again comes from the caches. E is an unsigned integer of the
/// element's size: bits are copied. An access lies within a head.
template <class E, StretchPolicy P>
__global__ void __launch_bounds__(P.threads) repeat_heads(const __grid_constant__ RepeatHeadsArgs a) {
  using Part = Vec<E, P.vec>;
  const StretchPlace<P> place(a.Hkv * a.repeats * a.D);
  int source[P.items];  // column of x
  place.each_clamped([&](int k, int col) {
    const int head = a.head.quotient(col), from = a.copies.quotient(head);
    source[k] = col - (head - from) * a.D;
  });
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (place.t >= valid_rows(a.rows, a.T)) return;
  const E* x = static_cast<const E*>(a.x) + place.t * a.x_stride;
  E* out = static_cast<E*>(a.out) + place.t * a.out_stride;
  Part part[P.items];
#pragma unroll
  for (int k = 0; k < P.items; ++k) part[k] = *reinterpret_cast<const Part*>(x + source[k]);
  place.each([&](int k, int col) { *reinterpret_cast<Part*>(out + col) = part[k]; });
}

}  // namespace vivace::kernels
