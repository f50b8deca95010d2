// Built with this level's compiler flags (see CMakeLists.txt).
#include "vivace/cpu/gemm/level.h"

#if defined(__AVX2__)
#include "vivace/cpu/gemm/product.h"
#include "vivace/cpu/simd/vec_avx2.h"

namespace vivace::cpu {
const GemmLevel* gemm_avx2() { return &kGemmLevel<Avx2>; }
}  // namespace vivace::cpu
#else
namespace vivace::cpu {
const GemmLevel* gemm_avx2() { return nullptr; }
}  // namespace vivace::cpu
#endif
