// What follows the sum in every gemm tactic: scales, bias, activation, residual, rounding. One order of
// operations, so that tactics differ in their sums alone.
#pragma once
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

__device__ __forceinline__ float load_as_float(const void* p, DType t, int64_t i) {
  if (t == DType::bf16) return to_float(static_cast<const bf16*>(p)[i]);
  if (t == DType::f16) return to_float(static_cast<const f16*>(p)[i]);
  return static_cast<const float*>(p)[i];
}

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
    return a.N % V == 0 && (a.out_stride | a.residual_stride | a.gate_stride) % count == 0 && reinterpret_cast<uint64_t>(a.out) % bytes == 0 &&
           reinterpret_cast<uint64_t>(a.residual) % bytes == 0 && reinterpret_cast<uint64_t>(a.gate) % bytes == 0;
  }

  /// Columns n .. n + V - 1 of token t from their sums; those at N and beyond are dropped. `vector` as wide<V>()
  /// said. n and V are even where a.gated.
  template <int V>
  __device__ __forceinline__ void finish(int64_t t, int n, float (&y)[V], bool vector) const {
    if (!a.gated) return finish_as<V, V>(t, n, y, vector);
    finish_as<V, V / 2>(t, n, y, vector);
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

  /// W outputs from V sums: V, or V / 2 where gated.
  template <int V, int W>
  __device__ __forceinline__ void finish_as(int64_t t, int n, float (&y)[V], bool vector) const {
    const int end = W == V ? a.N : a.N / 2, to = W == V ? n : n / 2;
    float add[W], factor[W], z[W];
    // Loads first: they have the longest way.
    if (a.residual != nullptr) load_row(static_cast<const Out*>(a.residual) + t * a.residual_stride, to, end, vector, add);
    if (a.gate != nullptr) load_row(static_cast<const Out*>(a.gate) + min(t, int64_t{a.gate_rows - 1}) * a.gate_stride, to, end, vector, factor);
#pragma unroll
    for (int i = 0; i < V; ++i) y[i] *= scale;
    if (a.x_row_scale != nullptr) {
      const float s = a.x_row_scale[t];
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] *= s;
    }
    if (a.w_row_scale != nullptr) {
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] *= n + i < a.N ? a.w_row_scale[n + i] : 0.0f;
    }
    if (a.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] += n + i < a.N ? load_as_float(a.bias, a.bias_dtype, n + i) : 0.0f;
    }
    if (a.epilogue != Activation::none) {
#pragma unroll
      for (int i = 0; i < V; i += V / W) y[i] = activate(a.epilogue, y[i]);
    }
#pragma unroll
    for (int i = 0; i < W; ++i) z[i] = W == V ? y[i] : y[V / W * i] * y[V / W * i + (W < V)];
    if (a.gate != nullptr) {
#pragma unroll
      for (int i = 0; i < W; ++i) z[i] *= factor[i];
    }
    if (a.residual != nullptr) {
#pragma unroll
      for (int i = 0; i < W; ++i) z[i] = add[i] + z[i];
    }
    if (a.out_scale != nullptr) {
#pragma unroll
      for (int i = 0; i < W; ++i) z[i] /= divisor;
    }
    Out* out = static_cast<Out*>(a.out) + t * a.out_stride + to;
    if (vector) {
      store<W>(out, z);
    } else {
#pragma unroll
      for (int i = 0; i < W; ++i)
        if (to + i < end) out[i] = from_float<Out>(z[i]);
    }
  }
};

}  // namespace vivace::kernels
