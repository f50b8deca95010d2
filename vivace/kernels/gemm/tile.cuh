// gemm of many tokens on every chip: tiles of x and W through a ring of shared memory into mma.sync.
// Limit: 2 T N K flop on the tensor cores.
//
// A row of a tile is 128 bytes of K, eight words of 16 bytes; word i of row r lies at i ^ (r % 8), so that
// neither the copies nor ldmatrix meet in a bank. Of a W by column a row is an element of K of all the tile's rows, and
// ldmatrix turns it. The sum runs over K in order, whatever the tile.
// Chosen when: chips without wgmma, more than 64 tokens of equal operands; any number where W lies by column, there and
// where TMA cannot take it.
#pragma once
#include "vivace/kernels/gemm/epilogue.cuh"
#include "vivace/kernels/gemm/fragment.cuh"
#include "vivace/kernels/ptx/ldmatrix.cuh"
#include "vivace/kernels/ptx/pdl.cuh"

namespace vivace::kernels {

/// 16 tokens x 8 rows of W over 32 bytes of K. `a` as load_matrix4 gives it: (tokens 0-7, tokens 8-15) of
/// the first 16 bytes, then of the second; `b0`, `b1` the two words of the rows.
template <class T>
__device__ __forceinline__ void multiply32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (sizeof(T) != 1) {
    ptx::mma_words<T>(d, a[0], a[1], a[2], a[3], b0, b1);
  } else {
    uint32_t low[4], high[4], l, h;
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::upcast_e4m3(a[i], low[i], high[i]);
    ptx::upcast_e4m3(b0, l, h);
    ptx::mma16816<f16>(d, low[0], low[1], high[0], high[1], l, h);
    ptx::upcast_e4m3(b1, l, h);
    ptx::mma16816<f16>(d, low[2], low[3], high[2], high[3], l, h);
  }
}

