// Arguments of `reduce`, shared by the CPU and CUDA kernels. POD; see vivace/ops/reduce.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

enum class Reduction : int32_t { sum, mean, max, amax };

struct ReduceArgs {
  const void* x;        // [T, H] dtype
  float* out;           // [T]
  const int32_t* cols;  // [1] device-side H, or null
  const int32_t* rows;  // [1] device-side T, or null
  int64_t x_stride;     // elements a row
  int32_t T, H;
  Reduction kind;
  DType dtype;
};

/// A block takes a row, a thread 8 neighbouring columns at a time, by one access if `wide`: the order of
/// a sum depends on `threads` alone, not on `flight`.
struct ReducePolicy {
  int32_t threads;
  int32_t flight;  // accesses in flight a thread
  bool wide;
  constexpr bool operator==(const ReducePolicy&) const = default;
};

}  // namespace vivace::kernels
