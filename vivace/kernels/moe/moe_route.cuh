// moe_route on CUDA: formula in vivace/ops/moe_route.h. Limit: latency, K rounds of a warp's maximum a token.
//
// A warp takes a run of neighbouring tokens. First it chooses for each and counts per expert; the counts of
// all warps before it, over the whole cluster, then say where its choices go, token by token in the same order.
#pragma once
#include "vivace/kernels/moe/moe_route.h"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// Orders as logits do; NaN below all, -0 like 0.
__device__ __forceinline__ uint32_t route_key(float v) {
  const uint32_t u = __float_as_uint(v + 0.0f);
  return v != v ? 0u : u >> 31 ? ~u : u | 0x80000000u;
}

__device__ __forceinline__ uint32_t warp_max(uint32_t v) {
  uint32_t r;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
  return r;
}

/// One token's logits, spread over a warp: expert e in lane e % 32. The first 32 * kHeld stay in registers.
template <class T>
struct RouteRow {
  static constexpr int kHeld = 8;
  const T* x;
  int E, lane;
  float held[kHeld];

  __device__ __forceinline__ RouteRow(const T* logits, int experts) : x(logits), E(experts), lane(threadIdx.x % 32) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = lane + i * 32 < E ? to_float(x[lane + i * 32]) : 0.0f;
  }
  template <class F>
  __device__ __forceinline__ void each(F&& f) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (lane + i * 32 < E) f(lane + i * 32, held[i]);
    for (int e = lane + kHeld * 32; e < E; e += 32) f(e, to_float(x[e]));
  }
  /// The largest after (key, expert) `last` in the order of choice: larger keys first, of equals lower experts.
  __device__ __forceinline__ int next(uint32_t last_key, int last, uint32_t* key) const {
    uint32_t best = 0;
    int at = 0x7fffffff;
    each([&](int e, float v) {
      const uint32_t k = route_key(v);
      const bool open = last < 0 || k < last_key || (k == last_key && e > last);
      if (open && (k > best || at == 0x7fffffff)) best = k, at = e;  // a lane's experts ascend
    });
    const bool any = at != 0x7fffffff;
    *key = warp_max(any ? best : 0u);
    return 0x7fffffff - static_cast<int>(warp_max(any && best == *key ? 0x7fffffffu - static_cast<uint32_t>(at) : 0u));
  }
};

/// Grid: one cluster. Shared memory: (warps + 2) * E counts.
template <class T, MoeRoutePolicy P>
__global__ void __launch_bounds__(P.threads, 1) moe_route(const __grid_constant__ MoeRouteArgs a) {
  constexpr int kWarps = P.threads / 32;
  extern __shared__ int route_smem[];
  int* const mine = route_smem + static_cast<int>(threadIdx.x) / 32 * a.E;  // choices of this warp's tokens; then its next place
  int *const total = route_smem + kWarps * a.E, *const first = total + a.E;  // choices of this block; then where each expert begins
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = ptx::cluster_rank<P.cluster>();
  for (int i = threadIdx.x; i < kWarps * a.E; i += P.threads) route_smem[i] = 0;
  ptx::dependency_wait();
  ptx::launch_dependents();
  __syncthreads();
  const int64_t M = valid_rows(a.rows, a.T), part = rank * kWarps + warp, parts = P.cluster * kWarps;
  const int64_t begin = M * part / parts, end = M * (part + 1) / parts;

  for (int64_t t = begin; t < end; ++t) {
    const RouteRow<T> row(static_cast<const T*>(a.logits) + t * a.logits_stride, a.E);
    float top = __uint_as_float(0xff800000u);
    row.each([&](int, float v) { top = fmaxf(top, v); });
    top = warp_reduce(top, [](float p, float q) { return fmaxf(p, q); });
    float mass = 0.0f;
    if (!a.renormalize) {
      row.each([&](int, float v) { mass += expf(v - top); });
      mass = warp_reduce(mass, Sum{});
    }
    float* w = a.weights + t * a.weights_stride;
    uint32_t key = 0;
    int e = -1;
    for (int k = 0; k < a.K; ++k) {
      e = row.next(key, e, &key);
      const float p = expf(to_float(row.x[e]) - top);
      if (a.renormalize) mass += p;
      if (lane == 0) {
        w[k] = p;
        a.place[t * a.place_stride + k] = e;  // the expert for now
        ++mine[e];
      }
    }
    __syncwarp();  // lane 0's weights are there
    for (int k = lane; k < a.K; k += 32) w[k] = w[k] / mass;
  }
  __syncthreads();

  for (int e = threadIdx.x; e < a.E; e += P.threads) {  // exclusive over the warps of the block
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const int n = route_smem[i * a.E + e];
      route_smem[i * a.E + e] = sum;
      sum += n;
    }
    total[e] = sum;
  }
  ptx::cluster_sync<P.cluster>();
  for (int e = threadIdx.x; e < a.E; e += P.threads) {
    int before = 0, all = 0;
#pragma unroll
    for (int r = 0; r < P.cluster; ++r) {
      const int n = static_cast<int>(ptx::remote_load<P.cluster>(reinterpret_cast<const uint32_t*>(total + e), r));
      if (r < rank) before += n;
      all += n;
    }
    first[e] = all;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) route_smem[i * a.E + e] += before;
  }
  ptx::cluster_sync<P.cluster>();  // others have read `total`
  if (warp == 0) {
    int carry = 0;
    for (int e0 = 0; e0 < a.E; e0 += 32) {
      const int e = e0 + lane, n = e < a.E ? first[e] : 0;
      int sum = n;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
      }
      if (e < a.E) {
        first[e] = carry + sum - n;
        if (rank == 0) a.offsets[e] = carry + sum - n;
      }
      carry += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (rank == 0 && lane == 0) a.offsets[a.E] = carry;
  }
  __syncthreads();
  for (int64_t t = begin; t < end; ++t) {
    int32_t* place = a.place + t * a.place_stride;
    for (int k = lane; k < a.K; k += 32) {  // a token's experts differ: no two lanes meet in a count
      const int e = place[k], to = first[e] + mine[e]++;
      place[k] = to;
      a.token[to] = static_cast<int32_t>(t);
    }
    __syncwarp();
  }
  const int64_t choices = int64_t{a.T} * a.K;
  for (int64_t i = M * a.K + rank * P.threads + threadIdx.x; i < choices; i += P.cluster * P.threads) a.token[i] = 0;
}

}  // namespace vivace::kernels
