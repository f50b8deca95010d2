// moe_route on CUDA: formula in vivace/ops/moe_route.h. Limit: latency, K rounds of a warp's maximum a token.
//
// A warp takes a run of neighbouring tokens. First it chooses for each and counts per expert; the counts of
// all warps before it, over the whole cluster, then say where its choices go, token by token in the same order.
// Chosen when: every call of its op; moe_route_one: one token, few choices of up to 512 experts.
#pragma once
#include "vivace/kernels/moe/moe_route.h"
#include "vivace/kernels/ptx/cluster.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"
#include "vivace/kernels/tile/reduce.cuh"

namespace vivace::kernels {

/// Orders as logits do: NaN is 1, below all others, and -0 like 0. 0 is nobody's.
__device__ __forceinline__ uint32_t route_key(float v) {
  const uint32_t u = __float_as_uint(v + 0.0f);
  return v != v ? 1u : (u >> 31 ? ~u : u | 0x80000000u) + 1;
}
__device__ __forceinline__ float route_value(uint32_t key) {
  const uint32_t u = key - 1;
  return key == 1 ? __uint_as_float(0x7fc00000u) : __uint_as_float(u >> 31 ? u ^ 0x80000000u : ~u);
}

__device__ __forceinline__ uint32_t warp_max(uint32_t v) {
  uint32_t r;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
  return r;
}

/// Weight of an expert that every token takes.
__device__ __forceinline__ float route_shared(float logit) { return 1.0f / (1.0f + expf(-logit)); }

/// One token's logits, spread over a warp: expert e in lane e % 32. The first 32 * kHeld stay in registers, as keys.
template <class T>
struct RouteRow {
  static constexpr int kHeld = 8;
  const T* x;
  int E, lane;
  uint32_t key[kHeld];  // 0: chosen, or not there

  __device__ __forceinline__ RouteRow(const T* logits, int experts, bool there)
      : x(logits), E(experts), lane(threadIdx.x % 32) {
    float v[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) v[i] = there && lane + i * 32 < E ? to_float(x[lane + i * 32]) : 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) key[i] = lane + i * 32 < E ? route_key(v[i]) : 0u;
  }
  /// Sum of exp(x - top), before the first choice.
  __device__ __forceinline__ float mass(float top) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (lane + i * 32 < E) sum += expf(route_value(key[i]) - top);
    for (int e = lane + kHeld * 32; e < E; e += 32) sum += expf(to_float(x[e]) - top);
    return warp_reduce(sum, Sum{});
  }
  /// The largest behind `last` of key `last_key`: larger keys first, of equals lower experts. choose() takes it out.
  __device__ __forceinline__ int next(uint32_t last_key, int last, uint32_t* found) const {
    uint32_t best = 0;
    int at = 0x7fffffff;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (key[i] > best) best = key[i], at = lane + i * 32;  // a lane's experts ascend
    for (int e = lane + kHeld * 32; e < E; e += 32) {
      const uint32_t k = route_key(to_float(x[e]));
      if ((last < 0 || k < last_key || (k == last_key && e > last)) && k > best) best = k, at = e;
    }
    *found = warp_max(best);
    return 0x7fffffff - static_cast<int>(warp_max(best == *found ? 0x7fffffffu - static_cast<uint32_t>(at) : 0u));
  }
  __device__ __forceinline__ void choose(int e) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (lane + i * 32 == e) key[i] = 0;
  }
};

/// One token, by one warp, its logits in registers. Of the lanes' maxima the K-th largest is a bound that at least K
/// keys reach, and few more: only these are ranked among each other. Bits are those of RouteRow's rounds: the same
/// keys, sums in the same order.
template <class T, int kMost>
struct RouteOne {
  static constexpr int kHeld = kMost / 32;
  static constexpr int kChoices = MoeRoutePolicy::kChoicesOfOne;
  static constexpr uint32_t kAll = 0xffffffffu;
  struct Shared {
    uint32_t reach[kMost];  // keys that reach the bound, lower experts first; then their experts
    int expert[kMost];
    uint32_t key[kChoices];  // of the chosen, larger keys first; then their experts
    int chosen[kChoices];
  };

