// What grouped_bench.cu tries: bf16.
#include "vivace/kernels/moe/grouped_gemm.cuh"

namespace vivace::kernels {
#define TILES(R, N, S) \
  template __global__ void grouped_wgmma<bf16, bf16, GroupedWgmma{R, N, S}>(const __grid_constant__ GroupedWgmmaArgs);
TILES(64, 64, 6)
TILES(48, 64, 7)
TILES(128, 64, 4)
TILES(128, 64, 8)
TILES(128, 128, 6)
TILES(128, 256, 4)
#define CODES(...)                                                                                           \
  template __global__ void grouped_gemm<bf16, DType::bf16, bf16, GemmAct::f32, GemmWeightOnly{__VA_ARGS__}>( \
      const __grid_constant__ GroupedWeightOnlyArgs);
CODES(4, 2, 1, 1, 3, 2, 4096, true)
CODES(4, 2, 1, 1, 3, 1, 4096, true)
CODES(4, 2, 2, 8, 2, 1, 512, true)
}  // namespace vivace::kernels
