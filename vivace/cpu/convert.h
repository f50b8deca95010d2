// Rows of any plain element type <-> f32, and the row count every CPU kernel starts with.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::cpu {

/// Elements that kernels convert at a time: small enough for the stack, large enough to vectorise.
inline constexpr int64_t kChunk = 256;

/// n elements starting at element `first` of `src` (f32, bf16, f16, e4m3, e5m2) as f32.
void load_f32(const void* src, DType dtype, int64_t first, int64_t n, float* dst);

/// The reverse: round to nearest even; e4m3 and e5m2 saturate.
void store_f32(void* dst, DType dtype, int64_t first, int64_t n, const float* src);

/// Valid rows: the device-side count clamped to [0, T], or T where there is none.
inline int64_t valid_rows(const int32_t* rows, int64_t T) {
  if (rows == nullptr) return T;
  return *rows < 0 ? 0 : (*rows < T ? *rows : T);
}

}  // namespace vivace::cpu
