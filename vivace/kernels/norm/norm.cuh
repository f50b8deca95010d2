// norm on CUDA: formula in vivace/ops/norm.h. One thread block a row; the row stays in registers where
// it fits, so that x and residual are read once.
#pragma once
#include "vivace/kernels/norm/norm.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/prefetch.cuh"
#include "vivace/kernels/tile/divide.cuh"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

// The arithmetic below is written with rounded intrinsics: contraction by the compiler would differ
// between the aligned and the element-wise instance, and with it the last bit of a row.

/// Elements [col, col + 8) of a row of n, zeros beyond it.
template <bool kAligned, class T>
__device__ __forceinline__ void load_group(const void* base, int64_t offset, int col, int n, float (&out)[kNormGroup]) {
  const T* p = static_cast<const T*>(base) + offset + col;
  if constexpr (kAligned) {
    load<kNormGroup>(p, out);
  } else {
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) out[i] = col + i < n ? to_float(p[i]) : 0.0f;
  }
}

template <bool kAligned, class T>
__device__ __forceinline__ void store_group(void* base, int64_t offset, int col, int n, const float (&in)[kNormGroup]) {
  T* p = static_cast<T*>(base) + offset + col;
  if constexpr (kAligned) {
    store<kNormGroup>(p, in);
  } else {
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i)
      if (col + i < n) p[i] = from_float<T>(in[i]);
  }
}

/// One row's view of the arguments.
template <class X, class W, bool kAligned>
struct NormRow {
  const NormArgs& a;
  const int64_t t, ada;  // row of x; row of gate, scale and shift
  const bool lost;       // ada_row names a row that is not there: everything this token writes is NaN
  using Group = float[kNormGroup];

  __device__ __forceinline__ NormRow(const NormArgs& args, int row)
      : a(args), t(row), ada(args.ada_row ? args.ada_row[row] : min(row, args.R - 1)),
        lost((a.gate || a.scale || a.shift) && (ada < 0 || ada >= a.R)) {}

  /// h at columns [col, col + 8): x, or residual + gate * x.
  __device__ __forceinline__ void load_h(int col, Group& h) const {
    if (lost) {
#pragma unroll
      for (float& v : h) v = __uint_as_float(0x7fc00000u);
      return;
    }
    load_group<kAligned, X>(a.x, t * a.x_stride, col, a.H, h);
    if (a.residual == nullptr) return;
    Group r;
    load_group<kAligned, X>(a.residual, t * a.residual_stride, col, a.H, r);
    if (a.gate != nullptr) {
      Group g;
      load_group<kAligned, X>(a.gate, ada * a.gate_stride, col, a.H, g);
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) h[i] = __fmul_rn(h[i], g[i]);
    }
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) h[i] = __fadd_rn(h[i], r[i]);
  }

  __device__ __forceinline__ void load_weight(int col, Group& w) const {
    if (a.weight == nullptr) return;
    load_group<kAligned, W>(a.weight, 0, col, a.H, w);
#pragma unroll
    for (float& v : w) v = __fadd_rn(v, a.weight_plus_one ? 1.0f : 0.0f);
  }

  /// h -> y in place; w from load_weight.
  __device__ __forceinline__ void apply(int col, float mean, float inv, const Group& w, Group& h) const {
    if (lost) return;
    Group p;
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) h[i] = __fmul_rn(__fsub_rn(h[i], mean), inv);
    if (a.weight != nullptr)
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) h[i] = __fmul_rn(h[i], w[i]);
    if (a.bias != nullptr) {
      load_group<kAligned, W>(a.bias, 0, col, a.H, p);
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) h[i] = __fadd_rn(h[i], p[i]);
    }
    if (a.scale != nullptr) {
      load_group<kAligned, X>(a.scale, ada * a.scale_stride, col, a.H, p);
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) h[i] = __fmul_rn(h[i], __fadd_rn(1.0f, p[i]));
    }
    if (a.shift != nullptr) {
      load_group<kAligned, X>(a.shift, ada * a.shift_stride, col, a.H, p);
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) h[i] = __fadd_rn(h[i], p[i]);
    }
  }
};

