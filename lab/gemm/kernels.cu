// The tactics of tactics.inc as one cubin: nvcc's host pass does not take class-type template arguments.
#include "vivace/kernels/gemm/gemm.cuh"

namespace vivace::kernels {
#define STREAM(n, k, r, t, s, c, x)                                                              \
  template __global__ void gemm_stream<bf16, bf16, GemmStream{n, k, r, t, s, c, bool(x), true}>( \
      const __grid_constant__ GemmArgs);                                                         \
  template __global__ void gemm_stream<e4m3, bf16, GemmStream{n, k, r, t, s, c, bool(x), true}>( \
      const __grid_constant__ GemmArgs);
#define TILE(t, n, wt, wn, s)                                                                                \
  template __global__ void gemm_tile<bf16, bf16, GemmTile{t, n, wt, wn, s, true}>(const __grid_constant__ GemmArgs); \
  template __global__ void gemm_tile<e4m3, bf16, GemmTile{t, n, wt, wn, s, true}>(const __grid_constant__ GemmArgs);
#define WGMMA(type, ...) \
  template __global__ void gemm_wgmma<type, bf16, GemmWgmma{__VA_ARGS__}>(const __grid_constant__ GemmWgmmaArgs);
#include "lab/gemm/tactics.inc"
}  // namespace vivace::kernels
