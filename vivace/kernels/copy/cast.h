// Arguments of `cast`, shared by the CPU and CUDA kernels. POD; see vivace/ops/cast.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct CastArgs {
  const void* x;        // [T, H] x_dtype
  void* out;            // [T, H] out_dtype
  const int32_t* rows;  // [1] device-side T, or null
  int64_t x_stride, out_stride;  // elements a row
  int32_t T, H;
  DType x_dtype, out_dtype;
};

/// A block converts one stretch of a row.
struct CastPolicy {
  int32_t threads, vec, items;
  constexpr bool operator==(const CastPolicy&) const = default;
  constexpr int64_t stretch() const { return int64_t{threads} * vec * items; }
};

}  // namespace vivace::kernels
