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

  /// Whether V consecutive elements of a row move as one access.
  template <int V>
  __device__ __forceinline__ bool wide() const {
    constexpr uint32_t kBytes = V * sizeof(Out) < 16 ? V * sizeof(Out) : 16;
    return a.N % V == 0 && a.out_stride % V == 0 && a.residual_stride % V == 0 && reinterpret_cast<uint64_t>(a.out) % kBytes == 0 &&
           reinterpret_cast<uint64_t>(a.residual) % kBytes == 0;
  }

  /// Output (t, n) .. (t, n + V - 1) from their sums; those at N and beyond are dropped. `vector` as wide<V>() said.
  template <int V>
  __device__ __forceinline__ void finish(int64_t t, int n, float (&y)[V], bool vector) const {
    float add[V];
    Out* out = static_cast<Out*>(a.out) + t * a.out_stride + n;
    const Out* residual = static_cast<const Out*>(a.residual) + t * a.residual_stride + n;
    if (a.residual != nullptr) {  // first: the load with the longest way
      if (vector) {
        load<V>(residual, add);
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i) add[i] = n + i < a.N ? to_float(residual[i]) : 0.0f;
      }
    }
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
      for (int i = 0; i < V; ++i) y[i] = activate(a.epilogue, y[i]);
    }
    if (a.residual != nullptr) {
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] = add[i] + y[i];
    }
    if (a.out_scale != nullptr) {
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] /= divisor;
    }
    if (vector) {
      store<V>(out, y);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i)
        if (n + i < a.N) out[i] = from_float<Out>(y[i]);
    }
  }
};

}  // namespace vivace::kernels