  /// The larger key comes first, of equals the one in front.
  __device__ __forceinline__ static bool precedes(uint32_t key, int at, uint32_t other, int other_at) {
    return key > other || (key == other && at < other_at);
  }
  __device__ __forceinline__ static uint32_t bound(const uint32_t (&key)[kHeld], int K, int lane) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) most = max(most, key[i]);
    int rank = 0;
#pragma unroll
    for (int j = 0; j < 32; ++j) rank += precedes(__shfl_sync(kAll, most, j), j, most, lane);
    return __shfl_sync(kAll, most, __ffs(static_cast<int>(__ballot_sync(kAll, rank == K - 1))) - 1);
  }

  __device__ __forceinline__ static void run(const MoeRouteArgs& a, Shared& m) {
    const int E = a.candidates(), K = a.drawn(), lane = static_cast<int>(threadIdx.x);
    const uint32_t lower = (1u << lane) - 1;
    float v[kHeld];
    uint32_t key[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i)  // before it is known whether the token counts: one latency less
      v[i] = lane + i * 32 < E ? to_float(static_cast<const T*>(a.logits)[lane + i * 32]) : 0.0f;
    const float logit = a.shared ? to_float(static_cast<const T*>(a.logits)[E]) : 0.0f;
    if (valid_rows(a.rows, 1) == 0) {
#pragma unroll 1
      for (int e = lane; e <= a.E; e += 32) a.offsets[e] = 0;
#pragma unroll 1
      for (int k = lane; k < a.K; k += 32) a.token[k] = 0;
      return;
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) key[i] = lane + i * 32 < E ? route_key(v[i]) : 0u;

    const uint32_t least = bound(key, K, lane);
    int count = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i * 32 >= E) break;
      const bool reaches = key[i] >= least;
      const uint32_t all = __ballot_sync(kAll, reaches);
      const int at = count + __popc(all & lower);
      if (reaches) m.reach[at] = key[i], m.expert[at] = lane + i * 32;
      count += __popc(all);
    }
    __syncwarp();
    for (int c = lane; c < count; c += 32) {
      const uint32_t mine = m.reach[c];
      int rank = 0;
#pragma unroll 4
      for (int j = 0; j < count; ++j) rank += precedes(m.reach[j], j, mine, c);
      if (rank < K) m.key[rank] = mine, m.chosen[rank] = m.expert[c];
    }
    __syncwarp();

    const uint32_t last_key = m.key[K - 1];
    const int last = m.chosen[K - 1];
    int before = 0;  // chosen experts below these
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i * 32 >= E) break;
      const int e = lane + i * 32;
      const uint32_t all = __ballot_sync(kAll, e < E && !precedes(last_key, last, key[i], e));
      if (e < E) a.offsets[e] = before + __popc(all & lower);
      before += __popc(all);
    }
    if (lane <= a.E - E) a.offsets[E + lane] = K + lane;  // a shared expert, the end

    const float top = route_value(m.key[0]);
    const int mine = lane < K ? m.chosen[lane] : 0;
    const float p = expf(route_value(m.key[lane < K ? lane : 0]) - top);
    float mass = 0.0f;
    int place = 0;
    for (int k = 0; k < K; ++k) {
      if (a.renormalize) mass += __shfl_sync(kAll, p, k);
      place += __shfl_sync(kAll, mine, k) < mine;
    }
    if (!a.renormalize) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
        if (lane + i * 32 < E) mass += expf(route_value(key[i]) - top);
      mass = warp_reduce(mass, Sum{});
    }
    if (lane < K) a.weights[lane] = p / mass, a.place[lane] = place, a.token[lane] = 0;
    if (a.shared && lane == 0) a.weights[K] = route_shared(logit), a.place[K] = K, a.token[K] = 0;
  }
};

