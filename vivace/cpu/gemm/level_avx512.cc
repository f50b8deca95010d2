// Built with this level's compiler flags (see CMakeLists.txt).
#include "vivace/cpu/gemm/level.h"

#if defined(__AVX512VNNI__)
#include "vivace/cpu/gemm/product.h"
#include "vivace/cpu/gemm/rows_avx512.h"
#include "vivace/cpu/simd/vec_avx512.h"

namespace vivace::cpu {
const GemmLevel* gemm_avx512() {
  static constexpr GemmLevel level = [] {
    GemmLevel l = kGemmLevel<Avx512>;
    l.direct = &Rows512::run;
    return l;
  }();
  return &level;
}
}  // namespace vivace::cpu
#else
namespace vivace::cpu {
const GemmLevel* gemm_avx512() { return nullptr; }
}  // namespace vivace::cpu
#endif
