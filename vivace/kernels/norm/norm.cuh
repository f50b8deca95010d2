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

/// A group on its way: raw elements, so that few registers wait for memory.
template <bool kAligned, class T>
struct RawGroup {
  Vec<T, kNormGroup> raw;
  __device__ __forceinline__ void fetch(const void* base, int64_t offset, int col, int n) {
    const T* p = static_cast<const T*>(base) + offset + col;
    if constexpr (kAligned) {
      raw = *reinterpret_cast<const Vec<T, kNormGroup>*>(p);
    } else {
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) raw.v[i] = col + i < n ? p[i] : T{};
    }
  }
  __device__ __forceinline__ float operator[](int i) const { return to_float(raw.v[i]); }
};

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

  using Raw = RawGroup<kAligned, X>;

  /// Asks for x and residual at columns [col, col + 8).
  __device__ __forceinline__ void fetch(int col, Raw& x, Raw& residual) const {
    x.fetch(a.x, t * a.x_stride, col, a.H);
    if (a.residual != nullptr) residual.fetch(a.residual, t * a.residual_stride, col, a.H);
  }

  /// h: x, or residual + gate * x.
  __device__ __forceinline__ void combine(int col, const Raw& x, const Raw& residual, Group& h) const {
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) h[i] = lost ? __uint_as_float(0x7fc00000u) : x[i];
    if (a.residual == nullptr || lost) return;
    if (a.gate != nullptr) {
      Group g;
      load_group<kAligned, X>(a.gate, ada * a.gate_stride, col, a.H, g);
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) h[i] = __fmul_rn(h[i], g[i]);
    }
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) h[i] = __fadd_rn(h[i], residual[i]);
  }

  __device__ __forceinline__ void load_h(int col, Group& h) const {
    Raw x, residual;
    fetch(col, x, residual);
    combine(col, x, residual, h);
  }

  /// h -> y in place.
  __device__ __forceinline__ void apply(int col, float mean, float inv, const RawGroup<kAligned, W>& w, Group& h) const {
    if (lost) return;
    Group p;
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) h[i] = __fmul_rn(__fsub_rn(h[i], mean), inv);
    if (a.weight != nullptr) {
      const float plus = a.weight_plus_one ? 1.0f : 0.0f;
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) h[i] = __fmul_rn(h[i], __fadd_rn(w[i], plus));
    }
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

/// Grid: any number of blocks up to T; a block takes every gridDim.x-th row and asks for the next one
/// before it works on this one, with the weight kept in registers. Moves (x + out) * T * H bytes plus
/// residual twice; ~6 T H flop; shared memory 24 bytes a warp.
template <class X, class W, class Out, NormPolicy P>
__global__ void __launch_bounds__(P.threads, P.blocks_per_sm()) norm(const __grid_constant__ NormArgs a) {
  constexpr bool kKept = P.items > 0;
  constexpr int kItems = kKept ? P.items : 1;
  using Row = NormRow<X, W, P.aligned>;
  // A warp that is ahead writes the next row's partial sums while others still read this row's: two sets,
  // and a barrier in every row, keep them apart.
  __shared__ float scratch[2][3][P.threads / 32];
  if (a.weight != nullptr && blockIdx.x == 0)  // on its way while the predecessor still runs
    for (int i = static_cast<int>(threadIdx.x) * 128; i < a.H * static_cast<int>(sizeof(W)); i += P.threads * 128)
      ptx::prefetch_l2(static_cast<const char*>(a.weight) + i);
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int T = valid_rows(a.rows, a.T);
  if (static_cast<int>(blockIdx.x) >= T) return;
  const float count = static_cast<float>(a.H);
  const float fixed_scale = a.out_scale != nullptr ? *a.out_scale : 1.0f;

  typename Row::Raw x[kItems], residual[kItems];
  RawGroup<P.aligned, W> w[kItems];
  if constexpr (kKept) {
    const Row first(a, static_cast<int>(blockIdx.x));
    norm_sweep<P>(a.H, [&](int k, int col) { first.fetch(col, x[k], residual[k]); });
    if (a.weight != nullptr) norm_sweep<P>(a.H, [&](int k, int col) { w[k].fetch(a.weight, 0, col, a.H); });
  }

  int parity = 0;
  for (int t = static_cast<int>(blockIdx.x); t < T; t += static_cast<int>(gridDim.x), parity ^= 1) {
    const Row row(a, t);
    float h[kItems][kNormGroup];
    if constexpr (kKept) {
      norm_sweep<P>(a.H, [&](int k, int col) { row.combine(col, x[k], residual[k], h[k]); });
      if (const int next = t + static_cast<int>(gridDim.x); next < T) {
        const Row later(a, next);
        norm_sweep<P>(a.H, [&](int k, int col) { later.fetch(col, x[k], residual[k]); });
      }
    }
    const auto reload = [&](int k, int col) {  // rows that do not fit are read again for every pass
      if constexpr (!kKept) row.load_h(col, h[k]);
    };
    const auto finish = [&](int k, int col, float mean, float inv, float (&y)[kNormGroup]) {
      if constexpr (!kKept)
        if (a.weight != nullptr) w[k].fetch(a.weight, 0, col, a.H);
      row.apply(col, mean, inv, w[k], y);
    };

    float mean = 0;
    if (a.kind == NormKind::layer) {
      float sum = 0;
      norm_sweep<P>(a.H, [&](int k, int col) {
        reload(k, col);
#pragma unroll
        for (float v : h[k]) sum = __fadd_rn(sum, v);
      });
      mean = block_reduce<P.threads, false>(sum, scratch[parity][0], Sum()) / count;
    }

    float squares = 0;
    norm_sweep<P>(a.H, [&](int k, int col) {
      reload(k, col);
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) {
        const float d = __fsub_rn(h[k][i], mean);
        if (P.aligned || col + i < a.H) squares = __fmaf_rn(d, d, squares);
      }
    });
    const float inv = rsqrtf(block_reduce<P.threads, false>(squares, scratch[parity][1], Sum()) / count + a.eps);

    float quant = fixed_scale;  // y is divided by this
    if (a.row_scale != nullptr) {
      float amax = 0;
      norm_sweep<P>(a.H, [&](int k, int col) {
        float y[kNormGroup];
        reload(k, col);
#pragma unroll
        for (int i = 0; i < kNormGroup; ++i) y[i] = h[k][i];
        finish(k, col, mean, inv, y);
#pragma unroll
        for (int i = 0; i < kNormGroup; ++i)
          if (P.aligned || col + i < a.H) amax = fmaxf(amax, fabsf(y[i]));
      });
      amax = block_reduce<P.threads, false>(amax, scratch[parity][2], Max());
      quant = amax > 0 ? amax / 448.0f : 1.0f;
      if (threadIdx.x == 0) a.row_scale[row.t] = quant;
    }

    const Divider divide(quant);
    norm_sweep<P>(a.H, [&](int k, int col) {
      reload(k, col);
      if (a.residual != nullptr) store_group<P.aligned, X>(a.residual, row.t * a.residual_stride, col, a.H, h[k]);
      finish(k, col, mean, inv, h[k]);
      if (quant != 1.0f)
#pragma unroll
        for (float& v : h[k]) v = divide(v);
      store_group<P.aligned, Out>(a.out, row.t * a.out_stride, col, a.H, h[k]);
    });
    if constexpr (P.threads == 32) __syncwarp();
  }
}

}  // namespace vivace::kernels
