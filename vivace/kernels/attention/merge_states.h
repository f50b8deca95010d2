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

/// A block takes some heads of a token, a thread `vec` neighbouring elements of one.
struct MergeStatesPolicy {
  int32_t threads, vec;
  constexpr bool operator==(const MergeStatesPolicy&) const = default;

  VV_HD constexpr int chunks(int Dv) const { return (Dv + vec - 1) / vec; }  // threads of a head
  VV_HD constexpr int heads(int Dv) const { return chunks(Dv) < threads ? threads / chunks(Dv) : 1; }  // of a block
};

}  // namespace vivace::kernels
