// norm on CUDA: formula in vivace/ops/norm.h. One thread block a row; the row stays in registers where
// it fits, so that x and residual are read once.
// Chosen when: every call of its op.
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

/// Elements [col, col + 8) of a row of n as they lie in memory; from n on, what comes before it once more. No
/// branch: the compiler would put the first use of each load before the next one.
template <bool kAligned, class T>
__device__ __forceinline__ Vec<T, kNormGroup> load_group(const void* base, int64_t offset, int col, int n) {
  const T* p = static_cast<const T*>(base) + offset;
  if constexpr (kAligned) {
    return load_raw<kNormGroup, kNormGroup>(p + min(col, n - kNormGroup));
  } else {
    Vec<T, kNormGroup> raw;
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) raw.v[i] = p[min(col + i, n - 1)];
    return raw;
  }
}

/// kPairs: two of 16 bits at once. The kernels with every option run out of registers over it on Hopper.
template <bool kPairs, class T>
__device__ __forceinline__ void upcast(const Vec<T, kNormGroup>& raw, float (&out)[kNormGroup]) {
  if constexpr (kPairs) {
    to_floats(raw, out);
  } else {
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) out[i] = to_float(raw.v[i]);
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

/// Calls f(item, col) for this thread's groups of a row of H elements, in the one order there is; with kAll for
/// the places of kept groups behind its end, too.
template <NormPolicy P, bool kAll = false, class F>
__device__ __forceinline__ void norm_sweep(int H, F&& f) {
  const int first = static_cast<int>(threadIdx.x) * kNormGroup;
  if constexpr (P.items > 0) {
#pragma unroll
    for (int k = 0; k < P.items; ++k)
      if (const int col = first + k * P.threads * kNormGroup; kAll || col < H) f(k, col);
  } else {
    for (int col = first; col < H; col += P.threads * kNormGroup) f(0, col);
  }
}

/// One row's view of the arguments.
template <class X, class W, NormPolicy P>
struct NormRow {
  using Group = float[kNormGroup];
  using Raw = Vec<X, kNormGroup>;
  static constexpr bool kKept = P.items > 0;           // the row stays in registers
  static constexpr int kItems = kKept ? P.items : 1;

  const NormArgs& a;
  const int64_t t, ada;  // row of x; row of gate, scale and shift
  const bool lost;       // ada_row names a row that is not there: everything this token writes is NaN
  Raw x[kItems], residual[P.plain && !P.residual ? 1 : kItems];

  __device__ __forceinline__ NormRow(const NormArgs& args, int row)
      : a(args), t(row), ada(P.plain ? 0 : args.ada_row ? args.ada_row[row] : min(row, args.R - 1)),
        lost(!P.plain && (a.gate || a.scale || a.shift) && (ada < 0 || ada >= a.R)) {
    if constexpr (kKept) norm_sweep<P, true>(a.H, [&](int k, int col) { load(k, col); });
  }

  __device__ __forceinline__ bool has_residual() const { return P.plain ? P.residual : a.residual != nullptr; }

  template <class F>
  __device__ __forceinline__ void sweep(F&& f) const { norm_sweep<P>(a.H, f); }

  __device__ __forceinline__ void load(int k, int col) {
    x[k] = load_group<P.aligned, X>(a.x, t * a.x_stride, col, a.H);
    if (has_residual()) residual[k] = load_group<P.aligned, X>(a.residual, t * a.residual_stride, col, a.H);
  }

  /// h: x, or residual + gate * x. Kept in x's own type, it costs few registers and is made anew in every sweep.
  __device__ __forceinline__ void get(int k, int col, Group& h) {
    if constexpr (!kKept) load(k, col);
    upcast<P.plain>(x[k], h);
    if (has_residual()) {
      Group r;
      upcast<P.plain>(residual[k], r);
      if (!P.plain && a.gate != nullptr && !lost) {
        Group g;
        upcast<P.plain>(load_group<P.aligned, X>(a.gate, ada * a.gate_stride, col, a.H), g);
#pragma unroll
        for (int i = 0; i < kNormGroup; ++i) h[i] = __fmul_rn(h[i], g[i]);
      }
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i) h[i] = __fadd_rn(h[i], r[i]);
    }
    if (!P.plain && lost)
#pragma unroll
      for (float& v : h) v = __uint_as_float(0x7fc00000u);
  }

  /// f over the row's h, summed up in every thread: f(sum, h) -> sum.
  template <class F>
  __device__ __forceinline__ float total(float* scratch, F&& f) {
    float sum = 0;
    sweep([&](int k, int col) {
      Group h;
      get(k, col, h);
#pragma unroll
      for (int i = 0; i < kNormGroup; ++i)
        if (P.aligned || col + i < a.H) sum = f(sum, h[i]);
    });
    return block_reduce<P.threads, false>(sum, scratch, Sum());
  }

  /// y of N groups, of item k and column col each: one kind of parameter after the other, so that their loads
  /// travel together.
  template <int N>
  __device__ __forceinline__ void apply(const int (&col)[N], float mean, float inv, float plus, Group (&y)[N]) const {
    const auto each = [&](const void* base, int64_t offset, auto type, auto&& f) {
      Vec<decltype(type), kNormGroup> raw[N];
#pragma unroll
      for (int k = 0; k < N; ++k) raw[k] = load_group<P.aligned, decltype(type)>(base, offset, col[k], a.H);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        Group p;
        upcast<P.plain>(raw[k], p);
#pragma unroll
        for (int i = 0; i < kNormGroup; ++i) y[k][i] = f(y[k][i], p[i]);
      }
    };
#pragma unroll
    for (Group& g : y)
#pragma unroll
      for (float& v : g) v = __fmul_rn(__fsub_rn(v, mean), inv);
    if (a.weight != nullptr) each(a.weight, 0, W{}, [&](float v, float w) { return __fmul_rn(v, __fadd_rn(w, plus)); });
    if (a.bias != nullptr) each(a.bias, 0, W{}, [](float v, float b) { return __fadd_rn(v, b); });
    if (lost) return;
    if (a.scale != nullptr)
      each(a.scale, ada * a.scale_stride, X{}, [](float v, float s) { return __fmul_rn(v, __fadd_rn(1.0f, s)); });
    if (a.shift != nullptr) each(a.shift, ada * a.shift_stride, X{}, [](float v, float s) { return __fadd_rn(v, s); });
  }
};

