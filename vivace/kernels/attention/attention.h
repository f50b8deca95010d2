// Arguments of `attention`, shared by the CPU and CUDA kernels. POD; see vivace/ops/attention.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

enum class AttentionMask : int32_t { causal, prefix, full };

struct AttentionArgs {
  const void* q;          // [T, Hq, D] dtype
  const void* k;          // [S, L, Hkv, D] kv_dtype
  const void* v;          // [S, L, Hkv, Dv] kv_dtype
  const int32_t* pos;     // [T] or null: pos[t] = t
  const int32_t* slot;    // [T] or null: 0
  const int32_t* length;  // [S] or null: L
  const int32_t* prefix;  // [S], set iff mask is prefix
  const float* sinks;     // [Hq] or null
  void* out;              // [T, Hq, Dv] dtype
  float* lse;             // [T, Hq] or null
  const int32_t* rows;    // [1] device-side T, or null
  int64_t q_stride, k_stride, v_stride, out_stride, lse_stride;  // elements a token (k, v: a slot)
  int32_t T, S, L, Hq, Hkv, D, Dv;
  float scale, softcap;   // softcap 0: none
  int32_t window;         // 0: none
  AttentionMask mask;
  DType dtype, kv_dtype;
};

}  // namespace vivace::kernels
