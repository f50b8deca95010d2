// Arguments of `cast`, shared by the CPU and CUDA kernels. POD; see vivace/ops/cast.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/tile/stretch.h"

namespace vivace::kernels {

struct CastArgs {
  const void* x;        // [T, H] x_dtype
  void* out;            // [T, H] out_dtype
  const int32_t* rows;  // [1] device-side T, or null
  int64_t x_stride, out_stride;  // elements a row
  int32_t T, H;
  DType x_dtype, out_dtype;
};

}  // namespace vivace::kernels