/// The row's largest magnitude -> its scale, written and in every thread.
__device__ __forceinline__ float norm_row_scale(const NormArgs& a, int64_t t, float amax) {
  const float scale = amax > 0 ? amax / 448.0f : 1.0f;
  if (threadIdx.x == 0) a.row_scale[t] = scale;
  return scale;
}

/// The whole of `norm` but its output: emit(col, y) for every group of y. kScaled: where there is a row_scale, it is
/// written and y comes divided by it. There an RMS norm without bias and adaptive rows multiplies by the inverse last,
/// so that one reduction tells the sum of squares and the largest magnitude. Shared memory: 4 floats a warp.
template <class X, class W, bool kScaled, NormPolicy P, class Emit>
__device__ __forceinline__ void norm_row(const NormArgs& a, int t, Emit&& emit) {
  alignas(16) __shared__ float scratch[2][P.threads / 32];
  __shared__ float2 pairs[P.threads / 32];
  using Row = NormRow<X, W, P>;
  using Group = typename Row::Group;
  const float per_count = __frcp_rn(static_cast<float>(a.H));
  Row row(a, t);
  Vec<W, kNormGroup> weight[P.early ? Row::kItems : 1];
  if constexpr (P.early) {
    if (a.weight != nullptr) {
      norm_sweep<P, true>(a.H, [&](int k, int col) { weight[k] = load_group<P.aligned, W>(a.weight, 0, col, a.H); });
    } else if constexpr (P.scaled) {  // a branch around each product would cost as many moves as the products
#pragma unroll
      for (Vec<W, kNormGroup>& group : weight)
#pragma unroll
        for (W& v : group.v) v = from_float<W>(1.0f);
    }
  }

  const auto multiply_by_weight = [&](int k, int col, Group& y) {
    if (!(P.early && P.scaled) && a.weight == nullptr) return;
    const float plus = a.weight_plus_one ? 1.0f : 0.0f;
    Group p;
    if constexpr (P.early) upcast<P.plain>(weight[k], p);
    else upcast<P.plain>(load_group<P.aligned, W>(a.weight, 0, col, a.H), p);
#pragma unroll
    for (int i = 0; i < kNormGroup; ++i) y[i] = __fmul_rn(y[i], __fadd_rn(p[i], plus));
  };
  if constexpr (P.plain && P.scaled) {
    static_assert(Row::kKept && !P.layer);
    Group y[Row::kItems];
    float squares = 0, amax = 0;
    row.sweep([&](int k, int col) {
      row.get(k, col, y[k]);
      if (row.has_residual()) store_group<P.aligned, X>(a.residual, row.t * a.residual_stride, col, a.H, y[k]);
#pragma unroll
      for (const float h : y[k]) squares = __fmaf_rn(h, h, squares);
      multiply_by_weight(k, col, y[k]);
#pragma unroll
      for (const float v : y[k]) amax = fmaxf(amax, fabsf(v));
    });
    block_sum_and_max<P.threads>(squares, amax, pairs);
    const float inv = rsqrtf(__fmaf_rn(squares, per_count, a.eps));
    const RoughDivider<true> by(norm_row_scale(a, t, __fmul_rn(amax, inv)), inv);
    row.sweep([&](int k, int col) {
      by.divide(y[k]);
      emit(col, y[k]);
    });
    return;
  }

  float mean = 0;
  if (P.plain ? P.layer : a.kind == NormKind::layer)
    mean = __fmul_rn(row.total(scratch[0], [](float sum, float h) { return __fadd_rn(sum, h); }), per_count);
  const float squares = row.total(scratch[1], [&](float sum, float h) {
    const float d = P.plain && !P.layer ? h : __fsub_rn(h, mean);
    return __fmaf_rn(d, d, sum);
  });
  const float inv = rsqrtf(__fmaf_rn(squares, per_count, a.eps));

  if constexpr (P.plain) {
    row.sweep([&](int k, int col) {
      Group y;
      row.get(k, col, y);
      if (row.has_residual()) store_group<P.aligned, X>(a.residual, row.t * a.residual_stride, col, a.H, y);
#pragma unroll
      for (float& v : y) v = __fmul_rn(P.layer ? __fsub_rn(v, mean) : v, inv);
      multiply_by_weight(k, col, y);
      if (P.layer && a.bias != nullptr) {
        Group p;
        upcast<P.plain>(load_group<P.aligned, W>(a.bias, 0, col, a.H), p);
#pragma unroll
        for (int i = 0; i < kNormGroup; ++i) y[i] = __fadd_rn(y[i], p[i]);
      }
      emit(col, y);
    });
  } else {
    const bool last = kScaled && a.row_scale != nullptr && a.kind == NormKind::rms && a.bias == nullptr &&
                      a.scale == nullptr && a.shift == nullptr;
    const float before = last ? 1.0f : inv, behind = last ? inv : 1.0f, plus = a.weight_plus_one ? 1.0f : 0.0f;
    Group y[Row::kItems];
    const int first = static_cast<int>(threadIdx.x) * kNormGroup;
    constexpr int kStep = P.threads * kNormGroup;
    // All kept groups at once, or one after the other of a long row.
    const auto groups = [&](bool store_h, auto&& f) {
      for (int at = first; at < a.H; at += kStep * Row::kItems) {
        int col[Row::kItems];
#pragma unroll
        for (int k = 0; k < Row::kItems; ++k) {
          col[k] = at + k * kStep;
          row.get(k, col[k], y[k]);
          if (store_h && row.has_residual() && col[k] < a.H)
            store_group<P.aligned, X>(a.residual, row.t * a.residual_stride, col[k], a.H, y[k]);
        }
        row.apply(col, mean, before, plus, y);
#pragma unroll
        for (int k = 0; k < Row::kItems; ++k)
          if (col[k] < a.H) f(col[k], y[k]);
        if constexpr (Row::kKept) break;
      }
    };
    if (kScaled && a.row_scale != nullptr) {
      float amax = 0;
      groups(Row::kKept, [&](int col, Group& v) {
#pragma unroll
        for (int i = 0; i < kNormGroup; ++i)
          if (P.aligned || col + i < a.H) amax = fmaxf(amax, fabsf(v[i]));
      });
      amax = block_reduce<P.threads, false>(amax, &pairs[0].x, Max());
      const RoughDivider<true> by(norm_row_scale(a, t, __fmul_rn(amax, behind)), behind);
      const auto scaled = [&](int col, Group& v) {
        by.divide(v);
        emit(col, v);
      };
      if constexpr (Row::kKept) {
        row.sweep([&](int k, int col) { scaled(col, y[k]); });
      } else {
        groups(true, scaled);
      }
    } else {
      groups(true, [&](int col, Group& v) { emit(col, v); });
    }
  }
}

