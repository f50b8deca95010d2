#include "vivace/cpu/quant/blocks.h"
#include "vivace/cpu/simd/vec_portable.h"

namespace vivace::cpu {
Dequantize dequantize_portable() { return &Blocks<Portable>::run; }
}  // namespace vivace::cpu
