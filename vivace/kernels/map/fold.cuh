// fold on CUDA: reductions of what a program gives (map.cuh). No atomics: the order in which values join depends on the
// shape, the strides and the types, so that the same call gives the same bits.
// Chosen when: a program with a reduction; fold_columns: side by side along a kept axis; fold_finish: it was split.
#pragma once
#include "vivace/kernels/map/held.cuh"

namespace vivace::kernels {

/// Narrow integers are carried in 32 bits: wrapping and order are the same, and ptxas spills around 16-bit registers.
template <class C>
struct Carried {
  using type = C;
};
template <>
struct Carried<uint8_t> {
  using type = uint32_t;
};
template <>
struct Carried<uint16_t> {
  using type = uint32_t;
};
template <>
struct Carried<int8_t> {
  using type = int32_t;
};
template <>
struct Carried<int16_t> {
  using type = int32_t;
};

/// What a fold does with values of type C: Acc is what is carried, of(value, number) makes one of one element, join()
/// is associative, finish() gives what is written, as C++ type Result.
template <Fold kKind, class C>
struct Joined {
  using Acc = typename Carried<C>::type;
  using Result = C;
  static __device__ __forceinline__ Acc identity() {
    if constexpr (kKind == Fold::sum || kKind == Fold::any)
      return Acc(0);
    else if constexpr (kKind == Fold::prod || kKind == Fold::all)
      return Acc(1);
    else if constexpr (!math::Wrap<C>::integer)
      return kKind == Fold::max ? -C(__builtin_bit_cast(float, 0x7f800000u))
                                : C(__builtin_bit_cast(float, 0x7f800000u));
    else
      return kKind == Fold::max ? math::Limits<C>::kMin : math::Limits<C>::kMax;
  }
  static __device__ __forceinline__ Acc of(C value, int64_t) { return value; }
  static __device__ __forceinline__ Acc join(Acc x, Acc y) {
    if constexpr (kKind == Fold::sum)
      return math::add(x, y);
    else if constexpr (kKind == Fold::prod)
      return math::multiply(x, y);
    else if constexpr (kKind == Fold::max)
      return x != x ? x : y != y ? y : x > y ? x : y;
    else if constexpr (kKind == Fold::min)
      return x != x ? x : y != y ? y : x < y ? x : y;
    else if constexpr (kKind == Fold::any)
      return Acc(x != Acc(0) || y != Acc(0));
    else
      return Acc(x != Acc(0) && y != Acc(0));
  }
  static __device__ __forceinline__ Result finish(Acc x) { return static_cast<C>(x); }
};

/// argmax and argmin: of equals the first, a NaN before all.
template <bool kMax, class C>
struct FirstExtreme {
  struct Acc {
    int64_t number;
    C value;
  };
  using Result = int64_t;
  static __device__ __forceinline__ Acc identity() { return {-1, C(0)}; }
  static __device__ __forceinline__ Acc of(C value, int64_t number) { return {number, value}; }
  static __device__ __forceinline__ Acc join(const Acc& x, const Acc& y) {
    if (x.number < 0) return y;
    if (y.number < 0) return x;
    const bool xn = x.value != x.value, yn = y.value != y.value;
    const bool same = (xn && yn) || x.value == y.value;
    if (same) return x.number < y.number ? x : y;
    if (xn || yn) return xn ? x : y;
    return (kMax ? x.value > y.value : x.value < y.value) ? x : y;
  }
  static __device__ __forceinline__ Result finish(const Acc& x) { return x.number; }
};

/// A value known when the kernel is compiled, by its bits.
template <Elem E>
__device__ __forceinline__ typename Held<E>::C constant(uint64_t value) {
  union {
    uint64_t bits;
    typename Held<E>::S s;
  } u;
  u.bits = value;
  return Held<E>::load(u.s);
}

/// x of the lane `by` further on in the warp.
template <class T>
__device__ __forceinline__ T from_lane_below(const T& x, int by) {
  constexpr int kWords = (static_cast<int>(sizeof(T)) + 3) / 4;
  union Bits {
    uint32_t word[kWords];
    T t;
  } u;
#pragma unroll
  for (int i = 0; i < kWords; ++i) u.word[i] = 0;
  u.t = x;
#pragma unroll
  for (int i = 0; i < kWords; ++i) u.word[i] = __shfl_down_sync(0xffffffffu, u.word[i], by);
  return u.t;
}
template <class Op>
__device__ __forceinline__ typename Op::Acc joined_warp(typename Op::Acc x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) x = Op::join(x, from_lane_below(x, by));
  return x;
}

