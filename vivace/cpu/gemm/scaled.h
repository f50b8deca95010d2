// Rows of gemm's weights whose codes mean nothing without scales beside them.
#pragma once
#include "vivace/kernels/gemm/gemm.h"

namespace vivace::cpu {

/// Elements [k, k + n) of row `row` as f32: code, or (code - zero) * scale of its piece. `src` is where they lie; k is
/// a multiple of 128.
void upcast_scaled(const kernels::GemmArgs& a, int64_t row, const uint8_t* src, int64_t k, int64_t n, float* dst);

/// n elements of token t times their entries of x_block_scale.
void scale_x(const kernels::GemmArgs& a, int64_t t, int64_t n, float* x);

}  // namespace vivace::cpu
