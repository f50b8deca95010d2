// Arguments of `count_tokens`, shared by the CPU and CUDA kernels. POD; see vivace/ops/count_tokens.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct CountTokensArgs {
  const int32_t* ids;   // [T]
  const int32_t* slot;  // [T] or null: slot 0
  int32_t* counts;      // [S, V]
  const int32_t* rows;  // [1] device-side T, or null
  int64_t counts_stride;  // elements a slot
  int32_t T, S, V;
};

struct CountTokensPolicy {
  int32_t threads;
  constexpr bool operator==(const CountTokensPolicy&) const = default;
};

}  // namespace vivace::kernels
