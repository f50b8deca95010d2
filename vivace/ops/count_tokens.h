// count_tokens: how often each token has come up, for the penalties of `sample`.
#pragma once
#include "vivace/kernels/sampling/count_tokens.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void count_tokens(const kernels::CountTokensArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct count_tokens {
  using Args = kernels::CountTokensArgs;
  static constexpr Port kPorts[] = {
      in("ids", "T", "i32", "tokens to count; an id outside [0, V), such as sample's -1, is left out"),
      opt_in("slot", "T", "i32", "row of counts for each token, absent means 0; outside [0, S) the token is left out"),
      inout("counts", "S,V", "i32", "occurrences by slot and token"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "count_tokens",
      .group = "sampling",
      .brief = "Adds tokens to the occurrence counts of their slots.",
      .formula = "counts[slot[t], ids[t]] += 1 for every t; a token that comes twice counts twice",
      .source = "occurrence counts of sampling penalties; definition ours",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    *a = Args{
        .ids = c.ptr<int32_t>("ids"),
        .slot = c.ptr<int32_t>("slot"),
        .counts = c.ptr<int32_t>("counts"),
        .rows = c.ptr<int32_t>("rows"),
        .counts_stride = c.row_stride("counts"),
        .T = static_cast<int32_t>(c.dim("T")),
        .S = static_cast<int32_t>(c.dim("S")),
        .V = static_cast<int32_t>(c.dim("V")),
    };
    return {};
  }

  static Cost cost(const Args& a) { return {.bytes = a.T * int64_t{a.slot ? 16 : 12}, .flops = 0}; }

  static void host(const Args& a, cpu::Pool& pool) { cpu::count_tokens(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/sampling/count_tokens.cuh";
    struct Key {
      kernels::CountTokensPolicy p;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args&, Arch) { return Key{{128}}; }
    static std::string instance(const Key& k) {
      return kernel_expression("count_tokens<vivace::kernels::CountTokensPolicy{%d}>", k.p.threads);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>((int64_t{a.T} + k.p.threads - 1) / k.p.threads);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) { visit(Key{{128}}); }
  };
};

}  // namespace vivace::ops::defs
