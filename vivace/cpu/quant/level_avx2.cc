// Built with this level's compiler flags (see CMakeLists.txt).
#include "vivace/cpu/quant/level.h"

#if defined(__AVX2__)
#include "vivace/cpu/quant/blocks.h"
#include "vivace/cpu/simd/vec_avx2.h"

namespace vivace::cpu {
Dequantize dequantize_avx2() { return &Blocks<Avx2>::run; }
}  // namespace vivace::cpu
#else
namespace vivace::cpu {
Dequantize dequantize_avx2() { return nullptr; }
}  // namespace vivace::cpu
#endif
