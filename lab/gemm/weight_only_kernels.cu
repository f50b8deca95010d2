// What weight_only_bench.cu tries: out and x are bf16.
#include "vivace/kernels/gemm/weight_only.cuh"

namespace vivace::kernels {
#define CODES(W, ACT, ...)                                                                                    \
  template __global__ void gemm_weight_only<bf16, DType::W, bf16, GemmAct::ACT, GemmWeightOnly{__VA_ARGS__}>( \
      const __grid_constant__ GemmWeightOnlyArgs);
// Hopper, up to 64 tokens: TMA brings W; from two on x too.
#define BULK(W, ACT, X, N, K, R, T, S, C, P) CODES(W, ACT, N, K, R, T, S, C, P, true, 0, DType::f32, false, false, 2, X)
#define FOUR(W, ACT, X, N, K, R, T, S, C, P) \
  CODES(e2m1, ACT, N, K, R, T, S, C, P, true, 16, DType::e4m3, false, false, 2, X)  // NVFP4
#define FEW(FORM, W) FORM(W, f32, false, 2, 4, 1, 1, 2, 1, 4096) FORM(W, f32, true, 2, 4, 1, 1, 2, 1, 4096)
#define MORE(FORM, W) FORM(W, f32, true, 2, 4, 1, 2, 1, 1, 4096) FORM(W, f32, true, 2, 4, 1, 4, 1, 1, 2048)
#define LONG(FORM, W) FORM(W, f32, false, 2, 4, 1, 1, 2, 1, 16384) FORM(W, f32, true, 2, 4, 1, 1, 2, 1, 8192)
FEW(BULK, q4_0)
LONG(BULK, q4_0)
MORE(BULK, q4_0)
BULK(q4_0, f32, false, 2, 4, 1, 1, 2, 2, 4096)
BULK(q4_0, f32, true, 2, 4, 1, 1, 2, 2, 4096)
BULK(q4_0, f32, true, 2, 4, 1, 2, 2, 1, 4096)
BULK(q4_0, f32, true, 2, 4, 2, 4, 1, 1, 2048)
BULK(q4_0, q8, false, 2, 4, 1, 1, 2, 1, 4096)
FEW(BULK, q4_1)
FEW(BULK, q4_k)
MORE(BULK, q4_k)
BULK(q4_k, f32, true, 2, 4, 2, 4, 1, 1, 2048)
FEW(BULK, q8_0)
MORE(BULK, q8_0)
BULK(q8_0, q8, false, 2, 4, 1, 1, 2, 1, 4096)
FEW(BULK, e4m3)
MORE(BULK, e4m3)
FEW(FOUR, e2m1)
LONG(FOUR, e2m1)
MORE(FOUR, e2m1)
CODES(e2m1, f32, 2, 4, 2, 4, 1, 1, 2048, true, 16, DType::e4m3, false, false, 2, true, true)
// More tokens; rows off 16 bytes.
CODES(q4_0, f32, 4, 2, 2, 8, 2, 1, 512, true)
CODES(q6_k, f32, 4, 2, 1, 1, 3, 1, 4096, false)
}  // namespace vivace::kernels
