// Arguments of `quantize` and `dequantize`, shared by the CPU and CUDA kernels. POD; see vivace/ops/quantize.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

inline constexpr int kQuantBlock = 128;  // columns that share an entry of block_scale

struct QuantizeArgs {
  const void* x;           // [T, H] x_dtype
  void* out;               // [T, H] e4m3 or i8
  const float* out_scale;  // [1] static scale, or null
  const float* amax;       // [1] largest magnitude of the tensor, or null
  float* tensor_scale;     // [1] written from amax, or null
  float* row_scale;        // [T] written, or null
  float* block_scale;      // [T, ceil(H / 128)] written, or null
  const int32_t* rows;     // [1] device-side T, or null
  int64_t x_stride, out_stride, block_stride;  // elements a row
  int32_t T, H;
  DType x_dtype, out_dtype;
};

struct DequantizeArgs {
  const void* x;             // [T, H] e4m3 or i8
  void* out;                 // [T, H] out_dtype
  const float* scale;        // [1] or null
  const float* row_scale;    // [T] or null
  const float* block_scale;  // [T, ceil(H / 128)] or null
  const int32_t* rows;       // [1] device-side T, or null
  int64_t x_stride, out_stride, block_stride;  // elements a row
  int32_t T, H;
  DType x_dtype, out_dtype;
};

/// Where the scale of an element comes from: given, its row's largest, its 128-block's largest.
enum class QuantScope : int32_t { given, row, block };

/// given: a block takes threads * vec * items columns of a row. row: a block takes a row and keeps
/// `items` accesses in registers, 0 re-reads it. block: 128 / vec / items lanes take 128 columns.
struct QuantizePolicy {
  int32_t threads, vec, items;
  QuantScope scope;
  constexpr bool operator==(const QuantizePolicy&) const = default;
  constexpr int64_t stretch() const { return int64_t{threads} * vec * items; }
  VV_HD constexpr int32_t lanes() const { return kQuantBlock / (vec * items); }
};

}  // namespace vivace::kernels