/// Calls f(item, col) for this thread's groups of a row of H elements, in the one order there is.
template <NormPolicy P, class F>
__device__ __forceinline__ void norm_sweep(int H, F&& f) {
  const int first = static_cast<int>(threadIdx.x) * kNormGroup;
  if constexpr (P.items > 0) {
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (const int col = first + k * P.threads * kNormGroup; col < H) f(k, col);
  } else {
    for (int col = first; col < H; col += P.threads * kNormGroup) f(0, col);
  }
}

/// Grid: T blocks. Moves (x + out) * T * H bytes plus residual twice; ~6 T H flop; shared memory 192 bytes.
template <class X, class W, class Out, NormPolicy P>
__global__ void __launch_bounds__(P.threads) norm(const __grid_constant__ NormArgs a) {
  constexpr bool kKept = P.items > 0;
  constexpr int kItems = kKept ? P.items : 1;
  __shared__ float scratch[3][P.threads / 32];
  if (P.early && a.weight != nullptr)  // on its way while the predecessor still runs
    for (int i = static_cast<int>(threadIdx.x) * 128; i < a.H * static_cast<int>(sizeof(W)); i += P.threads * 128)
      ptx::prefetch_l2(static_cast<const char*>(a.weight) + i);
  ptx::dependency_wait();
  ptx::launch_dependents();
  if (static_cast<int>(blockIdx.x) >= valid_rows(a.rows, a.T)) return;
  const NormRow<X, W, P.aligned> row(a, static_cast<int>(blockIdx.x));
  float h[kItems][kNormGroup], w[kItems][kNormGroup];
  const float count = static_cast<float>(a.H);

  constexpr bool kEarly = kKept && P.early;
  if constexpr (kKept) norm_sweep<P>(a.H, [&](int k, int col) { row.load_h(col, h[k]); });
  if constexpr (kEarly) norm_sweep<P>(a.H, [&](int k, int col) { row.load_weight(col, w[k]); });

  float mean = 0;
  if (a.kind == NormKind::layer) {
    float sum = 0;
    norm_sweep<P>(a.H, [&](int k, int col) {
      if constexpr (!kKept) row.load_h(col, h[k]);
#pragma unroll
      for (float v : h[k]) sum = __fadd_rn(sum, v);
    });
    mean = block_reduce<P.threads, false>(sum, scratch[0], Sum()) / count;
  }

  float squares = 0;
  norm_sweep<P>(a.H, [&](int k, int col) {
    if constexpr (!kKept) row.load_h(col, h[k]);
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) {
      const float d = __fsub_rn(h[k][i], mean);
      if (P.aligned || col + i < a.H) squares = __fmaf_rn(d, d, squares);
    }
  });
  const float inv = rsqrtf(block_reduce<P.threads, false>(squares, scratch[1], Sum()) / count + a.eps);

  float quant = 1.0f;  // y is divided by this
  if (a.row_scale != nullptr) {
    float amax = 0;
    norm_sweep<P>(a.H, [&](int k, int col) {
      float y[kNormGroup];
      if constexpr (!kKept) row.load_h(col, h[k]);
      if constexpr (!kEarly) row.load_weight(col, w[k]);
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) y[i] = h[k][i];
      row.apply(col, mean, inv, w[k], y);
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i)
        if (P.aligned || col + i < a.H) amax = fmaxf(amax, fabsf(y[i]));
    });
    amax = block_reduce<P.threads, false>(amax, scratch[2], Max());
    quant = amax > 0 ? amax / 448.0f : 1.0f;
    if (threadIdx.x == 0) a.row_scale[row.t] = quant;
  } else if (a.out_scale != nullptr) {
    quant = *a.out_scale;
  }

  const Divider divide(quant);
  norm_sweep<P>(a.H, [&](int k, int col) {
    if constexpr (!kKept) row.load_h(col, h[k]);
    if constexpr (!kEarly) row.load_weight(col, w[k]);
    if (a.residual != nullptr) store_group<P.aligned, X>(a.residual, row.t * a.residual_stride, col, a.H, h[k]);
    row.apply(col, mean, inv, w[k], h[k]);
    if (quant != 1.0f)
#pragma unroll
      for (float& v : h[k]) v = divide(v);
    store_group<P.aligned, Out>(a.out, row.t * a.out_stride, col, a.H, h[k]);
  });
}

}  // namespace vivace::kernels
