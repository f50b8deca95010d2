// Sorting, searching, gathers and running sums on CUDA. Stable, without atomics: the same call gives the same bits.
// A C++ compiler reads this header too (held.cuh).
// Chosen when: arrays' sorting, searching, gathers and running sums, a kernel each step.
#pragma once
#include "vivace/kernels/map/held.cuh"
#include "vivace/kernels/map/order.h"

namespace vivace::kernels {

template <bool kWide>
struct KeyOf {
  using type = uint32_t;
};
template <>
struct KeyOf<true> {
  using type = uint64_t;
};

/// Elements as unsigned numbers in their order. NaNs are the largest, whichever way the rest goes; zeros are equal.
template <Elem E, bool kDescending>
__device__ __forceinline__ auto order_key(typename Held<E>::S s) {
  using C = typename Held<E>::C;
  using Key = typename KeyOf<sizeof(C) == 8>::type;
  constexpr Key kTop = Key(1) << (sizeof(Key) * 8 - 1);
  const C c = Held<E>::load(s);
  if constexpr (is_real(E)) {
    if (c != c) return ~Key(0);
    const Key bits = __builtin_bit_cast(Key, c == C(0) ? C(0) : c);
    const Key up = bits & kTop ? ~bits : bits | kTop;
    return kDescending ? ~up : up;
  } else {
    const Key up = is_signed(E) ? static_cast<Key>(c) ^ kTop : static_cast<Key>(c);
    return kDescending ? ~up : up;
  }
}

/// Of the first d elements of sorted a and b joined, how many are a's; of equals a's come first.
template <class Key, class Count>
__device__ __forceinline__ Count merge_path(const Key* a, Count na, const Key* b, Count nb, Count d) {
  Count low = d > nb ? d - nb : 0, high = d < na ? d : na;
  while (low < high) {
    const Count mid = (low + high) / 2;
    if (a[mid] <= b[d - 1 - mid])
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

/// kOrderItems elements from place d on of what keys[0, na) and keys[na, na + nb) joined are.
template <class Key>
__device__ __forceinline__ void merge_items(const Key* keys, const uint32_t* order, int na, int nb, int d,
                                            Key (&k)[kOrderItems], uint32_t (&o)[kOrderItems]) {
  int i = merge_path(keys, na, keys + na, nb, d), j = d - i;
#pragma unroll
  for (int n = 0; n < kOrderItems; ++n) {
    const bool left = j >= nb || (i < na && keys[i] <= keys[na + j]);
    const int from = left ? i++ : na + j++;
    const bool there = d + n < na + nb;
    k[n] = there ? keys[from] : ~Key(0);
    o[n] = there ? order[from] : 0u;
  }
}

/// The block's elements, side by side in shared memory, to their places in a row.
template <class Key, int kThreads>
__device__ __forceinline__ void write_tile(const Key* keys, const uint32_t* order, void* keys_out, uint32_t* order_out,
                                           int64_t base, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    if (keys_out != nullptr) static_cast<Key*>(keys_out)[base + i] = keys[i];
    order_out[base + i] = order[i];
  }
}

/// Grid: rows * tiles. Threads sort eight elements each, then neighbours join until the tile is one run.
template <Elem E, bool kDescending, int kThreads>
__global__ void __launch_bounds__(kThreads) sort_tiles(const __grid_constant__ TilesLaunch a) {
  using S = typename Held<E>::S;
  using Key = decltype(order_key<E, kDescending>(S()));
  constexpr int kTile = kThreads * kOrderItems;
  __shared__ Key keys[kTile];
  __shared__ uint32_t order[kTile];
  const int64_t row = blockIdx.x / a.tiles, first = (blockIdx.x - row * a.tiles) * kTile;
  const int64_t left = a.n - first;
  const int count = left < kTile ? static_cast<int>(left) : kTile, mine = static_cast<int>(threadIdx.x) * kOrderItems;
  const S* const x = static_cast<const S*>(a.x) + row * a.n + first;
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kThreads)
    keys[i] = i < count ? order_key<E, kDescending>(x[i]) : ~Key(0);
  __syncthreads();
  Key k[kOrderItems];
  uint32_t o[kOrderItems];
#pragma unroll
  for (int i = 0; i < kOrderItems; ++i) k[i] = keys[mine + i], o[i] = static_cast<uint32_t>(first + mine + i);
  // Neighbours change places only where they are out of order: stable. What fills up the tile has the largest key and
  // the last places, so it stays behind.
#pragma unroll
  for (int round = 0; round < kOrderItems; ++round)
#pragma unroll
    for (int i = round & 1; i + 1 < kOrderItems; i += 2) {
      const bool turn = k[i + 1] < k[i];
      const Key kt = k[i];
      const uint32_t ot = o[i];
      k[i] = turn ? k[i + 1] : k[i], o[i] = turn ? o[i + 1] : o[i];
      k[i + 1] = turn ? kt : k[i + 1], o[i + 1] = turn ? ot : o[i + 1];
    }
  for (int run = kOrderItems; run < kTile; run *= 2) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOrderItems; ++i) keys[mine + i] = k[i], order[mine + i] = o[i];
    __syncthreads();
    const int pair = mine / (2 * run) * (2 * run);
    merge_items(keys + pair, order + pair, run, run, mine - pair, k, o);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOrderItems; ++i) keys[mine + i] = k[i], order[mine + i] = o[i];
  __syncthreads();
  write_tile<Key, kThreads>(keys, order, a.keys, a.order, row * a.n + first, count);
}

