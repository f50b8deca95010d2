// merge_states on CUDA: formula in vivace/ops/merge_states.h.
#pragma once
#include "vivace/kernels/attention/merge_states.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Grid: a warp for each of T * Hq heads, in blocks of P.threads. Reads each state that has mass once.
template <class In, MergeStatesPolicy P>
__global__ void __launch_bounds__(P.threads) merge_states(const __grid_constant__ MergeStatesArgs a) {
  constexpr float kLowest = -__builtin_bit_cast(float, 0x7f800000u), kLog2e = 1.44269504f, kLn2 = 0.693147181f;
  constexpr int kTogether = 4;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t head = int64_t{blockIdx.x} * (P.threads / 32) + threadIdx.x / 32;
  const int64_t t = head / a.Hq;
  const int h = static_cast<int>(head % a.Hq), lane = static_cast<int>(threadIdx.x % 32);
  if (t >= valid_rows(a.rows, a.T)) return;
  const float unit = a.base2 ? 1.0f : kLog2e;  // exponents are powers of two below
  const float* const s = a.s + t * a.s_stride + h;
  const float other = a.v2 != nullptr ? a.s2[t * a.s2_stride + h] : kLowest;

  float top = other;
  for (int n = lane; n < a.N; n += 32) top = fmaxf(top, s[int64_t{n} * a.Hq]);
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
  const float base = top == kLowest ? 0.0f : top;
  const auto weight = [&](float x) { return exp2f((x - base) * unit); };
  float mass = 0;
  for (int n = lane; n < a.N; n += 32) mass += weight(s[int64_t{n} * a.Hq]);
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) mass += __shfl_xor_sync(0xffffffffu, mass, step);
  const float last = weight(other);
  mass += last;
  const float factor = mass == 0 ? 0.0f : 1.0f / mass;

  const In* const v = static_cast<const In*>(a.v) + t * a.v_stride + int64_t{h} * a.Dv;
  const In* const v2 = static_cast<const In*>(a.v2) + (a.v2 != nullptr ? t * a.v2_stride + int64_t{h} * a.Dv : 0);
  In* const out = static_cast<In*>(a.out) + t * a.out_stride + int64_t{h} * a.Dv;
  const int64_t pitch = int64_t{a.Hq} * a.Dv;
  for (int d = lane * P.vec; d < a.Dv; d += 32 * P.vec) {
    float sum[P.vec] = {};
    for (int n0 = 0; n0 < a.N; n0 += kTogether) {
      float x[kTogether][P.vec], w[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        w[u] = n0 + u < a.N ? weight(s[int64_t{n0 + u} * a.Hq]) : 0.0f;
#pragma unroll
        for (int i = 0; i < P.vec; ++i) x[u][i] = 0;
        if (w[u] != 0) load<P.vec>(v + (n0 + u) * pitch + d, x[u]);
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
#pragma unroll
        for (int i = 0; i < P.vec; ++i) sum[i] += w[u] * x[u][i];
    }
    if (last != 0 && a.v2 != nullptr) {
      float x[P.vec];
      load<P.vec>(v2 + d, x);
#pragma unroll
      for (int i = 0; i < P.vec; ++i) sum[i] += last * x[i];
    }
#pragma unroll
    for (int i = 0; i < P.vec; ++i) sum[i] *= factor;
    store<P.vec>(out + d, sum);
  }
  __syncwarp();  // every lane has read s2, which lse may be
  if (a.lse != nullptr && lane == 0) a.lse[t * a.lse_stride + h] = mass == 0 ? kLowest : base + log2f(mass) * (a.base2 ? 1.0f : kLn2);
}

}  // namespace vivace::kernels
