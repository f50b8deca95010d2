// Arguments of `rms_rows` and `rms_scale`, shared by the CPU and CUDA kernels. POD; see vivace/ops/rms_rows.h and
// rms_scale.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

inline constexpr int kRmsColumns =
    8;  // columns whose squares make one sum: what a piece of a product's epilogue has of a row

struct RmsRowsArgs {
  const void* x;        // [T, H] dtype
  const void* weight;   // [H] weight_dtype, or null
  const void* scale;    // [R, H] dtype, or null; not both
  void* scaled;         // [T, H] dtype, or e4m3
  float* squares;       // [T, ceil(H / kRmsColumns)]
  const int32_t* rows;  // [1] device-side T, or null
  int64_t x_stride, scale_stride, scaled_stride, squares_stride;  // elements a row
  int32_t T, H, R;
  DType dtype, weight_dtype;
  const float* scaled_scale;  // [1] static quantization scale of an e4m3 `scaled`, else null

  VV_HD DType scaled_dtype() const { return scaled_scale != nullptr ? DType::e4m3 : dtype; }
};

/// A block a row.
struct RmsRowsPolicy {
  int32_t threads;
  bool aligned;  // groups of eight columns are whole and aligned
  constexpr bool operator==(const RmsRowsPolicy&) const = default;
};

/// Sums of squares as their readers see them: those of row t start at t * stride.
struct RmsSquares {
  const float* sums;    // [T, count]
  int64_t stride;
  int32_t count, H;     // H: columns of the rows that they are sums of
  float eps;
};

struct RmsScaleArgs {
  RmsSquares squares;
  float* row_scale;     // [T]
  const int32_t* rows;  // [1] device-side T, or null
  int32_t T;
};

struct RmsScalePolicy {
  int32_t threads, row_threads;  // of a block, of a row
  constexpr bool operator==(const RmsScalePolicy&) const = default;
};

}  // namespace vivace::kernels
