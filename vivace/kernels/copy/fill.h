// Arguments of `fill`, shared by the CPU and CUDA kernels. POD; see vivace/ops/fill.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/tile/stretch.h"

namespace vivace::kernels {

struct FillArgs {
  void* out;            // [T, H] dtype
  const int32_t* rows;  // [1] device-side T, or null
  int64_t out_stride;   // elements a row
  int32_t T, H;
  float value;
  DType dtype;
};

}  // namespace vivace::kernels
