#include "vivace/cpu/gemm/scaled.h"

#include <algorithm>

#include "vivace/cpu/convert.h"

namespace vivace::cpu {
namespace {

/// Codes 0 .. 15 of FP4: bit 3 is the sign.
constexpr float kHalfByte[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

void upcast_values(DType t, const uint8_t* src, int64_t n, float* dst) {
  switch (t) {
    case DType::i8:
      for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(static_cast<int8_t>(src[i]));
      return;
    case DType::i4:
      for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(((src[i / 2] >> (i % 2 * 4) & 15) ^ 8) - 8);
      return;
    case DType::e2m1:
      for (int64_t i = 0; i < n; ++i) dst[i] = kHalfByte[src[i / 2] >> (i % 2 * 4) & 15];
      return;
    default: load_f32(src, t, 0, n, dst);
  }
}

}  // namespace

void upcast_scaled(const kernels::GemmArgs& a, int64_t row, const uint8_t* src, int64_t k, int64_t n, float* dst) {
  upcast_values(a.w_dtype, src, n, dst);
  if (a.w_block_scale == nullptr) return;
  const int64_t piece_row = row / a.block_rows;
  for (int64_t i = 0; i < n; i += a.block_group) {
    const int64_t entry = (k + i) / a.block_group, end = std::min<int64_t>(n, i + a.block_group);
    float scale;
    load_f32(a.w_block_scale, a.scale_dtype, piece_row * a.block_stride + entry, 1, &scale);
    const float zero =
        a.w_block_zero == nullptr ? 0.0f : static_cast<float>(a.w_block_zero[piece_row * a.zero_stride + entry]);
    for (int64_t j = i; j < end; ++j) dst[j] = (dst[j] - zero) * scale;
  }
}

void scale_x(const kernels::GemmArgs& a, int64_t t, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] *= a.x_block_scale[t * a.x_block_stride + i / 128];
}

}  // namespace vivace::cpu
