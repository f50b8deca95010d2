// kv_append on CUDA: formula in vivace/ops/kv_append.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/rope/kv_append.h"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Grid: T blocks. Moves 2 * Hkv * D elements in and out a token.
template <class X, class Kv, KvAppendPolicy P>
__global__ void __launch_bounds__(P.threads) kv_append(const __grid_constant__ KvAppendArgs a) {
  constexpr int V = P.vec;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = blockIdx.x;
  if (t >= valid_rows(a.rows, a.T)) return;
  const KvCache::Place place = a.cache.place(a.cache.slot ? a.cache.slot[t] : 0, a.pos[t]);
  if (place.block < 0) return;
  const int width = a.Hkv * a.D;
  const X* k = static_cast<const X*>(a.k) + t * a.k_stride;
  const X* v = static_cast<const X*>(a.v) + t * a.v_stride;
  Kv* k_to = static_cast<Kv*>(a.cache.k) + a.cache.element(place, a.cache.k_stride);
  Kv* v_to = static_cast<Kv*>(a.cache.v) + a.cache.element(place, a.cache.v_stride);
  const int64_t gap = a.cache.head_pitch() - a.D;  // between heads; 0 where a token's lie side by side
  for (int i = static_cast<int>(threadIdx.x) * V; i < width; i += P.threads * V) {
    float from_k[V], from_v[V];
    load<V>(k + i, from_k);
    load<V>(v + i, from_v);
    const int64_t at = i + (gap != 0 ? i / a.D * gap : 0);
    store<V>(k_to + at, from_k);
    store<V>(v_to + at, from_v);
  }
}

}  // namespace vivace::kernels
