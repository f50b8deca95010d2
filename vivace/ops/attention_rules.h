// What latent_attention, attention_block_scaled and scaled_attention share: queries of slots over a cache of blocks or
// of pages, causal or full.
#pragma once
#include <cmath>

#include "vivace/cpu/simd/isa.h"
#include "vivace/kernels/attention/attention.h"
#include "vivace/ops/attention_contents.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

inline constexpr Port kQueryPos = opt_in("pos", "T", "i32", "position of each query; absent means t");
inline constexpr Port kQuerySlot =
    opt_in("slot", "T", "i32", "slot of each query; absent means 0; outside [0, S) nothing is visible");
inline constexpr Port kSlotLength = opt_in("length", "S", "i32", "valid places of each slot; absent means all");
inline constexpr Port kSlotPages =
    opt_in("page_table", "S,P", "i32",
           "block of the cache that holds each page of L places of a slot; outside [0, B) its rows count as zeros");
inline constexpr Attr kCausalOrFull = choice("mask", "causal|full", "which places a query sees");
inline constexpr Attr kWindow = integer("window", 0, "if positive, only keys j > pos - window are visible");
inline constexpr Attr kHeadScale = real("scale", 0, "factor of q k^T; 0 means 1 / sqrt(D)");

/// All of `*a` but head sizes, scale, window and types. `k`, `v`: ports of the cache, [B, L, ...].
inline Status bind_slots(const Call& c, const char* k, const char* v, kernels::AttentionArgs* a) {
  const bool paged = c["page_table"].present();
  const long B = c.dim("B"), S = paged || c["length"].present() ? c.dim("S") : B;
  if (!paged && S != B)
    return c.error(Code::kInvalidShape,
                   strf("without page_table length has an entry for each of %s's B = %ld slots, got %ld", k, B, S));
  if (paged && c.dim("P") * c.dim("L") > INT32_MAX)
    return c.error(Code::kInvalidShape,
                   strf("P * L = %ld places are above 2^31 - 1", static_cast<long>(c.dim("P") * c.dim("L"))));
  for (const char* d : {"T", "B", "L", "Hq"})
    if (c.dim(d) > INT32_MAX)
      return c.error(Code::kInvalidShape, strf("%s = %ld is above 2^31 - 1", d, static_cast<long>(c.dim(d))));
  *a = {};
  a->q = c.ptr("q"), a->k = c.ptr(k), a->v = c.ptr(v), a->pos = c.ptr<int32_t>("pos"), a->slot = c.ptr<int32_t>("slot"),
  a->length = c.ptr<int32_t>("length");
  a->page_table = c.ptr<int32_t>("page_table"), a->out = c.ptr("out"), a->lse = c.ptr<float>("lse"),
  a->rows = c.ptr<int32_t>("rows");
  a->q_stride = c.row_stride("q"), a->k_stride = c.row_stride(k), a->v_stride = c.row_stride(v),
  a->out_stride = c.row_stride("out"), a->lse_stride = c.row_stride("lse");
  a->table_stride = c.row_stride("page_table");
  a->T = static_cast<int32_t>(c.dim("T")), a->S = static_cast<int32_t>(S), a->B = static_cast<int32_t>(B),
  a->L = static_cast<int32_t>(c.dim("L"));
  a->P = paged ? static_cast<int32_t>(c.dim("P")) : 0, a->Hq = static_cast<int32_t>(c.dim("Hq"));
  a->mask = c.integer("mask") == 1 ? kernels::AttentionMask::full : kernels::AttentionMask::causal;
  return {};
}

/// The same for grouped heads of D elements, with scale and window. Only the types are left.
inline Status bind_heads(const Call& c, const char* k, const char* v, kernels::AttentionArgs* a) {
  const long D = c.dim("D"), Hq = c.dim("Hq"), Hkv = c.dim("Hkv");
  if (Hkv < 1 || Hq % Hkv != 0)
    return c.error(Code::kInvalidShape, strf("Hq must be a multiple of Hkv, got %ld and %ld", Hq, Hkv));
  if (c.integer("window") < 0 || c.integer("window") > INT32_MAX)
    return c.error(Code::kInvalidArgument, strf("window must be in [0, 2^31), got %g", c.real("window")));
  VV_TRY(bind_slots(c, k, v, a));
  const double scale = c.real("scale");
  a->Hkv = static_cast<int32_t>(Hkv), a->D = a->Dv = static_cast<int32_t>(D),
  a->window = static_cast<int32_t>(c.integer("window"));
  a->scale = static_cast<float>(scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(D)));
  return {};
}

/// Slots whose caches a call reads, for cost(): as if each query saw every place.
inline int64_t slots_read(const kernels::AttentionArgs& a) { return a.slot ? (a.S < a.T ? a.S : a.T) : 1; }

}  // namespace vivace::ops
