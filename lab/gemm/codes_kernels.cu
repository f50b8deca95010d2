// What codes_bench.cu tries: out and x are bf16.
#include "vivace/kernels/gemm/codes.cuh"

namespace vivace::kernels {
#define CODES(W, ACT, ...) template __global__ void gemm_codes<bf16, DType::W, bf16, GemmAct::ACT, GemmCodes{__VA_ARGS__}>(const __grid_constant__ GemmCodesArgs);
// Hopper, up to 64 tokens: the copy engine brings W.
#define BULK(W, ACT, N, K, R, T, S, C, P) CODES(W, ACT, N, K, R, T, S, C, P, true, 0, DType::f32, false, false, 2)
#define BULK_FEW(W, ACT) BULK(W, ACT, 2, 4, 1, 1, 2, 1, 4096) BULK(W, ACT, 2, 4, 1, 1, 2, 2, 4096)
BULK_FEW(q4_0, f32)
BULK(q4_0, f32, 2, 4, 1, 1, 2, 1, 16384)
BULK(q4_0, f32, 2, 4, 1, 1, 2, 1, 2048)
BULK(q4_0, f32, 2, 4, 1, 2, 2, 1, 2048)
BULK(q4_0, f32, 2, 4, 1, 2, 2, 1, 4096)
BULK(q4_0, f32, 2, 4, 2, 4, 1, 1, 2048)
BULK_FEW(q4_0, q8)
BULK_FEW(q4_1, f32)
BULK_FEW(q4_k, f32)
BULK_FEW(q8_0, f32)
BULK(q8_0, f32, 2, 4, 1, 1, 2, 1, 16384)
BULK(q8_0, f32, 2, 4, 1, 2, 2, 1, 2048)
BULK_FEW(q8_0, q8)
BULK_FEW(e4m3, f32)
// NVFP4.
#define FOUR(N, K, R, T, S, C, P) CODES(e2m1, f32, N, K, R, T, S, C, P, true, 16, DType::e4m3, false, false, 2)
FOUR(2, 4, 1, 1, 2, 1, 4096)
FOUR(2, 4, 1, 1, 2, 2, 4096)
FOUR(2, 4, 1, 1, 2, 1, 16384)
FOUR(2, 4, 1, 1, 2, 1, 2048)
FOUR(2, 4, 1, 2, 2, 1, 2048)
FOUR(2, 4, 1, 2, 1, 1, 4096)
FOUR(2, 4, 2, 4, 1, 1, 2048)
// More tokens; rows off 16 bytes.
CODES(q4_0, f32, 4, 2, 2, 8, 2, 1, 512, true)
CODES(q6_k, f32, 4, 2, 1, 1, 3, 1, 4096, false)
}  // namespace vivace::kernels
