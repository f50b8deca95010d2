// rms_rows and rms_scale on CUDA: formulas in vivace/ops/rms_rows.h and rms_scale.h. Limit: memory bandwidth.
#pragma once
#include "vivace/kernels/norm/rms.cuh"
#include "vivace/kernels/ptx/pdl.cuh"

namespace vivace::kernels {

/// Grid: T blocks. Moves x in and out once, and a float for 16 columns.
template <class X, RmsRowsPolicy P>
__global__ void __launch_bounds__(P.threads) rms_rows(const __grid_constant__ RmsRowsArgs a) {
  ptx::launch_dependents();
  ptx::dependency_wait();
  const int64_t t = blockIdx.x;
  if (t >= valid_rows(a.rows, a.T)) return;
  const X* const x = static_cast<const X*>(a.x) + t * a.x_stride;
  const X* const scale = a.scale == nullptr ? nullptr : static_cast<const X*>(a.scale) + min(t, int64_t{a.R - 1}) * a.scale_stride;
  X* const scaled = static_cast<X*>(a.scaled) + t * a.scaled_stride;
  const auto get = [&](const X* from, int col, float (&v)[8]) {
    if constexpr (P.aligned) {
      if (col < a.H) return load<8>(from + col, v);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = col + i < a.H ? to_float(from[col + i]) : 0.0f;
  };
  // Whole warps go along to the end: two threads share a sum.
  for (int first = 0; first < a.H; first += P.threads * 8) {
    const int col = first + static_cast<int>(threadIdx.x) * 8;
    float v[8], factor[8];
    get(x, col, v);
    if (scale != nullptr) get(scale, col, factor);
    const float eight = __fadd_rn(__fadd_rn(rms_pair(v[0], v[1]), rms_pair(v[2], v[3])), __fadd_rn(rms_pair(v[4], v[5]), rms_pair(v[6], v[7])));
    const float both = __fadd_rn(eight, __shfl_xor_sync(0xffffffffu, eight, 1));
    if (threadIdx.x % 2 == 0 && col < a.H) a.squares[t * a.squares_stride + col / kRmsColumns] = both;
    if (scale != nullptr) {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(v[i], __fadd_rn(1.0f, factor[i]));
    }
    if constexpr (P.aligned) {
      if (col < a.H) store<8>(scaled + col, v);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (col + i < a.H) scaled[col + i] = from_float<X>(v[i]);
    }
  }
}

/// Grid: two threads a row.
template <RmsScalePolicy P>
__global__ void __launch_bounds__(P.threads) rms_scale(const __grid_constant__ RmsScaleArgs a) {
  ptx::launch_dependents();
  ptx::dependency_wait();
  const int64_t t = (int64_t{blockIdx.x} * P.threads + threadIdx.x) / 2;
  const bool valid = t < valid_rows(a.rows, a.T);
  const float mine = valid ? rms_half(a.squares, t, threadIdx.x % 2) : 0.0f, other = __shfl_xor_sync(0xffffffffu, mine, 1);
  if (valid && threadIdx.x % 2 == 0) a.row_scale[t] = rms_factor(a.squares, mine, other);
}

}  // namespace vivace::kernels
