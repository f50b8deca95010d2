// sample_chain: the verification step of speculative decoding with a chain of draft tokens.
#pragma once
#include "vivace/kernels/sampling/sample_chain.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void sample_chain(const kernels::SampleChainArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct sample_chain {
  using Args = kernels::SampleChainArgs;
  static constexpr Port kPorts[] = {
      in("draft", "T,N", "i32", "tokens that the draft model drew; one outside [0, V) is rejected"),
      in("draft_probs", "T,N,V", "f32", "probabilities they were drawn from"),
      in("probs", "T,N+1,V", "f32", "the target model's probabilities at the same places and the one after"),
      out("tokens", "T,N+1", "i32",
          "the accepted tokens, then the next one, then -1; the next is -1 where no weight is positive"),
      out("accepted", "T", "i32", "how many of draft were accepted, 0 to N"),
      opt_in("seed", "T", "i64", "key of the row's noise, absent means 0"),
      opt_in("step", "T", "i32", "counter of the row's noise, absent means 0: raise it with every draw of a seed"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "sample_chain",
      .group = "sampling",
      .brief = "Chain speculative sampling: accepts a prefix of the draft and draws the token after it.",
      .formula =
          "draft[i] = x is accepted if all before it are and u_i * q_i(x) < p_i(x), q = draft_probs, p = probs; n = "
          "accepted. "
          "w = p_n - q_n if n < N else p_n; next = argmax of log(w_v) + g_v over w_v > 0, ties to the lowest id. "
          "u_i = (f32(word 0) + 0.5) * 2^-32 of Philox4x32-10 with sample's key and counter (i, step, 2, 0); "
          "g_v as in sample with counter (v/4, step, 1, 0). All in f32. The tokens are distributed as p, whatever q "
          "is.",
      .source = "speculative sampling arXiv:2302.01318, Gumbel-max arXiv:1411.0030, Philox doi:10.1145/2063384.2063405",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    if (c.dim("V") < 1) return c.error(Code::kInvalidShape, "V must be at least 1");
    if (c.dim("V") > int64_t{1} << 22)
      return c.error(Code::kInvalidShape,
                     strf("V is %ld, at most %d is served", static_cast<long>(c.dim("V")), 1 << 22));
    *a = Args{
        .draft = c.ptr<int32_t>("draft"),
        .draft_probs = c.ptr<float>("draft_probs"),
        .probs = c.ptr<float>("probs"),
        .tokens = c.ptr<int32_t>("tokens"),
        .accepted = c.ptr<int32_t>("accepted"),
        .seed = c.ptr<int64_t>("seed"),
        .step = c.ptr<int32_t>("step"),
        .rows = c.ptr<int32_t>("rows"),
        .draft_stride = c.row_stride("draft"),
        .draft_probs_stride = c.row_stride("draft_probs"),
        .probs_stride = c.row_stride("probs"),
        .tokens_stride = c.row_stride("tokens"),
        .T = static_cast<int32_t>(c.dim("T")),
        .N = static_cast<int32_t>(c.dim("N")),
        .V = static_cast<int32_t>(c.dim("V")),
    };
    return {};
  }

  static Cost cost(const Args& a) {
    return {.bytes = a.T * (int64_t{a.V} * 8 + a.N * int64_t{16} + 8), .flops = int64_t{a.T} * a.V * 4};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::sample_chain(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/sampling/sample_chain.cuh";
    struct Key {
      kernels::SampleChainPolicy p;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args& a, Arch arch) { return Key{{512, chip(arch).tma && a.V > 8192 ? 8 : 1}}; }
    static std::string instance(const Key& k) {
      return kernel_expression("sample_chain<vivace::kernels::SampleChainPolicy{%d, %d}>", k.p.threads, k.p.cluster);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(int64_t{a.T} * k.p.cluster);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
      launch->cluster = static_cast<uint32_t>(k.p.cluster);
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      visit(Key{{512, 1}});
      if (chip(arch).tma) visit(Key{{512, 8}});
    }
  };
};

}  // namespace vivace::ops::defs