/// Op with the element type that it writes.
template <class Op, Elem kElem>
struct Into : Op {
  static __device__ __forceinline__ void store(void* out, int64_t at, typename Op::Acc x) {
    static_cast<typename Held<kElem>::S*>(out)[at] = Held<kElem>::store(Op::finish(x));
  }
};

/// A value where it belongs: finished in the output, or as it is among the partial ones.
template <class Op>
__device__ __forceinline__ void put(const FoldLaunch& a, int64_t o, int32_t split, int64_t to, typename Op::Acc x) {
  if (a.partial != nullptr)
    static_cast<typename Op::Acc*>(a.partial)[o * a.splits + split] = x;
  else
    Op::store(a.out, to, x);
}

/// Grid: (ceil(outputs * kTeam / 256), splits). kTeam threads fold an output: 1, a warp, or the block.
template <class Body, class Op, int V, class Offset, int kTeam>
__global__ void __launch_bounds__(kMapThreads) fold_rows(const __grid_constant__ FoldLaunch a) {
  using Acc = typename Op::Acc;
  constexpr int kTeams = kMapThreads / kTeam;
  __shared__ Acc warps[kMapThreads / 32];
  const int me = static_cast<int>(threadIdx.x) % kTeam;
  const int64_t number = int64_t{blockIdx.x} * kTeams + threadIdx.x / kTeam;
  const bool mine = number < a.outputs;  // the others take part in shuffles
  const Offset o = static_cast<Offset>(mine ? number : 0);
  Offset base[kMaxOperands + 1] = {};
  place<Body::kOperands>(a.kept, o, base);
  const Offset begin = static_cast<Offset>(blockIdx.y) * static_cast<Offset>(a.units_a_split);
  const int64_t stop = (int64_t{blockIdx.y} + 1) * a.units_a_split;
  const Offset end = mine ? static_cast<Offset>(stop < a.units ? stop : a.units) : begin;
  Acc lane[V];
#pragma unroll
  for (int i = 0; i < V; ++i) lane[i] = Op::identity();
  for (Offset unit = begin + me; unit < end; unit += kTeam * kFoldUnroll) {
    Body body[kFoldUnroll];
    Offset from[kFoldUnroll];
    int n[kFoldUnroll];
#pragma unroll
    for (int u = 0; u < kFoldUnroll; ++u) {
      const Offset at_unit = unit + u * kTeam;
      n[u] = 0;
      from[u] = 0;
      if (at_unit >= end) continue;
      const Offset line = divided(at_unit, a.by_vectors, a.inner_vectors);
      const Offset i = (at_unit - line * static_cast<Offset>(a.inner_vectors)) * V;
      Offset at[kMaxOperands + 1];
#pragma unroll
      for (int k = 0; k < Body::kOperands; ++k) at[k] = base[k] + i * static_cast<Offset>(a.inner_stride[k]);
      at[kOut] = 0;
      place<Body::kOperands>(a.folded, line, at);
      const Offset left = static_cast<Offset>(a.inner) - i;
      n[u] = left < V ? static_cast<int>(left) : V;
      from[u] = line * static_cast<Offset>(a.inner) + i;
      body[u].load(a.in, at, a.inner_stride, n[u]);
    }
#pragma unroll
    for (int u = 0; u < kFoldUnroll; ++u)
#pragma unroll
      for (int i = 0; i < V; ++i)
        if (i < n[u]) lane[i] = Op::join(lane[i], Op::of(body[u].value(i, 0), static_cast<int64_t>(from[u]) + i));
  }
#pragma unroll
  for (int half = V / 2; half > 0; half /= 2)
#pragma unroll
    for (int i = 0; i < half; ++i) lane[i] = Op::join(lane[i], lane[i + half]);
  Acc x = lane[0];
  if constexpr (kTeam >= 32) x = joined_warp<Op>(x);
  if constexpr (kTeam > 32) {
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = warps[0];
#pragma unroll
    for (int w = 1; w < kMapThreads / 32; ++w) x = Op::join(x, warps[w]);
  }
  if (mine && me == 0) put<Op>(a, number, static_cast<int32_t>(blockIdx.y), base[kOut], x);
}

