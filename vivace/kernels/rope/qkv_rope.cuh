// qkv_rope on CUDA: formula in vivace/ops/qkv_rope.h.
#pragma once
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/rope/qkv_rope.h"
#include "vivace/kernels/rope/rotate.cuh"

namespace vivace::kernels {

/// Element `i` of a norm weight, whose type is known at run time only: [D] values that stay in L1.
__device__ __forceinline__ float norm_weight(const void* w, DType dtype, int i) {
  if (dtype == DType::f32) return static_cast<const float*>(w)[i];
  if (dtype == DType::bf16) return to_float(static_cast<const bf16*>(w)[i]);
  return to_float(static_cast<const f16*>(w)[i]);
}

/// Grid: T * P.blocks(Hq + 2 Hkv) blocks. Moves every element once in and once out.
template <class X, class Kv, RopePolicy P>
__global__ void __launch_bounds__(P.threads) qkv_rope(const __grid_constant__ QkvRopeArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int heads = a.Hq + 2 * a.Hkv, blocks = P.blocks(heads);
  const int64_t t = blockIdx.x / blocks;
  if (t >= valid_rows(a.rows, a.T)) return;
  const int lane = static_cast<int>(threadIdx.x) % P.lanes;
  const int first = static_cast<int>(blockIdx.x % blocks) * P.slots() * P.heads + static_cast<int>(threadIdx.x) / P.lanes;
  const X* qkv = static_cast<const X*>(a.qkv) + t * a.qkv_stride;
  const int R = a.inv_freq ? a.R : 0;
  HeadPart<P> part(lane, a.D, R, a.style);
  float h[P.heads][P.chunks][2 * P.vec];
#pragma unroll
  for (int n = 0; n < P.heads; ++n)
    if (first + n * P.slots() < heads) part.load_head(qkv + int64_t{first + n * P.slots()} * a.D, h[n]);

  const int pos = a.pos ? a.pos[t] : 0;
  if (R > 0) part.set_angles(a.inv_freq, lane, static_cast<float>(pos), a.attn_factor);
  const int64_t row = a.cache.k ? a.cache.row(a.cache.slot ? a.cache.slot[t] : 0, pos) : -1;
  const int64_t width = int64_t{a.Hkv} * a.D;
  const float plus = a.norm_plus_one ? 1.0f : 0.0f;
#pragma unroll
  for (int n = 0; n < P.heads; ++n) {
    const int head = first + n * P.slots();
    // 0: q, 1: k, 2: v. Beyond the last head a thread goes along for the shuffles and stores nothing.
    const int kind = head < a.Hq ? 0 : head < a.Hq + a.Hkv ? 1 : 2;
    if (a.q_norm != nullptr || a.k_norm != nullptr) {
      const void* w = kind == 0 ? a.q_norm : kind == 1 ? a.k_norm : nullptr;
      const DType dtype = kind == 0 ? a.q_norm_dtype : a.k_norm_dtype;
      float normed[P.chunks][2 * P.vec];
#pragma unroll
      for (int k = 0; k < P.chunks; ++k)
#pragma unroll
        for (int i = 0; i < 2 * P.vec; ++i) normed[k][i] = head < heads ? h[n][k][i] : 0.0f;
      part.norm(normed, a.D, a.eps, [&](int i) { return w ? norm_weight(w, dtype, i) : 0.0f; }, plus);
      if (w != nullptr)
#pragma unroll
        for (int k = 0; k < P.chunks; ++k)
#pragma unroll
          for (int i = 0; i < 2 * P.vec; ++i) h[n][k][i] = normed[k][i];
    }
    if (head >= heads) continue;
    if (kind != 2 && R > 0) part.rotate(h[n]);
    const int64_t at = int64_t{head - (kind == 0 ? 0 : kind == 1 ? a.Hq : a.Hq + a.Hkv)} * a.D;
    if (kind == 0) {
      part.store_head(static_cast<X*>(a.q) + t * a.q_stride + at, h[n]);
    } else if (a.k_out != nullptr) {
      X* out = static_cast<X*>(kind == 1 ? a.k_out : a.v_out) + t * (kind == 1 ? a.k_stride : a.v_stride);
      part.store_head(out + at, h[n]);
    } else if (row >= 0) {
      Kv* cache = static_cast<Kv*>(kind == 1 ? a.cache.k : a.cache.v);
      part.store_head(cache + a.cache.element(row, kind == 1 ? a.cache.k_stride : a.cache.v_stride, width) + at, h[n]);
    }
  }
}

}  // namespace vivace::kernels
