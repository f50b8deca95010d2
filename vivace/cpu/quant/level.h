// The inner part of dequantize_row, one an instruction-set level. Light includes only, as in gemm/level.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::cpu {

/// `n` elements (a multiple of the format's block) that start at `block` -> f32.
using Dequantize = void (*)(DType t, const uint8_t* block, int64_t n, float* dst);

Dequantize dequantize_portable();
Dequantize dequantize_avx2();    // nullptr in builds for other CPUs
Dequantize dequantize_avx512();  // likewise

}  // namespace vivace::cpu
