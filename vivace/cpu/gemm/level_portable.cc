#include "vivace/cpu/gemm/product.h"
#include "vivace/cpu/simd/vec_portable.h"

namespace vivace::cpu {
const GemmLevel* gemm_portable() { return &kGemmLevel<Portable>; }
}  // namespace vivace::cpu
