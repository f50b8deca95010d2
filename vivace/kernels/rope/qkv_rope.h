// Arguments of `qkv_rope`, shared by the CPU and CUDA kernels. POD; see vivace/ops/qkv_rope.h.
#pragma once
#include "vivace/kernels/rope/kv_append.h"
#include "vivace/kernels/rope/rope.h"

namespace vivace::kernels {

struct QkvRopeArgs {
  const void* qkv;        // [T, (Hq + 2 * Hkv) * D] dtype: q heads, k heads, v heads
  void* q;                // [T, Hq, D] dtype
  void* k_out;            // [T, Hkv, D] dtype, or null: the cache takes k and v
  void* v_out;            // likewise
  KvCache cache;          // null pointers where k_out and v_out are given
  const int32_t* pos;     // [T] or null
  const float* inv_freq;  // [R] or null: no rotation
  const void* q_norm;     // [D] q_norm_dtype or null
  const void* k_norm;     // [D] k_norm_dtype or null
  const int32_t* rows;    // [1] device-side T, or null
  int64_t qkv_stride, q_stride, k_stride, v_stride;  // elements a token
  int32_t T, Hq, Hkv, D, R;
  float attn_factor, eps;
  RopeStyle style;
  bool norm_plus_one;     // multiply by (1 + weight), Gemma's convention
  DType dtype, q_norm_dtype, k_norm_dtype;
};

/// The same where angles are given, or at other positions than the caches' rows, a type of its own so that kernels
/// without take no more arguments.
struct QkvShiftedArgs : QkvRopeArgs {
  const int32_t* shift;  // [A, T] or null: what angles add to pos, a row an axis
  const int32_t* axis;   // [R] or null: which row of shift each pair reads; null: the first
  int64_t shift_stride;  // elements a row of shift
  int32_t A;
  const float* angles;     // [T, 2, R] or null: each token's cosines, then its sines; inv_freq is null then
  int64_t angles_stride;   // elements a token

  /// Where token `t`'s pair `i` is turned to, in positions; an axis that is not there shifts nothing.
  VV_HD int32_t turned(int64_t t, int i) const {
    const int32_t row = axis != nullptr ? axis[i] : 0;
    const uint32_t by = row >= 0 && row < A ? static_cast<uint32_t>(shift[row * shift_stride + t]) : 0;
    return static_cast<int32_t>(static_cast<uint32_t>(pos[t]) + by);
  }
};

}  // namespace vivace::kernels
