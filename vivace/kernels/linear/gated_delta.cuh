// gated_delta on CUDA: formula in vivace/ops/gated_delta.h. The state of a head stays in registers while its
// tokens go by; a block's columns need nothing of the others'.
// Chosen when: what gated_delta_chunks does not take: few tokens, other types and heads, chips of less shared memory.
#pragma once
#include "vivace/kernels/linear/delta_gates.cuh"
#include "vivace/kernels/linear/gated_delta.h"
#include "vivace/kernels/linear/gated_delta_chunks.cuh"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Grid: N * Hv * ceil(Dv / P.columns) blocks. A thread's lane is its place among those that share a column:
/// threads of a warp that differ in it are neighbours of a shuffle.
template <class In, GatedDeltaPolicy P>
__global__ void __launch_bounds__(P.threads()) gated_delta(const __grid_constant__ GatedDeltaArgs a) {
  constexpr int kRows = P.lanes * P.items, kTokens = P.lanes > 8 ? 4 : 8;  // tokens brought together
  static_assert(32 % P.lanes == 0 && P.threads() % 32 == 0 && P.items % 4 == 0);
  // Rows as lanes read them: item i of lane l at i * lanes + l, four items at a time.
  __shared__ float keys[kTokens][kRows], queries[kTokens][kRows], gates[kTokens], betas[kTokens];
  ptx::touch_parameters(a);
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int slices = (a.Dv + P.columns - 1) / P.columns,
            slice = static_cast<int>(blockIdx.x % static_cast<uint32_t>(slices));
  const int hv = static_cast<int>(blockIdx.x / static_cast<uint32_t>(slices) % static_cast<uint32_t>(a.Hv));
  const int n = static_cast<int>(blockIdx.x / static_cast<uint32_t>(slices) / static_cast<uint32_t>(a.Hv)),
            hk = hv / a.group();
  const int T = valid_rows(a.rows, a.T), first = a.sequences.first(n, T), past = a.sequences.past(n, T);
  const int slot = a.sequences.row(n);  // asked for at once with the bounds, not behind them
  const bool zero = a.sequences.starts_at_zero(n);
  if (first >= past) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % P.lanes,
            column = slice * P.columns + thread / P.lanes;
  const bool mine = column < a.Dv;
  // Row 4 (i lanes + lane) + e of the state is item 4 i + e.
  const auto row_of = [&](int item) { return (item / 4 * P.lanes + lane) * 4 + item % 4; };

  float state[P.items];
  float* const stored = a.state + (slot < 0 ? 0 : slot) * a.state_stride + int64_t{hv} * (a.D * a.Dv) + column;
#pragma unroll
  for (int i = 0; i < P.items; ++i)
    state[i] = !zero && mine && row_of(i) < a.D ? stored[int64_t{row_of(i)} * a.Dv] : 0.0f;

  for (int t0 = first; t0 < past; t0 += kTokens) {
    const int count = min(kTokens, past - t0);
    __syncthreads();  // everyone is done with the tokens before
    // A warp a row of q or k: its length, and the row as f32.
    for (int r = thread / 32; r < 2 * count; r += P.threads() / 32) {
      const int64_t t = t0 + r / 2;
      const In* from =
          (r % 2 == 0 ? static_cast<const In*>(a.k) + t * a.k_stride : static_cast<const In*>(a.q) + t * a.q_stride) +
          int64_t{hk} * a.D;
      float* const to = r % 2 == 0 ? keys[r / 2] : queries[r / 2];
      constexpr int kEach = (kRows + 31) / 32;
      float x[kEach], square = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int d = i * 32 + thread % 32;
        x[i] = d < a.D ? to_float(from[d]) : 0.0f;
        square += x[i] * x[i];
      }
#pragma unroll
      for (int step = 16; step > 0; step >>= 1) square += __shfl_xor_sync(0xffffffffu, square, step);
      const float factor = (a.normalize ? rsqrtf(square + 1e-6f) : 1.0f) * (r % 2 == 0 ? 1.0f : a.scale);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (i * 32 + thread % 32 < kRows) to[i * 32 + thread % 32] = x[i] * factor;
    }
    // The last warp: of one token the first two have the rows.
    if (const int u = thread - (P.threads() - 32); u >= 0 && u < count) {
      const int64_t t = t0 + u;
      if (a.gates.present()) {
        gates[u] = expf(delta_decay<In>(a.gates, t, hv)), betas[u] = delta_beta<In>(a.gates, t, hv);
      } else {
        gates[u] = a.decay != nullptr ? expf(a.decay[t * a.decay_stride + hv]) : 1.0f;
        betas[u] = a.beta != nullptr ? a.beta[t * a.beta_stride + hv] : 1.0f;
      }
    }
    __syncthreads();
    float values[kTokens];
#pragma unroll
    for (int u = 0; u < kTokens; ++u)
      values[u] = u < count && mine
                      ? to_float(static_cast<const In*>(a.v)[(t0 + u) * a.v_stride + int64_t{hv} * a.Dv + column])
                      : 0.0f;
#pragma unroll
    for (int u = 0; u < kTokens; ++u) {
      if (u >= count) break;
      float sum[4] = {};
#pragma unroll
      for (int i = 0; i < P.items; i += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&keys[u][(i / 4 * P.lanes + lane) * 4]);
        state[i] *= gates[u], state[i + 1] *= gates[u], state[i + 2] *= gates[u], state[i + 3] *= gates[u];
        sum[0] += k.x * state[i], sum[1] += k.y * state[i + 1], sum[2] += k.z * state[i + 2],
            sum[3] += k.w * state[i + 3];
      }
      float held = (sum[0] + sum[1]) + (sum[2] + sum[3]);
#pragma unroll
      for (int step = P.lanes / 2; step > 0; step >>= 1) held += __shfl_xor_sync(0xffffffffu, held, step);
      const float change = betas[u] * (values[u] - held);
      float y[4] = {};
#pragma unroll
      for (int i = 0; i < P.items; i += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&keys[u][(i / 4 * P.lanes + lane) * 4]);
        const float4 q = *reinterpret_cast<const float4*>(&queries[u][(i / 4 * P.lanes + lane) * 4]);
        state[i] += k.x * change, state[i + 1] += k.y * change, state[i + 2] += k.z * change,
            state[i + 3] += k.w * change;
        y[0] += q.x * state[i], y[1] += q.y * state[i + 1], y[2] += q.z * state[i + 2], y[3] += q.w * state[i + 3];
      }
      float out = (y[0] + y[1]) + (y[2] + y[3]);
#pragma unroll
      for (int step = P.lanes / 2; step > 0; step >>= 1) out += __shfl_xor_sync(0xffffffffu, out, step);
      if (mine && lane == 0)
        static_cast<In*>(a.out)[(t0 + u) * a.out_stride + int64_t{hv} * a.Dv + column] = from_float<In>(out);
    }
  }
  if (slot < 0 || a.frozen || !mine) return;
#pragma unroll
  for (int i = 0; i < P.items; ++i)
    if (row_of(i) < a.D) stored[int64_t{row_of(i)} * a.Dv] = state[i];
}

}  // namespace vivace::kernels
