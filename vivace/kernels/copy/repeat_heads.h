// Arguments of `repeat_heads`, shared by the CPU and CUDA kernels. POD; see vivace/ops/repeat_heads.h.
#pragma once
#include "vivace/base/dtype.h"
#include "vivace/kernels/tile/divisor.h"

namespace vivace::kernels {

struct RepeatHeadsArgs {
  const void* x;        // [T, Hkv, D]
  void* out;            // [T, Hq, D], of the same type
  const int32_t* rows;  // [1] device-side T, or null
  int64_t x_stride, out_stride;  // elements a row
  int32_t T, Hkv, D, repeats;    // repeats = Hq / Hkv
  int32_t bytes;                 // of an element
  Divisor head, copies;          // by D and by repeats
};

}  // namespace vivace::kernels