/// Before anything else of a kernel that ends in norm_row: weight and bias are on their way while the predecessor still
/// runs. Among many rows one block asks for all: the hints of every block would cost more than they bring, and without
/// any the first blocks miss together.
template <class W, NormPolicy P>
__device__ __forceinline__ void norm_begin(const NormArgs& a) {
  if (gridDim.x > kNormFewRows && blockIdx.x != 0) return;
  if (a.weight != nullptr)
    norm_sweep<P>(a.H, [&](int, int col) { ptx::prefetch_l2(static_cast<const W*>(a.weight) + col); });
  if ((!P.plain || P.layer) && a.bias != nullptr)
    norm_sweep<P>(a.H, [&](int, int col) { ptx::prefetch_l2(static_cast<const W*>(a.bias) + col); });
}

/// Grid: T blocks. Moves (x + out) * T * H bytes plus residual twice; ~6 T H flop.
template <class X, class W, class Out, NormPolicy P>
__global__ void __launch_bounds__(P.threads) norm(const __grid_constant__ NormArgs a) {
  norm_begin<W, P>(a);
  ptx::launch_dependents();  // before the wait: the product that follows loads its weights meanwhile
  ptx::dependency_wait();
  const int t = static_cast<int>(blockIdx.x);
  if (t >= valid_rows(a.rows, a.T)) return;
  constexpr bool kQuantized = sizeof(Out) == 1, kGiven = kQuantized && !P.scaled;  // one of out_scale and row_scale
  const float scale = kGiven && a.out_scale != nullptr ? *a.out_scale : 1.0f;
  norm_row<X, W, kQuantized, P>(a, t, [&](int col, float(&y)[kNormGroup]) {
    if (kGiven && scale != 1.0f)
      RoughDivider(scale).divide(y);  // made here: in front of the row's loads it would make them wait for the scale
    store_group<P.aligned, Out>(a.out, t * a.out_stride, col, a.H, y);
  });
}

}  // namespace vivace::kernels