/// Grid: a block.
template <class T, int kExperts>
__global__ void __launch_bounds__(32) moe_route_one(const __grid_constant__ MoeRouteArgs a) {
  __shared__ typename RouteOne<T, kExperts>::Shared memory;
  ptx::touch_parameters(a);
  ptx::dependency_wait();
  ptx::launch_dependents();
  RouteOne<T, kExperts>::run(a, memory);
}

/// Grid: one cluster. Shared memory: (warps + 2) * E counts.
template <class T, MoeRoutePolicy P>
__global__ void __launch_bounds__(P.threads, 1) moe_route(const __grid_constant__ MoeRouteArgs a) {
  constexpr int kWarps = P.threads / 32, kAtOnce = 4;
  extern __shared__ __align__(16) int route_smem[];
  int* const mine =
      route_smem + static_cast<int>(threadIdx.x) / 32 * a.E;  // choices of this warp's tokens; then its next place
  int *const total = route_smem + kWarps * a.E, *const first =
                                                    total +
                                                    a.E;  // choices of this block; then where each expert begins
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = ptx::cluster_rank<P.cluster>();
  for (int i = threadIdx.x; i < kWarps * a.E; i += P.threads) route_smem[i] = 0;
  ptx::dependency_wait();
  ptx::launch_dependents();
  __syncthreads();
  const int64_t M = valid_rows(a.rows, a.T);
  const int64_t part = rank * kWarps + warp, parts = P.cluster * kWarps;
  const int64_t begin = M * part / parts, end = M * (part + 1) / parts;

  const int E = a.candidates(), K = a.drawn();
  const auto logits_of = [&](int64_t t) { return static_cast<const T*>(a.logits) + t * a.logits_stride; };
  const auto row_of = [&](int64_t t) { return RouteRow<T>(logits_of(t), E, t < end); };
  RouteRow<T> row = row_of(begin);
  for (int64_t t = begin; t < end; ++t) {
    const RouteRow<T> after = row_of(t + 1);  // its logits are on their way while this token's experts are chosen
    float* const w = a.weights + t * a.weights_stride;
    float top = 0.0f, mass = 0.0f, mine_p = 0.0f;
    int32_t* const place = a.place + t * a.place_stride;
    uint32_t key = 0;
    int e = -1, mine_e = 0;
    for (int k = 0; k < K; ++k) {
      e = row.next(key, e, &key);
      const float v = route_value(key);
      if (k == 0) {
        top = v;
        if (!a.renormalize) mass = row.mass(top);
      }
      row.choose(e);
      const float p = expf(v - top);
      if (a.renormalize) mass += p;
      if (lane == k % 32) mine_p = p, mine_e = e;
      if (k % 32 < 31 && k < K - 1) continue;
      const int at = k - k % 32 + lane;  // choices leave 32 at a time
      if (at > k) continue;
      w[at] = K <= 32 ? mine_p / mass : mine_p;
      place[at] = mine_e;  // the expert for now
      ++mine[mine_e];      // a token's experts differ: no two lanes meet in a count
    }
    if (a.shared && lane == 0) w[K] = route_shared(to_float(logits_of(t)[E])), place[K] = E, ++mine[E];
    __syncwarp();  // all weights are there
    if (K > 32)
      for (int k = lane; k < K; k += 32) w[k] = w[k] / mass;
    row = after;
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
    for (int e0 = 0; e0 < a.E; e0 += 32 * kAtOnce) {
      int n[kAtOnce], sum[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sum[i] = n[i] = e0 + i * 32 + lane < a.E ? first[e0 + i * 32 + lane] : 0;
#pragma unroll
      for (int d = 1; d < 32; d *= 2)
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int other = __shfl_up_sync(0xffffffffu, sum[i], d);
          if (lane >= d) sum[i] += other;
        }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int e = e0 + i * 32 + lane, before = carry + sum[i] - n[i];
        if (e < a.E) {
          first[e] = before;
          if (rank == 0) a.offsets[e] = before;
        }
        carry += __shfl_sync(0xffffffffu, sum[i], 31);
      }
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
