// moe_route: which experts a token goes to, with what weight, and the order that groups tokens by expert.
#pragma once
#include "vivace/kernels/moe/moe_route.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void moe_route(const kernels::MoeRouteArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct moe_route {
  using Args = kernels::MoeRouteArgs;
  static constexpr Port kPorts[] = {
      in("logits", "T,E", "f32|bf16|f16", "score of each expert"),
      out("weights", "T,K", "f32",
          "weight of each of the K chosen experts, largest logit first; a shared one comes last"),
      out("place", "T,K", "i32",
          "row of each choice in the order that groups choices by expert, tokens in order within one"),
      out("token", "T*K", "i32", "token of each row in that order; 0 beyond the valid ones"),
      out("offsets", "E+1", "i32", "first row of each expert in that order, then the number of rows"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      boolean("renormalize", true,
              "weights are divided by the sum of the chosen K instead of the sum over all experts"),
      boolean("shared", false,
              "the last expert is one that every token takes: no candidate, chosen beside the K - 1 best of the "
              "others, with a weight of its own"),
  };
  static constexpr OpSpec spec{
      .name = "moe_route",
      .group = "moe",
      .brief = "Top-k routing of a mixture of experts: choices, weights and the grouping by expert.",
      .formula =
          "chosen = the K largest logits, of equals the lower expert, NaN smallest; p = exp(logit - max) in f32; "
          "weights = p / (sum over the chosen if renormalize, else over all experts). If shared, all this is about the "
          "first E - 1 experts and K - 1 choices; the last choice is expert E - 1, its weight 1 / (1 + exp(-logit)). "
          "Stable counting sort of the "
          "T * K choices (token-major) by expert gives place, token and offsets.",
      .source = "arXiv:1701.06538; renormalised top-k arXiv:2401.04088",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t T = c.dim("T"), E = c.dim("E"), K = c.dim("K");
    if (E < 1 || K < 1 || K > E)
      return c.error(Code::kInvalidShape,
                     strf("wanted 1 <= K <= E, got K %ld and E %ld", static_cast<long>(K), static_cast<long>(E)));
    if (c.flag("shared") && K < 2)
      return c.error(Code::kInvalidShape,
                     strf("wanted 2 <= K beside a shared expert, which is one of the K; got K %ld and E %ld",
                          static_cast<long>(K), static_cast<long>(E)));
    if (E > 65536 || T > INT32_MAX / K)
      return c.error(Code::kInvalidShape, strf("wanted E <= 65536 and T * K < 2^31, got E %ld, T %ld, K %ld",
                                               static_cast<long>(E), static_cast<long>(T), static_cast<long>(K)));
    *a = Args{
        .logits = c.ptr("logits"),
        .weights = c.ptr<float>("weights"),
        .place = c.ptr<int32_t>("place"),
        .token = c.ptr<int32_t>("token"),
        .offsets = c.ptr<int32_t>("offsets"),
        .rows = c.ptr<int32_t>("rows"),
        .logits_stride = c.row_stride("logits"),
        .weights_stride = c.row_stride("weights"),
        .place_stride = c.row_stride("place"),
        .T = static_cast<int32_t>(T),
        .E = static_cast<int32_t>(E),
        .K = static_cast<int32_t>(K),
        .renormalize = c.flag("renormalize"),
        .shared = c.flag("shared"),
        .dtype = c["logits"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.E, choices = int64_t{a.T} * a.K;
    return {.bytes = n * info(a.dtype).bytes + choices * 12 + (a.E + 1) * int64_t{4}, .flops = n * 4};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::moe_route(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/moe/moe_route.cuh";
    using Policy = kernels::MoeRoutePolicy;
    struct Key {
      DType t;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    // Some tokens; many, on Hopper; few, or many experts; one. All give the same result.
    static constexpr Policy kTactics[] = {{512, 1}, {512, 8}, {128, 1}, {32, 1, 128}, {32, 1, 256}, {32, 1, 512}};
    static constexpr int64_t kSmem = 96 * 1024, kManyTokens = 32;  // what every chip gives; from here on a cluster pays
    static constexpr int64_t kFewTokens = 4;                       // a warp each

    static Result<Key> pick(const Args& a, Arch arch) {
      if (a.T == 1 && a.drawn() <= Policy::kChoicesOfOne)
        for (const Policy& p : kTactics)
          if (a.candidates() <= p.experts) return Key{a.dtype, p};
      const bool wide = kTactics[0].smem_bytes(a.E) <= kSmem;
      if (!wide && kTactics[2].smem_bytes(a.E) > kSmem)
        return Status(Code::kUnsupported, strf("E = %d experts; CUDA kernels route up to %d", a.E,
                                               static_cast<int>(kSmem / kTactics[2].smem_bytes(1))));
      return Key{a.dtype, kTactics[!wide || a.T <= kFewTokens ? 2 : chip(arch).tma && a.T >= kManyTokens ? 1 : 0]};
    }
    static std::string instance(const Key& k) {
      if (k.p.experts > 0) return kernel_expression("moe_route_one<%s, %d>", type_name(k.t), k.p.experts);
      return kernel_expression("moe_route<%s, vivace::kernels::MoeRoutePolicy{%d, %d}>", type_name(k.t), k.p.threads,
                               k.p.cluster);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = launch->cluster = static_cast<uint32_t>(k.p.cluster);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
      launch->smem_bytes = static_cast<uint32_t>(k.p.smem_bytes(a.E));
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const Policy& p : kTactics)
          if (p.cluster == 1 || chip(arch).tma) visit(Key{t, p});
    }
  };
};

}  // namespace vivace::ops::defs
