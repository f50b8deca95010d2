// Arguments of `quantize_block_scaled` and `dequantize_block_scaled`, and where their scales lie. POD; see
// vivace/ops/quantize_block_scaled.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

inline constexpr int kBlockScaledGroup = 16;  // columns that share an e4m3 scale

/// linear: [T, H/16] dense. swizzled: tiles of 128 rows x 4 scales, 512 bytes each, tile rows outermost;
/// inside a tile scale (m, k) is byte (m % 32) * 16 + (m / 32) * 4 + k. Rows are padded to 128, scales to 4.
enum class ScaleLayout : int32_t { linear, swizzled };

/// Bytes of the scales of [T, H] values. H is a multiple of 16.
VV_HD constexpr int64_t fp4_scale_bytes(int64_t T, int64_t H, ScaleLayout layout) {
  const int64_t blocks = H / kBlockScaledGroup;
  return layout == ScaleLayout::linear ? T * blocks : (T + 127) / 128 * 128 * ((blocks + 3) / 4 * 4);
}

/// Byte of the scale of row t, block b of `blocks`.
VV_HD constexpr int64_t fp4_scale_at(int64_t t, int64_t b, int64_t blocks, ScaleLayout layout) {
  if (layout == ScaleLayout::linear) return t * blocks + b;
  const int64_t tile = t / 128 * ((blocks + 3) / 4) + b / 4;
  return tile * 512 + t % 32 * 16 + t % 128 / 32 * 4 + b % 4;
}

struct BlockScaledArgs {
  void* values;               // [T, H] dtype: read by quantize_block_scaled, written by dequantize_block_scaled
  void* packed;               // [T, H/2] u8, two codes a byte, low nibble first
  void* scales;               // e4m3, fp4_scale_bytes() of them
  const float* tensor_scale;  // [1]
  const int32_t* rows;        // [1] device-side T, or null
  int64_t values_stride, packed_stride;  // elements, bytes a row
  int32_t T, H;
  ScaleLayout layout;
  DType dtype;
};

/// One thread takes one block of 16; vec is the width of its accesses in elements.
struct BlockScaledPolicy {
  int32_t threads, vec;
  constexpr bool operator==(const BlockScaledPolicy&) const = default;
};

}  // namespace vivace::kernels
