// Block formats -> f32, in the layout that GGUF files store.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::cpu {

/// Elements [first, first + n) of a row of a block format as f32. `first` and `n` are multiples of the
/// format's block. Every product is rounded to f32: scale * quant, k-quants (d * sub-scale) * quant,
/// less m or (dmin * sub-min) where the format has one.
void dequantize_row(DType dtype, const void* row, int64_t first, int64_t n, float* dst);

}  // namespace vivace::cpu
