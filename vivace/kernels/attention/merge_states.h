// Arguments of `merge_states`, shared by the CPU and CUDA kernels. POD; see vivace/ops/merge_states.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct MergeStatesArgs {
  const void* v;          // [T, N, Hq, Dv] dtype
  const float* s;         // [T, N, Hq]
  const void* v2;         // [T, Hq, Dv] dtype, or null
  const float* s2;        // [T, Hq], with v2
  void* out;              // [T, Hq, Dv] dtype; may be v2
  float* lse;             // [T, Hq] or null; may be s2
  const int32_t* rows;    // [1] device-side T, or null
  int64_t v_stride, s_stride, v2_stride, s2_stride, out_stride, lse_stride;  // elements a token
  int32_t T, N, Hq, Dv;
  bool base2;             // s, s2 and lse count in powers of two
  DType dtype;
};

/// A warp takes a head of a token, a lane `vec` neighbouring elements at a time.
struct MergeStatesPolicy {
  int32_t threads, vec;
  constexpr bool operator==(const MergeStatesPolicy&) const = default;
};

}  // namespace vivace::kernels