/// Grid: rows * tiles, tiles of 2048 of the output; runs are whole tiles.
template <class Key>
__global__ void __launch_bounds__(kMapThreads) merge_runs(const __grid_constant__ MergeLaunch a) {
  constexpr int kTile = kMapThreads * kOrderItems;
  __shared__ Key keys[kTile];
  __shared__ uint32_t order[kTile];
  __shared__ int64_t cut[2];
  const int64_t row = blockIdx.x / a.tiles, first = (blockIdx.x - row * a.tiles) * kTile;
  const int64_t pair = first / (2 * a.run) * (2 * a.run), left = a.n - pair;
  const int64_t na = left < a.run ? left : a.run, nb = left - na < a.run ? left - na : a.run;
  const int64_t begin = first - pair, end = begin + kTile < na + nb ? begin + kTile : na + nb;
  const Key* const x = static_cast<const Key*>(a.keys) + row * a.n + pair;
  const uint32_t* const from = a.order + row * a.n + pair;
  if (threadIdx.x < 2) cut[threadIdx.x] = merge_path<Key, int64_t>(x, na, x + na, nb, threadIdx.x == 0 ? begin : end);
  __syncthreads();
  const int64_t a0 = cut[0], b0 = begin - a0;
  const int ta = static_cast<int>(cut[1] - a0), count = static_cast<int>(end - begin);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kMapThreads) {
    const int64_t at = i < ta ? a0 + i : na + b0 + (i - ta);
    keys[i] = x[at], order[i] = from[at];
  }
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x) * kOrderItems;
  Key k[kOrderItems];
  uint32_t o[kOrderItems];
  merge_items(keys, order, ta, count - ta, mine < count ? mine : count, k, o);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOrderItems; ++i)
    if (mine + i < count) keys[mine + i] = k[i], order[mine + i] = o[i];
  __syncthreads();
  write_tile<Key, kMapThreads>(keys, order, a.keys_out, a.order_out, row * a.n + first, count);
}

/// What a running sum or product does with values as they are held.
template <Elem E, bool kProduct>
struct Running {
  using C = typename Held<E>::C;
  static __device__ __forceinline__ C none() { return C(kProduct ? 1 : 0); }
  static __device__ __forceinline__ C join(C x, C y) {
    if constexpr (kProduct)
      return math::multiply(x, y);
    else
      return math::add(x, y);
  }
};

/// What the threads before this one have together; *all: what all have. Always in the same order.
template <class Op, int kThreads>
__device__ __forceinline__ typename Op::C joined_before(typename Op::C mine, typename Op::C* shared,
                                                        typename Op::C* all) {
  using C = typename Op::C;
  const int me = static_cast<int>(threadIdx.x);
  shared[me] = mine;
  __syncthreads();
  for (int by = 1; by < kThreads; by *= 2) {
    const C x = me >= by ? Op::join(shared[me - by], shared[me]) : shared[me];
    __syncthreads();
    shared[me] = x;
    __syncthreads();
  }
  *all = shared[kThreads - 1];
  const C before = me > 0 ? shared[me - 1] : Op::none();
  __syncthreads();
  return before;
}

/// Grid: rows * chunks of 2048 elements. Each chunk's total.
template <Elem E, bool kProduct>
__global__ void __launch_bounds__(kMapThreads) scan_totals(const __grid_constant__ ScanLaunch a) {
  using Op = Running<E, kProduct>;
  using S = typename Held<E>::S;
  __shared__ typename Op::C shared[kMapThreads];
  constexpr int kTile = kMapThreads * kOrderItems;
  const int64_t row = blockIdx.x / a.chunks, first = (blockIdx.x - row * a.chunks) * kTile;
  const S* const x = static_cast<const S*>(a.x) + row * a.n;
  typename Op::C mine = Op::none(), all;
#pragma unroll
  for (int i = 0; i < kOrderItems; ++i) {
    const int64_t at = first + static_cast<int64_t>(threadIdx.x) * kOrderItems + i;
    if (at < a.n) mine = Op::join(mine, Held<E>::load(x[at]));
  }
  joined_before<Op, kMapThreads>(mine, shared, &all);
  if (threadIdx.x == 0) static_cast<S*>(a.partial)[blockIdx.x] = Held<E>::store(all);
}

