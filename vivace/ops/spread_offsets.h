// spread_offsets: what ragged offsets say of each token, so that a step's layers read it and none searches.
#pragma once
#include "vivace/kernels/attention/spread_offsets.h"
#include "vivace/ops/attention_contents.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void spread_offsets(const kernels::SpreadOffsetsArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct spread_offsets {
  using Args = kernels::SpreadOffsetsArgs;
  static constexpr Port kPorts[] = {
      in("offsets", "R", "i32", "first token of each of S = R - 1 slots, then the count of all; they must not fall"),
      opt_in("k_offsets", "R", "i32", "the same for keys: a slot's tokens are then the last of its keys"),
      opt_in("length", "S", "i32", "keys of each slot, instead of k_offsets"),
      out("slot", "T", "i32", "slot of each token; -1 for tokens that belong to none"),
      out("pos", "T", "i32", "place of each token in its slot; 0 for tokens that belong to none"),
      opt_out("count", "1", "i32", "tokens that belong to a slot: rows of the ops that follow"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "spread_offsets",
      .group = "attention",
      .brief = "Slots and positions of ragged tokens from offsets in device memory.",
      .formula =
          "slot[t] = the s with offsets[s] <= t < offsets[s + 1], else -1; pos[t] = t - offsets[s] + a, a = n - "
          "(offsets[s + 1] - offsets[s]) with "
          "n = length[s] or k_offsets[s + 1] - k_offsets[s], 0 with neither; once for all rows: count = offsets[S]",
      .source = "bookkeeping of ragged attention; definition ours",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    const long R = c.dim("R"), T = c.dim("T");
    if (R < 1 || R > INT32_MAX || T > INT32_MAX)
      return c.error(Code::kInvalidShape, strf("wanted 1 <= R and R, T < 2^31, got R %ld and T %ld", R, T));
    if (c["k_offsets"].present() && c["length"].present())
      return c.error(Code::kInvalidArgument, "keys are counted by k_offsets or by length, not by both");
    if (c["length"].present() && c.dim("S") != R - 1)
      return c.error(Code::kInvalidShape, strf("length has an entry for each of R - 1 = %ld slots, got %ld", R - 1,
                                               static_cast<long>(c.dim("S"))));
    *a = Args{.offsets = c.ptr<int32_t>("offsets"),
              .k_offsets = c.ptr<int32_t>("k_offsets"),
              .length = c.ptr<int32_t>("length"),
              .slot = c.ptr<int32_t>("slot"),
              .pos = c.ptr<int32_t>("pos"),
              .count = c.ptr<int32_t>("count"),
              .rows = c.ptr<int32_t>("rows"),
              .T = static_cast<int32_t>(T),
              .S = static_cast<int32_t>(R - 1)};
    return {};
  }
  static Cost cost(const Args& a) {
    return {.bytes = int64_t{a.T} * 8 + int64_t{a.S + 1} * 4 * (1 + (a.k_offsets != nullptr) + (a.length != nullptr)),
            .flops = 0};
  }
  static Status inspect(const Call& c, const Contents& read) { return inspect_offsets(c, read); }
  static void host(const Args& a, cpu::Pool& pool) { cpu::spread_offsets(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/attention/spread_offsets.cuh";
    struct Key {
      kernels::SpreadOffsetsPolicy p;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args&, Arch) { return Key{{128}}; }
    static std::string instance(const Key& k) {
      return kernel_expression("spread_offsets<vivace::kernels::SpreadOffsetsPolicy{%d}>", k.p.threads);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] =
          a.T > 0 ? static_cast<uint32_t>((int64_t{a.T} + k.p.threads - 1) / k.p.threads) : 1;  // also for T = 0: count
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) { visit(Key{{128}}); }
  };
};

}  // namespace vivace::ops::defs
