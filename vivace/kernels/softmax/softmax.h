// Arguments of `softmax`, shared by the CPU and CUDA kernels. POD; see vivace/ops/softmax.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct SoftmaxArgs {
  const void* x;        // [T, H] x_dtype
  void* out;            // [T, H] out_dtype
  const int32_t* rows;  // [1] device-side T, or null
  int64_t x_stride, out_stride;  // elements a row
  int32_t T, H;
  float scale;
  DType x_dtype, out_dtype;
};

/// One thread block a row.
struct SoftmaxPolicy {
  int32_t threads;  // a block
  int32_t vec;      // neighbouring elements of a thread
  int32_t items;    // groups of them a thread keeps in registers; 0 reads the row twice
  bool wide;        // a group is one access; else one an element, in the same order of arithmetic
  constexpr bool operator==(const SoftmaxPolicy&) const = default;
  constexpr int64_t capacity() const { return int64_t{threads} * vec * items; }
};

}  // namespace vivace::kernels