/// Grid: (blocks of 32 * V outputs that lie side by side, splits). A warp goes down its columns, eight of them take
/// turns with the rows.
template <class Body, class Op, int V, class Offset>
__global__ void __launch_bounds__(kMapThreads) fold_columns(const __grid_constant__ FoldLaunch a) {
  using Acc = typename Op::Acc;
  constexpr int kWarps = kMapThreads / 32;
  __shared__ Acc parts[kWarps][32];
  const int x = static_cast<int>(threadIdx.x) % 32, y = static_cast<int>(threadIdx.x) / 32;
  const Offset blocks = static_cast<Offset>((a.inner_vectors + 31) / 32);
  const Offset outer = static_cast<Offset>(blockIdx.x) / blocks;
  const Offset column = ((static_cast<Offset>(blockIdx.x) - outer * blocks) * 32 + x) * V;
  const Offset left = static_cast<Offset>(a.inner) - column;
  const int n = left <= 0 ? 0 : left < V ? static_cast<int>(left) : V;
  Offset base[kMaxOperands + 1];
#pragma unroll
  for (int k = 0; k < Body::kOperands; ++k) base[k] = column * static_cast<Offset>(a.inner_stride[k]);
  base[kOut] = column * static_cast<Offset>(a.inner_stride[kOut]);
  place<Body::kOperands>(a.kept, outer, base);
  const int64_t begin = int64_t{blockIdx.y} * a.units_a_split;
  const int64_t stop = begin + a.units_a_split < a.units ? begin + a.units_a_split : a.units;
  Acc lane[V];
#pragma unroll
  for (int i = 0; i < V; ++i) lane[i] = Op::identity();
  for (Offset row = static_cast<Offset>(begin) + y; row < static_cast<Offset>(stop) && n > 0;
       row += kWarps * kFoldUnroll) {
    Body body[kFoldUnroll];
    bool there[kFoldUnroll];
#pragma unroll
    for (int u = 0; u < kFoldUnroll; ++u) {
      const Offset r = row + u * kWarps;
      there[u] = r < static_cast<Offset>(stop);
      if (!there[u]) continue;
      Offset at[kMaxOperands + 1];
#pragma unroll
      for (int k = 0; k < Body::kOperands; ++k) at[k] = base[k];
      at[kOut] = 0;
      place<Body::kOperands>(a.folded, r, at);
      body[u].load(a.in, at, a.inner_stride, n);
    }
#pragma unroll
    for (int u = 0; u < kFoldUnroll; ++u)
#pragma unroll
      for (int i = 0; i < V; ++i)
        if (there[u] && i < n)
          lane[i] = Op::join(lane[i], Op::of(body[u].value(i, 0), static_cast<int64_t>(row) + u * kWarps));
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    parts[y][x] = lane[i];
    __syncthreads();
    if (y == 0 && i < n) {
      Acc total = parts[0][x];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) total = Op::join(total, parts[w][x]);
      const int64_t o = static_cast<int64_t>(outer) * a.inner + static_cast<int64_t>(column) + i;
      put<Op>(a, o, static_cast<int32_t>(blockIdx.y), static_cast<int64_t>(base[kOut]) + i * a.inner_stride[kOut],
              total);
    }
    __syncthreads();
  }
}

/// Grid: ceil(outputs / 8). A warp joins the partial values of an output.
template <class Op>
__global__ void __launch_bounds__(kMapThreads) fold_finish(const __grid_constant__ FinishLaunch a) {
  using Acc = typename Op::Acc;
  const int64_t number = int64_t{blockIdx.x} * (kMapThreads / 32) + threadIdx.x / 32;
  const bool mine = number < a.outputs;
  const int64_t o = mine ? number : 0;
  const Acc* const p = static_cast<const Acc*>(a.partial) + o * a.splits;
  Acc x = Op::identity();
  for (int i = static_cast<int>(threadIdx.x) % 32; i < a.splits; i += 32) x = Op::join(x, p[i]);
  x = joined_warp<Op>(x);
  if (!mine || threadIdx.x % 32 != 0) return;
  int64_t at[kMaxOperands + 1] = {};
  place<0>(a.kept, o, at);
  Op::store(a.out, at[kOut], x);
}

}  // namespace vivace::kernels
