// qkv_rope on CUDA: formula in vivace/ops/qkv_rope.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/ptx/prefetch.cuh"
#include "vivace/kernels/rope/qkv_ahead.cuh"
#include "vivace/kernels/rope/qkv_rope.h"
#include "vivace/kernels/rope/rotate.cuh"

namespace vivace::kernels {

/// Grid: T * P.blocks(Hq + 2 Hkv) blocks. Moves every element once in and once out.
template <class X, class Kv, RopePolicy P, class Args>
__device__ __forceinline__ void qkv_rope_tokenwise(const Args& a) {
  __shared__ RopeAngles<P> angles;
  const int heads = a.Hq + 2 * a.Hkv, blocks = P.blocks(heads);
  const int lane = static_cast<int>(threadIdx.x) % P.lanes;
  const int first =
      static_cast<int>(blockIdx.x % blocks) * P.slots() * P.heads + static_cast<int>(threadIdx.x) / P.lanes;
  int R = a.inv_freq ? a.R : 0;
  if constexpr (requires { a.angles; })
    if (a.angles != nullptr) R = a.R;
  HeadPart<P> part(lane, a.D, R, a.style);
  // The norm's weights are wanted behind the barrier only: their way from memory starts here. Among many
  // tokens the hints would cost more than they bring.
  if (const void* w = first < a.Hq ? a.q_norm : a.k_norm; P.heads == 1 && w != nullptr && part.a[0] >= 0)
    ptx::prefetch_l2(static_cast<const char*>(w) +
                     part.a[0] * ((first < a.Hq ? a.q_norm_dtype : a.k_norm_dtype) == DType::f32 ? 4 : 2));
  ptx::dependency_wait();
  ptx::launch_dependents();
  // Loads that follow from the arguments alone travel together; a row that the device says is not there is read, and
  // dropped.
  const int64_t t = blockIdx.x / blocks;
  const int pos = a.pos ? a.pos[t] : 0, slot = a.cache.slot ? a.cache.slot[t] : 0;
  const X* qkv = static_cast<const X*>(a.qkv) + t * a.qkv_stride;
  typename HeadPart<P>::template Raw<X> raw[P.heads];
#pragma unroll
  for (int n = 0; n < P.heads; ++n)
    if (first + n * P.slots() < heads) part.load_head(qkv + int64_t{first + n * P.slots()} * a.D, raw[n]);
  if (t >= valid_rows(a.rows, a.T)) return;
  const KvCache::Place place = a.cache.k ? a.cache.place(slot, pos) : KvCache::Place{-1, 0};
  if constexpr (requires { a.shift; }) {
    if (a.angles != nullptr) angles.copy(a.angles + t * a.angles_stride, R);
    else angles.fill_each(a.inv_freq, R, a.attn_factor, [&](int i) { return a.turned(t, i); });
  } else {
    angles.fill(a.inv_freq, R, static_cast<float>(pos), a.attn_factor);
  }
  __syncthreads();
  const bool norms = a.q_norm != nullptr || a.k_norm != nullptr;
#pragma unroll
  for (int n = 0; n < P.heads; ++n) {
    const int head = first + n * P.slots();
    // 0: q, 1: k, 2: v. Beyond the last head a thread goes along for the shuffles and stores nothing.
    const int kind = head < a.Hq ? 0 : head < a.Hq + a.Hkv ? 1 : 2;
    float h[P.chunks][2 * P.vec];
    part.upcast(raw[n], h);
    if (norms) {
      const float inverse = part.inverse_rms(h, a.D, a.eps);
      const void* w = kind == 0 ? a.q_norm : kind == 1 ? a.k_norm : nullptr;
      if (w != nullptr) {
        float weight[P.chunks][2 * P.vec];
        part.load_weights(w, kind == 0 ? a.q_norm_dtype : a.k_norm_dtype, a.norm_plus_one ? 1.0f : 0.0f, weight);
        part.scale(h, inverse, weight);
      }
    }
    if (head >= heads) continue;
    if (kind != 2 && R > 0) {
      part.take_angles(angles, lane);
      part.rotate(h);
    }
    const int64_t of_kind = head - (kind == 0 ? 0 : kind == 1 ? a.Hq : a.Hq + a.Hkv), at = of_kind * a.D;
    if (kind == 0) {
      part.store_head(static_cast<X*>(a.q) + t * a.q_stride + at, h);
    } else if (a.k_out != nullptr) {
      X* out = static_cast<X*>(kind == 1 ? a.k_out : a.v_out) + t * (kind == 1 ? a.k_stride : a.v_stride);
      part.store_head(out + at, h);
    } else if (place.block >= 0) {
      Kv* cache = static_cast<Kv*>(kind == 1 ? a.cache.k : a.cache.v);
      part.store_head(cache + a.cache.element(place, kind == 1 ? a.cache.k_stride : a.cache.v_stride) +
                          of_kind * a.cache.head_pitch(),
                      h);
    }
  }
}

template <class X, class Kv, RopePolicy P, class Args = QkvRopeArgs>
__global__ void __launch_bounds__(P.threads, P.tokens > 1 ? kQkvAheadBlocks : 1)
    qkv_rope(const __grid_constant__ Args a) {
  if constexpr (P.tokens > 1) {
    qkv_rope_ahead<X, Kv, P>(a);
  } else {
    qkv_rope_tokenwise<X, Kv, P>(a);
  }
}

}  // namespace vivace::kernels
