// Rules that rope, qkv_rope and kv_append share.
#pragma once
#include "vivace/base/check.h"
#include "vivace/kernels/rope/qkv_rope.h"
#include "vivace/ops/call.h"

namespace vivace::ops {

/// R pairs must fit into a head, and a head into what the kernels hold.
inline Status check_rotation(const Call& c) {
  const int64_t D = c.dim("D"), R = c.dim("R");
  if (D > kernels::kMaxRopeHeadDim)
    return c.error(Code::kUnsupported, strf("D is %ld, at most %d is served", static_cast<long>(D), kernels::kMaxRopeHeadDim));
  if (2 * R > D)
    return c.error(Code::kInvalidShape, strf("inv_freq has R = %ld pairs, 2R = %ld dims, but a head has D = %ld", static_cast<long>(R), static_cast<long>(2 * R), static_cast<long>(D)));
  return {};
}

/// The cache ports k_cache, v_cache and slot of a call that has them.
inline kernels::KvCache cache_of(const Call& c) {
  return {.k = c.ptr("k_cache"), .v = c.ptr("v_cache"), .slot = c.ptr<int32_t>("slot"),
          .k_stride = c.row_stride("k_cache"), .v_stride = c.row_stride("v_cache"),
          .S = static_cast<int32_t>(c.dim("S")), .L = static_cast<int32_t>(c.dim("L")), .dtype = c["k_cache"].dtype};
}

}  // namespace vivace::ops
