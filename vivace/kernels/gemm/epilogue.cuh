// What follows the sum in every gemm tactic: scales, bias, activation, residual, rounding. One order of
// operations, none of them fused with the next, so that tactics differ in their sums alone.
#pragma once
#include "vivace/kernels/gate/activation.h"
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/kernels/tile/as_float.cuh"

namespace vivace::kernels {

/// Made once a thread, after the dependency wait.
template <class Out>
struct GemmEpilogue {
  const GemmArgs& a;
  float scale, divisor;

  __device__ __forceinline__ explicit GemmEpilogue(const GemmArgs& args) : a(args), scale(args.alpha), divisor(1.0f) {
    if (a.x_scale != nullptr) scale *= *a.x_scale;
    if (a.w_scale != nullptr) scale *= *a.w_scale;
    if (a.out_scale != nullptr) divisor = *a.out_scale;
  }

  /// Whether V consecutive columns of a row move as one access.
  template <int V>
  __device__ __forceinline__ bool wide() const {
    const int count = a.gated ? V / 2 : V;
    const uint32_t bytes = count * sizeof(Out) < 16 ? count * sizeof(Out) : 16;
    return a.N % V == 0 && (a.out_stride | a.residual_stride | a.gate_stride) % count == 0 &&
           reinterpret_cast<uint64_t>(a.out) % bytes == 0 && reinterpret_cast<uint64_t>(a.residual) % bytes == 0 &&
           reinterpret_cast<uint64_t>(a.gate) % bytes == 0;
  }

  /// Columns n .. n + V - 1 of token t from their sums; those at N and beyond are dropped. `vector` as wide<V>()
  /// said. n and V are even where a.gated.
  template <int V>
  __device__ __forceinline__ void finish(int64_t t, int n, const float (&y)[V], bool vector) const {
    float rows[1][V];
#pragma unroll
    for (int i = 0; i < V; ++i) rows[0][i] = y[i];
    finish_rows(t, 1, t + 1, n, rows, vector);
  }
  /// The same for tokens t, t + step, ..., of which those at `end` and beyond are dropped: one decision on each
  /// part of the epilogue for all of them.
  template <int V, int R>
  __device__ __forceinline__ void finish_rows(int64_t t, int step, int64_t end, int n, float (&y)[R][V],
                                              bool vector) const {
    if (!a.gated) return finish_as<V>(t, step, end, n, y, vector);
    finish_as<V / 2>(t, step, end, n, y, vector);
  }

 private:
  /// Elements n .. of a row of out_dtype that ends at `end`.
  template <int W>
  __device__ __forceinline__ static void load_row(const Out* row, int n, int end, bool vector, float (&v)[W]) {
    if (vector) {
      load<W>(row + n, v);
    } else {
#pragma unroll
      for (int i = 0; i < W; ++i) v[i] = n + i < end ? to_float(row[n + i]) : 0.0f;
    }
  }

  /// W outputs a token from V sums: V, or V / 2 where gated.
  template <int W, int V, int R>
  __device__ __forceinline__ void finish_as(int64_t t, int step, int64_t end, int n, float (&y)[R][V],
                                            bool vector) const {
    constexpr int kEach = V / W;  // sums an output
    const int last = a.N / kEach, to = n / kEach;
    float add[R][W], factor[R][W], z[R][W];
    // Loads first: they have the longest way.
    if (a.residual != nullptr) {
#pragma unroll
      for (int r = 0; r < R; ++r)
        if (t + r * step < end)
          load_row(static_cast<const Out*>(a.residual) + (t + r * step) * a.residual_stride, to, last, vector, add[r]);
    }
    if (a.gate != nullptr) {
#pragma unroll
      for (int r = 0; r < R; ++r)
        load_row(static_cast<const Out*>(a.gate) + min(t + r * step, int64_t{a.gate_rows - 1}) * a.gate_stride, to,
                 last, vector, factor[r]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int i = 0; i < V; ++i) y[r][i] = __fmul_rn(y[r][i], scale);
    if (a.x_row_scale != nullptr) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const float s = t + r * step < end ? a.x_row_scale[t + r * step] : 0.0f;
#pragma unroll
        for (int i = 0; i < V; ++i) y[r][i] = __fmul_rn(y[r][i], s);
      }
    }
    if (a.w_row_scale != nullptr) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float s = n + i < a.N ? a.w_row_scale[n + i] : 0.0f;
#pragma unroll
        for (int r = 0; r < R; ++r) y[r][i] = __fmul_rn(y[r][i], s);
      }
    }
    if (a.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float b = n + i < a.N ? load_as_float(a.bias, a.bias_dtype, n + i) : 0.0f;
#pragma unroll
        for (int r = 0; r < R; ++r) y[r][i] = __fadd_rn(y[r][i], b);
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int i = 0; i < W; ++i) z[r][i] = y[r][kEach * i];
    activate_all(a.epilogue, *reinterpret_cast<float(*)[R * W]>(&z));
    if constexpr (kEach > 1) {
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int i = 0; i < W; ++i) z[r][i] = __fmul_rn(z[r][i], y[r][kEach * i + kEach - 1]);
    }
    if (a.gate != nullptr) {
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int i = 0; i < W; ++i) z[r][i] = __fmul_rn(z[r][i], factor[r][i]);
    }
    if (a.residual != nullptr) {
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int i = 0; i < W; ++i) z[r][i] = __fadd_rn(add[r][i], z[r][i]);
    }
    if (a.out_scale != nullptr) {
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int i = 0; i < W; ++i) z[r][i] /= divisor;
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (t + r * step >= end) continue;
      Out* out = static_cast<Out*>(a.out) + (t + r * step) * a.out_stride + to;
      if (vector) {
        store<W>(out, z[r]);
      } else {
#pragma unroll
        for (int i = 0; i < W; ++i)
          if (to + i < last) out[i] = from_float<Out>(z[r][i]);
      }
    }
  }
};

}  // namespace vivace::kernels
