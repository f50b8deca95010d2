// merge_states on CUDA: formula in vivace/ops/merge_states.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/attention/merge_states.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Grid: T * ceil(Hq / P.heads(Dv)) blocks, each some heads of a token. A thread keeps `vec` elements of a head and
/// brings four states at a time, scores and values together: what it waits for is memory once.
template <class In, MergeStatesPolicy P>
__global__ void __launch_bounds__(P.threads) merge_states(const __grid_constant__ MergeStatesArgs a) {
  constexpr float kLowest = -__builtin_bit_cast(float, 0x7f800000u), kLog2e = 1.44269504f, kLn2 = 0.693147181f;
  constexpr int kTogether = 4;
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int heads = P.heads(a.Dv), parts = (a.Hq + heads - 1) / heads, chunks = P.chunks(a.Dv);
  const int64_t t = blockIdx.x / static_cast<uint32_t>(parts);
  if (t >= valid_rows(a.rows, a.T)) return;
  const int thread = static_cast<int>(threadIdx.x), local = chunks < P.threads ? thread / chunks : 0,
            chunk = chunks < P.threads ? thread % chunks : thread;
  const int h = static_cast<int>(blockIdx.x % static_cast<uint32_t>(parts)) * heads + local;
  const bool mine = local < heads && h < a.Hq;
  const float unit = a.base2 ? 1.0f : kLog2e;  // exponents are powers of two below
  const float* const s = a.s + t * a.s_stride + h;
  const In* const v = static_cast<const In*>(a.v) + t * a.v_stride + int64_t{h} * a.Dv;
  const int64_t pitch = int64_t{a.Hq} * a.Dv;
  const int states = a.N + (a.v2 != nullptr ? 1 : 0);

  float base = 0, row_sum = 0;
  if (mine) {
    for (int d = chunk * P.vec; d < a.Dv; d += P.threads * P.vec) {  // one turn but for the longest heads
      float sum[P.vec] = {}, row_max = kLowest;
      row_sum = 0;
      for (int n0 = 0; n0 < states; n0 += kTogether) {
        float x[kTogether][P.vec], w[kTogether];
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
          const int n = n0 + u;
          w[u] = n < a.N ? s[int64_t{n} * a.Hq] : n < states ? a.s2[t * a.s2_stride + h] : kLowest;
#pragma unroll
          for (int i = 0; i < P.vec; ++i) x[u][i] = 0;
          if (n < a.N) load<P.vec>(v + n * pitch + d, x[u]);
          else if (n < states)
            load<P.vec>(static_cast<const In*>(a.v2) + t * a.v2_stride + int64_t{h} * a.Dv + d, x[u]);
        }
        float highest = row_max;
#pragma unroll
        for (int u = 0; u < kTogether; ++u) highest = fmaxf(highest, w[u]);
        base = highest == kLowest ? 0.0f : highest;
        const float shrink = exp2f((row_max - base) * unit);
        row_max = highest;
        row_sum *= shrink;
#pragma unroll
        for (int i = 0; i < P.vec; ++i) sum[i] *= shrink;
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
          const float weight = exp2f((w[u] - base) * unit);
          row_sum += weight;
#pragma unroll
          for (int i = 0; i < P.vec; ++i) sum[i] += weight == 0 ? 0.0f : weight * x[u][i];
        }
      }
      const float factor = row_sum == 0 ? 0.0f : 1.0f / row_sum;
#pragma unroll
      for (int i = 0; i < P.vec; ++i) sum[i] *= factor;
      store<P.vec>(static_cast<In*>(a.out) + t * a.out_stride + int64_t{h} * a.Dv + d, sum);
    }
  }
  if (a.lse == nullptr) return;
  __syncthreads();  // every thread has read s2, which lse may be
  if (mine && chunk == 0)
    a.lse[t * a.lse_stride + h] = row_sum == 0 ? kLowest : base + log2f(row_sum) * (a.base2 ? 1.0f : kLn2);
}

}  // namespace vivace::kernels
