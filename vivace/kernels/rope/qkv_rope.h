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

}  // namespace vivace::kernels
