// gemm of any element types in f32 arithmetic, without tensor cores: f32 operands and mixed pairs.
// Chosen when: equal operands that no tensor core multiplies, f32 without tf32; every chip.
#pragma once
#include "vivace/kernels/gemm/epilogue.cuh"
#include "vivace/kernels/ptx/pdl.cuh"

namespace vivace::kernels {

/// 64 tokens x 64 rows of W a block, 4 x 4 outputs a thread. Each run of 16 k is summed apart and then
/// added: two short chains in place of one long one. kByColumn: W is [K, N]. Grid: ceil(T / 64) * ceil(N / 64) blocks
/// of 256.
template <class X, class W, class Out, bool kByColumn = false>
__global__ void __launch_bounds__(256, 1) gemm_simple(const __grid_constant__ GemmArgs a) {
  constexpr int kTile = 64, kRun = 16;
  __shared__ float xs[kRun][kTile + 4], ws[kRun][kTile + 4];  // [k][token], [k][row of W]
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int M = valid_rows(a.rows, a.T), tiles_t = (a.T + kTile - 1) / kTile;
  const int t0 = static_cast<int>(blockIdx.x) % tiles_t * kTile, n0 = static_cast<int>(blockIdx.x) / tiles_t * kTile;
  if (t0 >= M) return;
  const int tid = static_cast<int>(threadIdx.x), tx = tid % 16, ty = tid / 16;
  float sum[4][4] = {};  // [token][row of W]
  for (int k0 = 0; k0 < a.K; k0 += kRun) {
#pragma unroll
    for (int i = 0; i < kTile * kRun / 256; ++i) {
      const int row = i * 16 + tid / kRun, k = tid % kRun;
      const bool in = k0 + k < a.K;
      xs[k][row] = in && t0 + row < M ? to_float(static_cast<const X*>(a.x)[(t0 + row) * a.x_stride + k0 + k]) : 0.0f;
      if constexpr (kByColumn) {  // threads of a warp along N, where neighbours lie side by side
        const int n = tid % kTile, of = i * (256 / kTile) + tid / kTile;
        const bool held = k0 + of < a.K && n0 + n < a.N;
        ws[of][n] = held ? to_float(static_cast<const W*>(a.w)[(k0 + of) * a.w_stride + n0 + n]) : 0.0f;
      } else {
        ws[k][row] =
            in && n0 + row < a.N ? to_float(static_cast<const W*>(a.w)[(n0 + row) * a.w_stride + k0 + k]) : 0.0f;
      }
    }
    __syncthreads();
    float run[4][4] = {};
#pragma unroll
    for (int k = 0; k < kRun; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) run[i][j] = fmaf(xs[k][ty * 4 + i], ws[k][tx * 4 + j], run[i][j]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i][j] += run[i][j];
  }
  const GemmEpilogue<Out> epilogue(a);
  const bool vector = epilogue.template wide<4>();
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (t0 + ty * 4 + i < M && n0 + tx * 4 < a.N) epilogue.finish(t0 + ty * 4 + i, n0 + tx * 4, sum[i], vector);
}

}  // namespace vivace::kernels
