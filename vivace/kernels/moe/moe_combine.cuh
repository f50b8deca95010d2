// moe_combine on CUDA: formula in vivace/ops/moe_combine.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/moe/moe_combine.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/stretch.cuh"

namespace vivace::kernels {

/// sum += choices k to k + kCount - 1, in that order, with all their rows on their way together. By whole warps.
template <int kCount, class In, StretchPolicy P>
__device__ __forceinline__ void add_choices(const MoeCombineArgs& a, const StretchPlace<P>& place, int k,
                                            float (&sum)[P.items][P.vec]) {
  const int64_t A = int64_t{a.T} * a.K;
  int64_t at = 0;
  float weight = 0.0f;
  if (const int lane = threadIdx.x % 32; lane < kCount) {
    at = a.place[place.t * a.place_stride + k + lane], weight = a.weights[place.t * a.weights_stride + k + lane];
    if (at < 0 || at >= A) at = 0, weight = __uint_as_float(0x7fc00000u);
    at *= a.y_stride;
  }
  const In* y[kCount];
  float v[kCount][P.items][P.vec];
#pragma unroll
  for (int j = 0; j < kCount; ++j) y[j] = static_cast<const In*>(a.y) + __shfl_sync(0xffffffffu, at, j);
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    place.each_clamped([&](int i, int col) { load<P.vec>(y[j] + col, v[j][i]); });
  __syncwarp();  // no weight before all rows are asked for: the compiler would have two or three on their way
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float w = __shfl_sync(0xffffffffu, weight, j);
#pragma unroll
    for (int i = 0; i < P.items; ++i)
#pragma unroll
      for (int e = 0; e < P.vec; ++e) sum[i][e] = fmaf(w, v[j][i][e], sum[i][e]);
  }
}

/// Grid: T * ceil(N / stretch) blocks. Moves K rows of In in and one of Out out (two with a residual) a token.
template <class In, class Out, StretchPolicy P>
__global__ void __launch_bounds__(P.threads) moe_combine(const __grid_constant__ MoeCombineArgs a) {
  constexpr int kAtOnce =
      P.threads > 128 ? 2 : 8 / P.items;  // few tokens wait for one row after the other, many fill the chip with warps
  constexpr bool kEarly = P.items * P.vec <= 8;                // the residual: there are registers for it all along
  ptx::dependency_wait();
  ptx::launch_dependents();
  const StretchPlace<P> place(a.N);
  const int64_t t = place.t;
  if (t >= valid_rows(a.rows, a.T)) return;
  float sum[P.items][P.vec] = {}, plus[P.items][P.vec];
  const auto load_residual = [&] {
    if (a.residual != nullptr)
      place.each_clamped([&](int i, int col) {
        load<P.vec>(static_cast<const Out*>(a.residual) + t * a.residual_stride + col, plus[i]);
      });
  };
  if constexpr (kEarly) load_residual();
  int k = 0;
  for (; k + kAtOnce <= a.K; k += kAtOnce) add_choices<kAtOnce, In>(a, place, k, sum);
  if (kAtOnce > 4 && k + 4 <= a.K) add_choices<4, In>(a, place, k, sum), k += 4;
  for (; k < a.K; ++k) add_choices<1, In>(a, place, k, sum);
  if constexpr (!kEarly) load_residual();
  place.each([&](int i, int col) {
    if (a.residual != nullptr) {
#pragma unroll
      for (int e = 0; e < P.vec; ++e) sum[i][e] = plus[i][e] + sum[i][e];
    }
    store<P.vec>(static_cast<Out*>(a.out) + t * a.out_stride + col, sum[i]);
  });
}

}  // namespace vivace::kernels
