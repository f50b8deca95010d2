// Built with this level's compiler flags (see CMakeLists.txt).
#include "vivace/cpu/quant/level.h"

#if defined(__AVX512VNNI__)
#include "vivace/cpu/quant/blocks.h"
#include "vivace/cpu/simd/vec_avx512.h"

namespace vivace::cpu {
Dequantize dequantize_avx512() { return &Blocks<Avx512>::run; }
}  // namespace vivace::cpu
#else
namespace vivace::cpu {
Dequantize dequantize_avx512() { return nullptr; }
}  // namespace vivace::cpu
#endif
