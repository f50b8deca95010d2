// norm on CUDA: formula in vivace/ops/norm.h. One thread block a row; the row stays in registers where
// it fits, so that x and residual are read once.
#pragma once
#include "vivace/kernels/norm/norm.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// One row's view of the arguments.
template <class X, class W, class Out, int V>
struct NormRow {
  const NormArgs& a;
  const int64_t t, ada;  // row of x; row of gate, scale and shift
  const bool lost;       // ada_row names a row that is not there: everything this token writes is NaN

  __device__ __forceinline__ NormRow(const NormArgs& args, int row)
      : a(args), t(row), ada(args.ada_row ? args.ada_row[row] : min(row, args.R - 1)),
        lost((a.gate || a.scale || a.shift) && (ada < 0 || ada >= a.R)) {}

  template <class T>
  __device__ __forceinline__ static const T* at(const void* base, int64_t offset) {
    return static_cast<const T*>(base) + offset;
  }

  /// h[i] at columns [col, col + V): x, or residual + gate * x.
  __device__ __forceinline__ void load_h(int col, float (&h)[V]) const {
    if (lost) {
#pragma unroll
      for (int i = 0; i < V; ++i) h[i] = __uint_as_float(0x7fc00000u);
      return;
    }
    load<V>(at<X>(a.x, t * a.x_stride + col), h);
    if (a.residual == nullptr) return;
    float r[V];
    load<V>(at<X>(a.residual, t * a.residual_stride + col), r);
    if (a.gate != nullptr) {
      float g[V];
      load<V>(at<X>(a.gate, ada * a.gate_stride + col), g);
#pragma unroll
      for (int i = 0; i < V; ++i) h[i] *= g[i];
    }
#pragma unroll
    for (int i = 0; i < V; ++i) h[i] += r[i];
  }

  __device__ __forceinline__ void apply(int col, float mean, float inv, float (&h)[V]) const {
    if (lost) return;
    float p[V];
#pragma unroll
    for (int i = 0; i < V; ++i) h[i] = (h[i] - mean) * inv;
    if (a.weight != nullptr) {
      load<V>(at<W>(a.weight, col), p);
      const float plus = a.weight_plus_one ? 1.0f : 0.0f;
#pragma unroll
      for (int i = 0; i < V; ++i) h[i] *= p[i] + plus;
    }
    if (a.bias != nullptr) {
      load<V>(at<W>(a.bias, col), p);
#pragma unroll
      for (int i = 0; i < V; ++i) h[i] += p[i];
    }
    if (a.scale != nullptr) {
      load<V>(at<X>(a.scale, ada * a.scale_stride + col), p);
#pragma unroll
      for (int i = 0; i < V; ++i) h[i] *= 1.0f + p[i];
    }
    if (a.shift != nullptr) {
      load<V>(at<X>(a.shift, ada * a.shift_stride + col), p);
#pragma unroll
      for (int i = 0; i < V; ++i) h[i] += p[i];
    }
  }
};

/// Calls f(item, col) for this thread's accesses of a row of H elements. kItems 0: as many as H needs.
template <NormPolicy P, class F>
__device__ __forceinline__ void norm_sweep(int H, F&& f) {
  if constexpr (P.items > 0) {
#pragma unroll
    for (int k = 0; k < P.items; ++k) {
      const int col = (k * P.threads + static_cast<int>(threadIdx.x)) * P.vec;
      if (col < H) f(k, col);
    }
  } else {
    for (int col = static_cast<int>(threadIdx.x) * P.vec; col < H; col += P.threads * P.vec) f(0, col);
  }
}

/// Grid: T blocks. Moves (x + out) * T * H bytes plus residual twice; ~6 T H flop; shared memory 128 bytes.
template <class X, class W, class Out, NormPolicy P>
__global__ void __launch_bounds__(P.threads) norm(const __grid_constant__ NormArgs a) {
  constexpr int V = P.vec;
  __shared__ float scratch[32];
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (static_cast<int>(blockIdx.x) >= valid_rows(a.rows, a.T)) return;
  const NormRow<X, W, Out, V> row(a, static_cast<int>(blockIdx.x));
  constexpr bool kKept = P.items > 0;
  float h[kKept ? P.items : 1][V];
  const float count = static_cast<float>(a.H);

  float sum = 0;
  norm_sweep<P>(a.H, [&](int k, int col) {
    if (kKept || a.kind == NormKind::layer) row.load_h(col, h[k]);
    if (a.kind == NormKind::layer)
#pragma unroll
      for (int i = 0; i < V; ++i) sum += h[k][i];
  });
  const float mean = a.kind == NormKind::layer ? block_reduce<P.threads>(sum, scratch, Sum()) / count : 0.0f;

  float squares = 0;
  norm_sweep<P>(a.H, [&](int k, int col) {
    if (!kKept) row.load_h(col, h[k]);
#pragma unroll
    for (int i = 0; i < V; ++i) squares += (h[k][i] - mean) * (h[k][i] - mean);
  });
  const float inv = rsqrtf(block_reduce<P.threads>(squares, scratch, Sum()) / count + a.eps);

  float quant = 1.0f;  // y is divided by this
  if (a.row_scale != nullptr) {
    float amax = 0;
    norm_sweep<P>(a.H, [&](int k, int col) {
      float y[V];
      if (!kKept) row.load_h(col, h[k]);
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] = h[k][i];
      row.apply(col, mean, inv, y);
#pragma unroll
      for (int i = 0; i < V; ++i) amax = fmaxf(amax, fabsf(y[i]));
    });
    amax = block_reduce<P.threads>(amax, scratch, Max());
    quant = amax > 0 ? amax / 448.0f : 1.0f;
    if (threadIdx.x == 0) a.row_scale[row.t] = quant;
  } else if (a.out_scale != nullptr) {
    quant = *a.out_scale;
  }

  norm_sweep<P>(a.H, [&](int k, int col) {
    if (!kKept) row.load_h(col, h[k]);
    if (a.residual != nullptr) store<V>(static_cast<X*>(a.residual) + row.t * a.residual_stride + col, h[k]);
    row.apply(col, mean, inv, h[k]);
    if (quant != 1.0f)
#pragma unroll
      for (int i = 0; i < V; ++i) h[k][i] /= quant;
    store<V>(static_cast<Out*>(a.out) + row.t * a.out_stride + col, h[k]);
  });
}

}  // namespace vivace::kernels
