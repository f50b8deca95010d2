// One value of an array whose type is known when the kernel runs: vectors that are read once, a bias or a norm's
// weight.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

__device__ __forceinline__ float load_as_float(const void* p, DType t, int64_t i) {
  if (t == DType::bf16) return to_float(static_cast<const bf16*>(p)[i]);
  if (t == DType::f16) return to_float(static_cast<const f16*>(p)[i]);
  return static_cast<const float*>(p)[i];
}

}  // namespace vivace::kernels
