// Rules that rope, qkv_rope and kv_append share.
#pragma once
#include "vivace/base/check.h"
#include "vivace/kernels/rope/qkv_rope.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

/// R pairs must fit into a head, and a head into what the kernels hold.
inline Status check_rotation(const Call& c) {
  const int64_t D = c.dim("D"), R = c.dim("R");
  if (D > kernels::kMaxRopeHeadDim)
    return c.error(Code::kUnsupported,
                   strf("D is %ld, at most %d is served", static_cast<long>(D), kernels::kMaxRopeHeadDim));
  if (2 * R > D)
    return c.error(Code::kInvalidShape, strf("inv_freq has R = %ld pairs, 2R = %ld dims, but a head has D = %ld",
                                             static_cast<long>(R), static_cast<long>(2 * R), static_cast<long>(D)));
  return {};
}

/// What angles add to positions wants angles, and pairs choose among what there is.
inline Status check_shift(const Call& c) {
  const bool shift = c["shift"].present(), axis = c["axis"].present();
  if (shift && !c["inv_freq"].present())
    return c.error(Code::kInvalidArgument, "shift is given, but inv_freq is absent: there are no angles");
  if (axis && !shift) return c.error(Code::kInvalidArgument, "axis is given, but shift is absent");
  if (shift && !axis && c.dim("A") != 1)
    return c.error(Code::kInvalidShape,
                   strf("shift has %ld rows, and axis is absent: wanted one row", static_cast<long>(c.dim("A"))));
  return {};
}

/// The attribute of ops that write caches, whose ports' dims are named after nhd: with hnd L is heads and Hc places.
inline constexpr Attr kCacheLayout =
    choice("layout", "nhd|hnd",
           "whether a block of the caches holds its places one after the other, or its heads: [B, Hkv, L, D]");
inline int64_t cache_heads(const Call& c) { return c.dim(c.flag("layout") ? "L" : "Hc"); }

/// The cache ports k_cache, v_cache, slot and page_table of a call that has them.
inline kernels::KvCache cache_of(const Call& c) {
  const bool hnd = c.flag("layout");
  return {.k = c.ptr("k_cache"),
          .v = c.ptr("v_cache"),
          .slot = c.ptr<int32_t>("slot"),
          .page_table = c.ptr<int32_t>("page_table"),
          .k_stride = c.row_stride("k_cache"),
          .v_stride = c.row_stride("v_cache"),
          .table_stride = c.row_stride("page_table"),
          .B = static_cast<int32_t>(c.dim("B")),
          .L = static_cast<int32_t>(c.dim(hnd ? "Hc" : "L")),
          .S = static_cast<int32_t>(c.dim("S")),
          .P = static_cast<int32_t>(c.dim("P")),
          .Hkv = static_cast<int32_t>(cache_heads(c)),
          .D = static_cast<int32_t>(c.dim("D")),
          .dtype = c["k_cache"].dtype,
          .heads_first = hnd};
}

/// Tactics of the rotating ops: as few lanes as hold the head. Those of vec 8 and access 1 serve heads at
/// any alignment, to the bit; those of vec 1 any R and D. A head's arithmetic is the same whatever `heads` is.
inline constexpr kernels::RopePolicy kRopeTactics[] = {
    {128, 8, 8, 4, 1, 1}, {128, 8, 8, 8, 1, 1}, {128, 8, 8, 16, 1, 1}, {128, 8, 8, 32, 2, 1},
    {64, 8, 8, 4, 1, 2}, {64, 8, 8, 8, 1, 2}, {64, 8, 8, 16, 1, 2},
    {128, 8, 1, 4, 1, 1}, {128, 8, 1, 8, 1, 1}, {128, 8, 1, 16, 1, 1}, {128, 8, 1, 32, 2, 1},
    {128, 1, 1, 32, 2, 1}, {128, 1, 1, 32, 4, 1}, {128, 1, 1, 32, 17, 1},
};
inline constexpr int kRopeManyTokens = 256;

/// `wide`: every pointer and stride allows 8 elements an access; `many_heads`: heads a thread where tokens are many.
inline Result<kernels::RopePolicy> pick_rope(bool wide, int64_t T, int D, int R, int many_heads) {
  const int vec = D % 8 == 0 && R % 8 == 0 ? 8 : 1, access = wide ? vec : 1;
  for (const int heads : {T >= kRopeManyTokens ? many_heads : 1, 1})
    for (const kernels::RopePolicy& p : kRopeTactics)
      if (p.vec == vec && p.access == access && p.heads == heads && p.holds(D, R)) return p;
  return Status(Code::kInternal, "no tactic serves this head");  // check_rotation bounds D
}
inline std::string policy_expression(const kernels::RopePolicy& p) {
  return strf("vivace::kernels::RopePolicy{%d, %d, %d, %d, %d, %d%s}", p.threads, p.vec, p.access, p.lanes, p.chunks,
              p.heads, p.tokens > 1 ? strf(", %d", p.tokens).c_str() : "");
}

}  // namespace vivace::ops
