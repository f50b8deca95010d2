// renorm_probs: top-k and top-p truncation of probabilities, for callers that draw elsewhere.
#pragma once
#include "vivace/kernels/sampling/renorm_probs.h"
#include "vivace/ops/call.h"
#include "vivace/ops/sample_gpu.h"

namespace vivace::cpu {
class Pool;
void renorm_probs(const kernels::RenormProbsArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct renorm_probs {
  using Args = kernels::RenormProbsArgs;
  static constexpr Port kPorts[] = {
      in("probs", "T,V", "f32",
         "rows of probabilities, V <= 2^22, of any sum within f32; what is negative or NaN counts as 0"),
      out("out", "T,V", "f32",
          "kept probabilities over their sum, 0 elsewhere; a row without a positive one gives zeros; where the sum is "
          "infinite, finite ones give 0 and infinite ones NaN"),
      opt_in("top_k", "T", "i32", "keeps the k largest, ties by lower id; absent, 0, less, or V and more keep all"),
      opt_in("top_p", "T", "f32",
             "keeps the fewest largest of what top_k kept with share >= top_p of its sum, ties by lower id, at least "
             "one; absent or 1 keeps all"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "renorm_probs",
      .group = "sampling",
      .brief = "Truncates probabilities by top-k, then top-p, and renormalises them.",
      .formula =
          "kept by top_k and top_p in this order, top_p by masses floor(p / max(p) * 2^40); out = p / sum(kept p) if "
          "kept else 0",
      .source = "top-p arXiv:1904.09751",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t V = c.dim("V");
    if (V < 1 || V > kernels::kMaxSampleVocab)
      return c.error(Code::kInvalidShape, strf("V is %ld, wanted 1 to %ld", static_cast<long>(V),
                                               static_cast<long>(kernels::kMaxSampleVocab)));
    *a = Args{
        .probs = c.ptr<float>("probs"),
        .out = c.ptr<float>("out"),
        .top_k = c.ptr<int32_t>("top_k"),
        .top_p = c.ptr<float>("top_p"),
        .rows = c.ptr<int32_t>("rows"),
        .probs_stride = c.row_stride("probs"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .V = static_cast<int32_t>(V),
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.V;
    return {.bytes = n * 8, .flops = n * 2};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::renorm_probs(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/sampling/renorm_probs.cuh";
    struct Key {
      kernels::SamplePolicy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr kernels::SamplePolicy kTactics[] = {{512, 1, 1, false}, {512, 8, 1, false}};

    static Result<Key> pick(const Args& a, Arch arch) {
      return Key{kTactics[chip(arch).tma && a.V > SampleGpu::kSmallVocab ? 1 : 0]};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("renorm_probs<vivace::kernels::SamplePolicy{%d, %d, 1, false}>", k.p.threads,
                               k.p.cluster);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(int64_t{a.T} * k.p.cluster);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
      launch->cluster = static_cast<uint32_t>(k.p.cluster);
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      for (const kernels::SamplePolicy& p : kTactics)
        if (p.cluster == 1 || chip(arch).tma) visit(Key{p});
    }
  };
};

}  // namespace vivace::ops::defs