/// Grid: rows. Each chunk's total becomes what stands before the chunk.
template <Elem E, bool kProduct>
__global__ void __launch_bounds__(kMapThreads) scan_partials(const __grid_constant__ ScanLaunch a) {
  using Op = Running<E, kProduct>;
  using S = typename Held<E>::S;
  __shared__ typename Op::C shared[kMapThreads];
  S* const p = static_cast<S*>(a.partial) + blockIdx.x * a.chunks;
  typename Op::C carry = Op::none(), all;
  for (int64_t first = 0; first < a.chunks; first += kMapThreads) {
    const int64_t at = first + threadIdx.x;
    const typename Op::C mine = at < a.chunks ? Held<E>::load(p[at]) : Op::none();
    const typename Op::C before = joined_before<Op, kMapThreads>(mine, shared, &all);
    if (at < a.chunks) p[at] = Held<E>::store(Op::join(carry, before));
    carry = Op::join(carry, all);
  }
}

/// Grid: rows * chunks. In place or not: a block reads its elements before it writes them.
template <Elem E, bool kProduct, int kThreads>
__global__ void __launch_bounds__(kThreads) scan_rows(const __grid_constant__ ScanLaunch a) {
  using Op = Running<E, kProduct>;
  using S = typename Held<E>::S;
  using C = typename Op::C;
  __shared__ C shared[kThreads];
  constexpr int kTile = kThreads * kOrderItems;
  const int64_t row = blockIdx.x / a.chunks, first = (blockIdx.x - row * a.chunks) * kTile;
  const S* const x = static_cast<const S*>(a.x) + row * a.n;
  S* const out = static_cast<S*>(a.out) + row * a.n;
  const int64_t mine = first + static_cast<int64_t>(threadIdx.x) * kOrderItems;
  C v[kOrderItems], all;
#pragma unroll
  for (int i = 0; i < kOrderItems; ++i) {
    const C c = mine + i < a.n ? Held<E>::load(x[mine + i]) : Op::none();
    v[i] = i > 0 ? Op::join(v[i > 0 ? i - 1 : 0], c) : c;
  }
  C before = joined_before<Op, kThreads>(v[kOrderItems - 1], shared, &all);
  if (a.partial != nullptr) before = Op::join(Held<E>::load(static_cast<const S*>(a.partial)[blockIdx.x]), before);
#pragma unroll
  for (int i = 0; i < kOrderItems; ++i)
    if (mine + i < a.n) out[mine + i] = Held<E>::store(Op::join(before, v[i]));
}

/// Whether x stands before y: a NaN behind everything.
template <class C>
__device__ __forceinline__ bool stands_before(C x, C y) {
  if (x != x || y != y) return x == x;
  return x < y;
}

/// i of an axis of `length`, negative ones from the end. Out of range: the nearest place, and *bad says so.
__device__ __forceinline__ int64_t checked_place(int64_t i, int64_t length, int64_t* bad) {
  const int64_t at = i < 0 ? i + length : i;
  if (at >= 0 && at < length) return at;
  if (bad != nullptr) bad[0] = i, bad[1] = 1;
  return at < 0 ? 0 : length - 1;
}

/// Grid: ceil(count / 256). A thread finds the place of a value.
template <Elem E, bool kRight, bool kSorter>
__global__ void __launch_bounds__(kMapThreads) search(const __grid_constant__ SearchLaunch a) {
  using S = typename Held<E>::S;
  const int64_t me = static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x;
  if (me >= a.count) return;
  const S* const x = static_cast<const S*>(a.x);
  const auto v = Held<E>::load(static_cast<const S*>(a.values)[me]);
  int64_t low = 0, high = a.n;
  while (low < high) {
    const int64_t mid = low + (high - low) / 2;
    const auto m = Held<E>::load(x[kSorter ? checked_place(a.sorter[mid], a.n, a.bad) : mid]);
    if (kRight ? !stands_before(v, m) : stands_before(m, v))
      low = mid + 1;
    else
      high = mid;
  }
  a.out[me] = low;
}

/// Grid: ceil(total / 256). A thread moves a unit of kBytes.
template <int kBytes, bool kAlong, class Index, class Offset>
__global__ void __launch_bounds__(kMapThreads) gather(const __grid_constant__ GatherLaunch a) {
  using Unit = typename Word<kBytes>::type;
  const Offset me = static_cast<Offset>(blockIdx.x) * kMapThreads + threadIdx.x;
  if (me >= static_cast<Offset>(a.total)) return;
  const Offset inner = static_cast<Offset>(a.inner), count = static_cast<Offset>(a.count);
  const Offset line = me / inner, i = me - line * inner, outer = line / count, j = line - outer * count;
  const int64_t wanted = static_cast<int64_t>(static_cast<const Index*>(a.at)[kAlong ? me : j]);
  const int64_t at = checked_place(wanted, a.length, a.bad);
  const int64_t from = (static_cast<int64_t>(outer) * a.length + at) * a.inner + i;
  static_cast<Unit*>(a.out)[me] = static_cast<const Unit*>(a.x)[from];
}

}  // namespace vivace::kernels
