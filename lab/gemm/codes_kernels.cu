// What codes_bench.cu tries: out and x are bf16.
#include "vivace/kernels/gemm/codes.cuh"

namespace vivace::kernels {
#define CODES(W, ACT, ...) template __global__ void gemm_codes<bf16, DType::W, bf16, GemmAct::ACT, GemmCodes{__VA_ARGS__}>(const __grid_constant__ GemmArgs);
#define CODES_CLUSTERS(W, ACT, N, K, R, T, S, P) CODES(W, ACT, N, K, R, T, S, 1, P, true) CODES(W, ACT, N, K, R, T, S, 4, P, true)
// Shapes of the tile with one format.
CODES(q4_0, f32, 4, 2, 1, 1, 3, 1, 4096, true)
CODES(q4_0, f32, 4, 2, 1, 1, 3, 2, 4096, true)
CODES(q4_0, f32, 4, 2, 1, 1, 3, 4, 4096, true)
CODES(q4_0, f32, 4, 2, 1, 1, 3, 8, 4096, true)
CODES(q4_0, f32, 4, 2, 1, 1, 3, 1, 2048, true)
CODES(q4_0, f32, 4, 2, 1, 1, 2, 1, 4096, true)
CODES(q4_0, f32, 4, 2, 1, 1, 3, 1, 4096, false)
CODES(q4_0, f32, 2, 2, 2, 1, 3, 1, 4096, true)
CODES(q4_0, f32, 2, 2, 2, 1, 3, 2, 4096, true)
CODES(q4_0, f32, 2, 4, 1, 1, 3, 1, 4096, true)
// More tokens.
CODES(q4_0, f32, 4, 2, 1, 2, 3, 1, 1024, true)
CODES(q4_0, f32, 4, 2, 1, 4, 2, 1, 512, true)
CODES(q4_0, f32, 4, 2, 2, 8, 2, 1, 512, true)
CODES(q4_0, f32, 4, 2, 1, 8, 2, 1, 512, true)
CODES(q4_0, f32, 4, 2, 2, 8, 2, 2, 512, true)
CODES(q4_0, q8, 4, 2, 1, 1, 3, 1, 4096, true)
CODES(q4_0, q8, 4, 2, 1, 1, 3, 2, 4096, true)
CODES(q4_0, q8, 4, 2, 2, 8, 2, 1, 512, true)
// Formats.
#define CODES_FORMAT(W, A) CODES(W, f32, 4, 2, 1, 1, 3, 1, 4096, A) CODES(W, q8, 4, 2, 1, 1, 3, 1, 4096, A)
CODES_FORMAT(q4_1, true)
CODES_FORMAT(q5_0, true)
CODES_FORMAT(q8_0, true)
CODES_FORMAT(q4_k, true)
CODES_FORMAT(q6_k, false)
}  // namespace vivace::kernels
