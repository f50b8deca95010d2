// rms_rows and rms_scale on CUDA: formulas in vivace/ops/rms_rows.h and rms_scale.h. Limit: memory bandwidth.
// Chosen when: every call of rms_rows and of rms_scale.
#pragma once
#include "vivace/kernels/norm/rms.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/as_float.cuh"
#include "vivace/kernels/tile/divide.cuh"

namespace vivace::kernels {

/// Grid: T blocks. Moves x in and out once, and a float for 8 columns. `Scaled`: X or e4m3.
template <class X, RmsRowsPolicy P, class Scaled = X>
__global__ void __launch_bounds__(P.threads) rms_rows(const __grid_constant__ RmsRowsArgs a) {
  ptx::launch_dependents();
  ptx::dependency_wait();
  const int64_t t = blockIdx.x;
  if (t >= valid_rows(a.rows, a.T)) return;
  const X* const x = static_cast<const X*>(a.x) + t * a.x_stride;
  const X* const scale =
      a.scale == nullptr ? nullptr : static_cast<const X*>(a.scale) + min(t, int64_t{a.R - 1}) * a.scale_stride;
  Scaled* const scaled = static_cast<Scaled*>(a.scaled) + t * a.scaled_stride;
  float by = 1.0f;
  if constexpr (!kIsSame<X, Scaled>) by = *a.scaled_scale;
  const auto get = [&](const X* from, int col, float (&v)[8]) {
    if constexpr (P.aligned) {
      load<8>(from + col, v);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = col + i < a.H ? to_float(from[col + i]) : 0.0f;
    }
  };
  for (int col = static_cast<int>(threadIdx.x) * 8; col < a.H; col += P.threads * 8) {
    float v[8], factor[8];
    get(x, col, v);
    if (scale != nullptr) {
      get(scale, col, factor);
#pragma unroll
      for (int i = 0; i < 8; ++i) factor[i] = __fadd_rn(1.0f, factor[i]);
    } else if (a.weight != nullptr) {
#pragma unroll
      for (int i = 0; i < 8; ++i) factor[i] = col + i < a.H ? load_as_float(a.weight, a.weight_dtype, col + i) : 0.0f;
    }
    static_assert(kRmsColumns == 8);
    a.squares[t * a.squares_stride + col / kRmsColumns] = __fadd_rn(
        __fadd_rn(rms_pair(v[0], v[1]), rms_pair(v[2], v[3])), __fadd_rn(rms_pair(v[4], v[5]), rms_pair(v[6], v[7])));
    if (scale != nullptr || a.weight != nullptr) {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(v[i], factor[i]);
    }
    if constexpr (!kIsSame<X, Scaled>) RoughDivider(by).divide_flat(v);
    if constexpr (P.aligned) {
      store<8>(scaled + col, v);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (col + i < a.H) scaled[col + i] = from_float<Scaled>(v[i]);
    }
  }
}

/// Grid: P.row_threads threads a row.
template <RmsScalePolicy P>
__global__ void __launch_bounds__(P.threads) rms_scale(const __grid_constant__ RmsScaleArgs a) {
  ptx::launch_dependents();
  ptx::dependency_wait();
  constexpr int kThreads = P.row_threads;
  const int64_t t = (int64_t{blockIdx.x} * P.threads + threadIdx.x) / kThreads;
  const bool valid = t < valid_rows(a.rows, a.T);
  const float sum = rms_sum<kThreads>(a.squares, t, threadIdx.x % kThreads, valid);
  if (valid && threadIdx.x % kThreads == 0) a.row_scale[t] = rms_factor(a.squares, sum);
}

}  // namespace vivace::kernels
