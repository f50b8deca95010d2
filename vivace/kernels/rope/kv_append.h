// Arguments of `kv_append`, shared by the CPU and CUDA kernels. POD; see vivace/ops/kv_append.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

/// A slotted KV cache as an op writes it.
struct KvCache {
  void* k;              // [S, L, Hkv, D] dtype
  void* v;              // [S, L, Hkv, D] dtype
  const int32_t* slot;  // [T] or null: slot 0
  int64_t k_stride, v_stride;  // elements a slot
  int32_t S, L;
  DType dtype;

  /// Whether the cache has a row for (slot, pos); other rows are not written.
  VV_HD bool holds(int64_t s, int64_t pos) const { return s >= 0 && s < S && pos >= 0 && pos < L; }
};

struct KvAppendArgs {
  const void* k;        // [T, Hkv, D] dtype
  const void* v;        // [T, Hkv, D] dtype
  const int32_t* pos;   // [T]
  KvCache cache;
  const int32_t* rows;  // [1] device-side T, or null
  int64_t k_stride, v_stride;  // elements a token
  int32_t T, Hkv, D;
  DType dtype;
};

}  // namespace vivace::kernels
