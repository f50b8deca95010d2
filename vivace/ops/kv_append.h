// kv_append: rows of keys and values into a slotted cache.
#pragma once
#include "vivace/kernels/rope/kv_append.h"
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
      in("pos", "T", "i32", "row of the slot that the token takes; outside [0, L) nothing is written"),
      opt_in("slot", "T", "i32", "slot of each token, absent means 0; outside [0, S) nothing is written"),
      inout("k_cache", "S,L,Hkv,D", "f32|bf16|f16|e4m3", "keys by slot and position"),
      inout("v_cache", "S,L,Hkv,D", "=k_cache", "values by slot and position"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "kv_append",
      .group = "rope",
      .brief = "Writes keys and values of tokens to their slot and position of a cache.",
      .formula = "k_cache[slot[t], pos[t]] = round(k[t]), v_cache likewise; e4m3 saturates and has scale 1. "
                 "Two tokens of one call with the same slot and position: either may remain.",
      .source = "slotted KV cache; definition ours",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    *a = Args{
        .k = c.ptr("k"), .v = c.ptr("v"), .pos = c.ptr<int32_t>("pos"), .cache = cache_of(c), .rows = c.ptr<int32_t>("rows"),
        .k_stride = c.row_stride("k"), .v_stride = c.row_stride("v"),
        .T = static_cast<int32_t>(c.dim("T")), .Hkv = static_cast<int32_t>(c.dim("Hkv")), .D = static_cast<int32_t>(c.dim("D")),
        .dtype = c["k"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.Hkv * a.D;
    return {.bytes = 2 * n * (info(a.dtype).bytes + info(a.cache.dtype).bytes) + a.T * int64_t{a.cache.slot ? 8 : 4}, .flops = 0};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::kv_append(a, pool); }
};

}  // namespace vivace::ops::defs