/// Grid: ceil(T / P.tokens) * ceil(N / P.rows) blocks, neighbours along T: they share W.
template <class T, class Out, GemmTile P>
__global__ void __launch_bounds__(P.threads(), 1) gemm_tile(const __grid_constant__ GemmArgs a) {
  constexpr int kElems = 16 / sizeof(T), kStep = 8 * kElems;  // elements a word; a step of K
  constexpr int kTokenTiles = P.tokens / P.warps_t / 16, kRowTiles = P.rows / P.warps_n / 8;
  constexpr int kRowsAtOnce = P.threads() / 8, kStageWords = (P.tokens + P.rows) * 8;
  static_assert(P.tokens % kRowsAtOnce == 0 && P.rows % kRowsAtOnce == 0 && kRowTiles % 2 == 0);
  // [P.stages][P.tokens of x, then P.rows of W][8 words], swizzled; W by column: [kStep][P.rows / 8 words].
  extern __shared__ uint4 gemm_smem[];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int wt = warp % P.warps_t, wn = warp / P.warps_t;
  const int tiles_t = (a.T + P.tokens - 1) / P.tokens;
  const int t0 = static_cast<int>(blockIdx.x) % tiles_t * P.tokens,
            n0 = static_cast<int>(blockIdx.x) / tiles_t * P.rows;
  const int64_t steps = (int64_t{a.K} + kStep - 1) / kStep;

  const int row = tid / 8, word = tid % 8, K = a.K - word * kElems;
  const int home = row * 8 + (word ^ (row % 8));  // kRowsAtOnce is a multiple of 8: the same swizzle in every turn
  const T* const w_row = static_cast<const T*>(a.w) + (n0 + row) * a.w_stride + word * kElems;
  // By column: rows of a step's K, each the tile's rows of W in words of eight.
  constexpr int kWords = P.rows / 8, kDeep = P.threads() / kWords;
  static_assert(!P.by_column || (sizeof(T) == 2 && kStep % kDeep == 0 && kDeep % 8 == 0));
  const int deep = tid / kWords, column = tid % kWords;
  const T* const x_row = static_cast<const T*>(a.x) + (t0 + row) * a.x_stride + word * kElems;
  int M = 0;
  const auto load_w = [&](int64_t step, int slot) {
    if constexpr (P.by_column) {
#pragma unroll
      for (int i = 0; i < kStep / kDeep; ++i) {
        const int64_t k = step * kStep + deep + i * kDeep;
        fetch16<T, P.aligned>(
            gemm_smem + slot * kStageWords + P.tokens * 8 + (deep + i * kDeep) * kWords + (column ^ (deep % 8)),
            static_cast<const T*>(a.w) + k * a.w_stride, n0 + column * 8, a.N, k < a.K);
      }
    } else {
#pragma unroll
      for (int i = 0; i < P.rows / kRowsAtOnce; ++i)
        fetch16<T, P.aligned>(gemm_smem + slot * kStageWords + (P.tokens + i * kRowsAtOnce) * 8 + home,
                              w_row + i * kRowsAtOnce * a.w_stride, step * kStep, K, n0 + row + i * kRowsAtOnce < a.N);
    }
  };
  const auto load_x = [&](int64_t step, int slot) {
#pragma unroll
    for (int i = 0; i < P.tokens / kRowsAtOnce; ++i)
      fetch16<T, P.aligned>(gemm_smem + slot * kStageWords + i * kRowsAtOnce * 8 + home,
                            x_row + i * kRowsAtOnce * a.x_stride, step * kStep, K, t0 + row + i * kRowsAtOnce < M);
  };
#pragma unroll
  for (int i = 0; i < P.stages - 1; ++i)
    if (i < steps) load_w(i, i);  // immutable: read ahead of the predecessor's end
  ptx::dependency_wait();
  ptx::launch_dependents();
  M = valid_rows(a.rows, a.T);
  if (t0 >= M) {
    ptx::copy_wait<0>();
    return;
  }
#pragma unroll
  for (int i = 0; i < P.stages - 1; ++i) {
    if (i < steps) load_x(i, i);
    ptx::copy_commit();
  }

  float acc[kTokenTiles][kRowTiles][4] = {};  // a warp's [16 kTokenTiles tokens][8 kRowTiles rows of W]
  const uint32_t base = ptx::shared_address(gemm_smem);
  const int x_at = wt * kTokenTiles * 16 + lane % 16, w_at = P.tokens + wn * kRowTiles * 8 + lane % 8 + lane / 16 * 8;
  for (int64_t i = 0; i < steps; ++i) {
    const int slot = static_cast<int>(i % P.stages);
    ptx::copy_wait<P.stages - 2>();
    __syncthreads();
    if (i + P.stages - 1 < steps) {
      const int free = static_cast<int>((i + P.stages - 1) % P.stages);
      load_w(i + P.stages - 1, free);
      load_x(i + P.stages - 1, free);
    }
    ptx::copy_commit();
    const uint32_t stage = base + slot * kStageWords * 16;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t xs[kTokenTiles][4];
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m)
        ptx::load_matrix4(stage + ((x_at + m * 16) * 8 + ((pair * 2 + lane / 16) ^ (lane % 8))) * 16, xs[m]);
#pragma unroll
      for (int n = 0; n < kRowTiles; n += 2) {
        uint32_t ws[4];
        const int at_column = (wn * kRowTiles + n + lane / 16) ^ (lane % 8);
        if constexpr (P.by_column)
          ptx::load_matrix4_transposed(stage + (P.tokens * 8 + (pair * 16 + lane % 16) * kWords + at_column) * 16, ws);
        else ptx::load_matrix4(stage + ((w_at + n * 8) * 8 + ((pair * 2 + lane / 8 % 2) ^ (lane % 8))) * 16, ws);
#pragma unroll
        for (int m = 0; m < kTokenTiles; ++m) {
          multiply32<T>(acc[m][n], xs[m], ws[0], ws[1]);
          multiply32<T>(acc[m][n + 1], xs[m], ws[2], ws[3]);
        }
      }
    }
  }
  ptx::copy_wait<0>();

  const GemmEpilogue<Out> epilogue(a);
  const bool vector = epilogue.template wide<2>();
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t t = t0 + (wt * kTokenTiles + m) * 16 + h * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        const int col = n0 + (wn * kRowTiles + n) * 8 + lane % 4 * 2;
        float y[2] = {acc[m][n][2 * h], acc[m][n][2 * h + 1]};
        if (t < M && col < a.N) epilogue.finish(t, col, y, vector);
      }
    }
}

}  // namespace vivace::kernels
