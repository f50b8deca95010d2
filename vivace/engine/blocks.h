// Rows of plain values to GGUF's block formats, on the host, while a model loads.
#pragma once
#include <cstddef>

#include "vivace/base/status.h"
#include "vivace/base/tensor.h"

namespace vivace::engine {

/// Writes the blocks of `from`, a dense matrix of f32, f16 or bf16 in host memory whose rows are a multiple of 32
/// wide, to `out`, which has room for its rows as `to`: q4_0 (int4 in groups of 32 with an f16 scale) or q8_0. The
/// codes are those of the formats' reference, bit for bit; infinite and NaN values have none. All cores help. Errors:
/// Unsupported names the dtype; CorruptData: a value that is not finite.
Status encode_blocks(const Tensor& from, DType to, std::byte* out);

}  // namespace vivace::engine
