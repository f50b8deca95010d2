// kv_append: rows of keys and values into a slotted cache.
#pragma once
#include "vivace/kernels/rope/kv_append.h"
#include "vivace/ops/attention_contents.h"
#include "vivace/ops/rope_rules.h"

namespace vivace::cpu {
class Pool;
void kv_append(const kernels::KvAppendArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct kv_append {
  using Args = kernels::KvAppendArgs;
  static constexpr Port kPorts[] = {
      in("k", "T,Hkv,D", "f32|bf16|f16", "keys of each token"),
      in("v", "T,Hkv,D", "=k", "values of each token"),
      in("pos", "T", "i32",
         "place in its slot that the token takes; outside [0, L), paged [0, P*L), nothing is written"),
      opt_in("slot", "T", "i32", "slot of each token, absent means 0; a slot that does not exist takes nothing"),
      inout("k_cache", "B,L,Hc,D", "f32|bf16|f16|e4m3",
            "keys by slot and position; with page_table by page and place; Hc = Hkv; with layout=hnd [B, Hkv, L, D]"),
      inout("v_cache", "B,L,Hc,D", "=k_cache", "values, laid out as k_cache"),
      opt_in("page_table", "S,P", "i32",
             "block of the caches that holds each page of L places of a slot; outside [0, B) nothing is written; "
             "absent: block = slot"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {kCacheLayout};
  static constexpr OpSpec spec{
      .name = "kv_append",
      .group = "rope",
      .brief = "Writes keys and values of tokens to their slot and position of a cache.",
      .formula =
          "k_cache[b, i, h] = round(k[t, h]), with layout=hnd k_cache[b, h, i], v_cache likewise; (b, i) = (slot[t], "
          "pos[t]), or with page_table "
          "(page_table[slot[t], pos[t] / L], pos[t] % L); e4m3 saturates and has scale 1. "
          "Two tokens of one call with the same place: each element that remains is of either.",
      .source = "slotted and paged KV caches (PagedAttention arXiv:2309.06180); definition ours",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    if (cache_heads(c) != c.dim("Hkv"))
      return c.error(Code::kInvalidShape, strf("k has Hkv = %ld heads, k_cache %ld on axis %d (layout=%s)",
                                               static_cast<long>(c.dim("Hkv")), static_cast<long>(cache_heads(c)),
                                               c.flag("layout") ? 1 : 2, c.flag("layout") ? "hnd" : "nhd"));
    *a = Args{
        .k = c.ptr("k"),
        .v = c.ptr("v"),
        .pos = c.ptr<int32_t>("pos"),
        .cache = cache_of(c),
        .rows = c.ptr<int32_t>("rows"),
        .k_stride = c.row_stride("k"),
        .v_stride = c.row_stride("v"),
        .T = static_cast<int32_t>(c.dim("T")),
        .Hkv = static_cast<int32_t>(c.dim("Hkv")),
        .D = static_cast<int32_t>(c.dim("D")),
        .dtype = c["k"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.Hkv * a.D;
    return {.bytes = 2 * n * (info(a.dtype).bytes + info(a.cache.dtype).bytes) + a.T * int64_t{a.cache.slot ? 8 : 4},
            .flops = 0};
  }

  static Status inspect(const Call& c, const Contents& read) { return inspect_cache(c, read); }
  static void host(const Args& a, cpu::Pool& pool) { cpu::kv_append(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/rope/kv_append.cuh";
    using Policy = kernels::KvAppendPolicy;
    struct Key {
      DType in, kv;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactics[] = {{128, 8}, {256, 1}};

    static Result<Key> pick(const Args& a, Arch) {
      const bool wide = (a.cache.heads_first ? 1 : int64_t{a.Hkv}) * a.D % 8 == 0 &&
                        vectorizable(a.k, a.k_stride, a.dtype, 8) && vectorizable(a.v, a.v_stride, a.dtype, 8) &&
                        vectorizable(a.cache.k, a.cache.k_stride, a.cache.dtype, 8) &&
                        vectorizable(a.cache.v, a.cache.v_stride, a.cache.dtype, 8);
      return Key{a.dtype, a.cache.dtype, kTactics[wide ? 0 : 1]};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("kv_append<%s, %s, vivace::kernels::KvAppendPolicy{%d, %d}>", type_name(k.in),
                               type_name(k.kv), k.p.threads, k.p.vec);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(a.T);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const DType kv : {t, DType::e4m3})
          for (const Policy& p : kTactics) visit(Key{t, kv, p});
    }
  };
};

}  // namespace vivace::ops::defs
