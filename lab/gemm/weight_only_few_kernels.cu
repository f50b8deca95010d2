// What `weight_only_bench.cu few` tries: one to eight tokens, four bits, bf16 x and out. Columns: whether TMA brings x,
// and its elements in shared memory.
#include "vivace/kernels/gemm/weight_only.cuh"

namespace vivace::kernels {
#define KERNEL(W, ...)                                                                                         \
  template __global__ void gemm_weight_only<bf16, DType::W, bf16, GemmAct::f32, GemmWeightOnly{__VA_ARGS__}>( \
      const __grid_constant__ GemmWeightOnlyArgs);
#define Q4(X, P) KERNEL(q4_0, 2, 4, 1, 1, 2, 1, P, true, 0, DType::f32, false, false, 2, X)
#define NV(X, P) KERNEL(e2m1, 2, 4, 1, 1, 2, 1, P, true, 16, DType::e4m3, false, false, 2, X)
#define I4(X, P) KERNEL(i4, 2, 4, 1, 1, 2, 1, P, true, 128, DType::bf16, false, false, 2, X)
#define ALL(FORM) \
  FORM(false, 4096) FORM(false, 6144) FORM(false, 8192) FORM(false, 16384) FORM(true, 4096) FORM(true, 6144) \
  FORM(true, 8192) FORM(true, 16384)
#ifdef LAB_Q4
ALL(Q4)
#endif
#ifdef LAB_NV
ALL(NV)
#endif
#ifdef LAB_I4
ALL(I4)
#endif
}  // namespace vivace::kernels
