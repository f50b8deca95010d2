// causal_conv on CUDA: formula in vivace/ops/causal_conv.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/linear/causal_conv.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

template <class In, CausalConvPolicy P>
struct CausalConvThread {
  static constexpr int K = P.taps, V = P.vec;
  const CausalConvArgs& a;
  int c;               // first channel
  float w[V][K], b[V];

  __device__ __forceinline__ void input(int t, float (&x)[V]) const {
    load<V>(static_cast<const In*>(a.x) + t * a.x_stride + c, x);
  }
  __device__ __forceinline__ float* stored(int row, int k) const {
    return a.state + row * a.state_stride + int64_t{k} * a.C + c;
  }

  /// window[k]: the input k - (K - 1) tokens from the one at hand.
  __device__ __forceinline__ void put(int t, const float (&window)[K][V]) const {
    float y[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      y[i] = b[i];
#pragma unroll
      for (int k = 0; k < K; ++k) y[i] += w[i][k] * window[k][i];
      if (a.silu) y[i] = y[i] / (1.0f + expf(-y[i]));
    }
    store<V>(static_cast<In*>(a.out) + t * a.out_stride + c, y);
  }
  __device__ __forceinline__ static void advance(float (&window)[K][V]) {
#pragma unroll
    for (int k = 0; k + 1 < K; ++k)
#pragma unroll
      for (int i = 0; i < V; ++i) window[k][i] = window[k + 1][i];
  }

  /// The head of a sequence: tokens [first, end) that reach back into its state; then what its last tokens leave there.
  /// One thread does both, so that nobody reads the state while it is written.
  __device__ __forceinline__ void head(int n, int first, int end, int past) const {
    const int row = a.sequences.row(n);
    const bool zero = a.sequences.starts_at_zero(n);
    float window[K][V] = {};
#pragma unroll
    for (int k = 0; k + 1 < K; ++k)
      if (!zero) load<V>(stored(row, k), window[k + 1]);
    const int turns = past - first < K - 1 ? past - first : K - 1;
    for (int u = 0; u < turns; ++u) {
      advance(window);
      input(first + u, window[K - 1]);
      if (first + u < end) put(first + u, window);
    }
    if (row < 0 || a.frozen) return;
    for (int t = first + turns > past - (K - 1) ? first + turns : past - (K - 1); t < past; ++t) {
      advance(window);
      input(t, window[K - 1]);
    }
#pragma unroll
    for (int k = 0; k + 1 < K; ++k) store<V>(stored(row, k), window[k + 1]);
  }

  /// Tokens [begin, end), none of which reaches back beyond its sequence's first token.
  __device__ __forceinline__ void body(int begin, int end) const {
    float window[K][V] = {};
#pragma unroll
    for (int k = 0; k + 1 < K; ++k) input(begin - (K - 1) + k, window[k + 1]);
    constexpr int kTogether = 4;  // inputs in flight
    int t = begin;
    for (; t + kTogether <= end; t += kTogether) {
      float next[kTogether][V];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) input(t + u, next[u]);
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        advance(window);
#pragma unroll
        for (int i = 0; i < V; ++i) window[K - 1][i] = next[u][i];
        put(t + u, window);
      }
    }
    for (; t < end; ++t) {
      advance(window);
      input(t, window[K - 1]);
      put(t, window);
    }
  }
};

/// Grid: ceil(T / P.tokens) * ceil(C / (P.threads * P.vec)) blocks. Tokens of no sequence are not written.
template <class In, CausalConvPolicy P>
__global__ void __launch_bounds__(P.threads) causal_conv(const __grid_constant__ CausalConvArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int slices = (a.C + P.threads * P.vec - 1) / (P.threads * P.vec),
            slice = static_cast<int>(blockIdx.x % static_cast<uint32_t>(slices));
  const int c = (slice * P.threads + static_cast<int>(threadIdx.x)) * P.vec;
  if (c >= a.C) return;
  const int T = valid_rows(a.rows, a.T), t0 = static_cast<int>(blockIdx.x / static_cast<uint32_t>(slices)) * P.tokens,
            t1 = min(t0 + P.tokens, T);
  if (t0 >= t1) return;
  CausalConvThread<In, P> me{a, c, {}, {}};
#pragma unroll
  for (int i = 0; i < P.vec; ++i) {
#pragma unroll
    for (int k = 0; k < P.taps; ++k)
      me.w[i][k] = to_float(static_cast<const In*>(a.weight)[(c + i) * a.weight_stride + k]);
    me.b[i] = a.bias != nullptr ? to_float(static_cast<const In*>(a.bias)[c + i]) : 0.0f;
  }
  // The last sequence that begins at or before t0, then those that begin among these tokens.
  int n = 0;
  if (a.sequences.offsets != nullptr) {
    int high = a.sequences.N;
    while (n + 1 < high) {
      const int middle = (n + high) / 2;
      if (a.sequences.offsets[middle] <= t0) n = middle;
      else high = middle;
    }
  }
  for (; n < a.sequences.N; ++n) {
    const int first = a.sequences.first(n, T), past = a.sequences.past(n, T);
    if (first >= t1) return;
    if (first >= t0 && past > first) me.head(n, first, past, past);
    const int begin = max(t0, first + P.taps - 1), end = min(t1, past);
    if (begin < end) me.body(begin, end);
  }
}

}  // namespace vivace::kernels
