// Built with this level's compiler flags (see CMakeLists.txt).
#include "vivace/cpu/gemm/level.h"

#if defined(__AVX512VNNI__)
#include "vivace/cpu/gemm/product.h"
#include "vivace/cpu/simd/vec_avx512.h"

namespace vivace::cpu {
const GemmLevel* gemm_avx512() { return &kGemmLevel<Avx512>; }
}  // namespace vivace::cpu
#else
namespace vivace::cpu {
const GemmLevel* gemm_avx512() { return nullptr; }
}  // namespace vivace::cpu
#endif
