// top_logprobs: the likeliest tokens that may come next, for searches that choose among them.
#pragma once
#include "vivace/kernels/sampling/top_logprobs.h"
#include "vivace/ops/call.h"
#include "vivace/ops/sample_gpu.h"

namespace vivace::cpu {
class Pool;
void top_logprobs(const kernels::TopLogprobsArgs& a, Pool& pool);
}  // namespace vivace::cpu

namespace vivace::ops::defs {

struct top_logprobs {
  using Args = kernels::TopLogprobsArgs;
  static constexpr Port kPorts[] = {
      in("logits", "T,V", "f32", "one row a choice, V <= 2^22"),
      out("token", "T,K", "i32",
          "the likeliest allowed tokens, best first, ties by lower id, K <= 128; -1 behind the last that can come, and "
          "in a row where an allowed logit is NaN or +inf or none is above -inf"),
      out("logprob", "T,K", "f32", "log softmax over the allowed tokens at each; NaN for token -1"),
      opt_in("wanted", "T", "i32", "how many of a row's tokens are told, the rest is -1; absent or outside [0, K): K"),
      opt_in("mask", "M,(V+31)/32", "i32", "bit v%32 of word v/32 set: token v is allowed; absent allows all"),
      opt_in("mask_slot", "T", "i32", "row of mask, outside [0, M) allows all; absent means the row's own, and M is T"),
      opt_in("spans", "T,5", "i32",
             "first, split, from, until, together. Of the tokens below split those from first on are allowed, "
             "of the others those in [from, until). together not 0: where the probabilities of the second part sum to "
             "more than the largest of the first, the first is not allowed"),
      opt_in("asked", "T", "i32", "a token whose log-probability is told too"),
      opt_out("asked_logprob", "T", "f32",
              "log softmax at asked; -inf for a token that is not allowed; NaN in a row without tokens"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "top_logprobs",
      .group = "sampling",
      .brief = "The K likeliest allowed tokens of each row and their log-probabilities.",
      .formula =
          "l = logits where allowed by mask and spans, else -inf; together: l = -inf below split where "
          "log(sum(exp(l[split:]))) > max(l[:split]); logprob = l - log(sum(exp(l))) at the K largest. All in f32.",
      .source = "masks as in sample; the joint rule: Whisper's timestamps, arXiv:2212.04356",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t V = c.dim("V"), K = c.dim("K");
    if (V < 1 || V > kernels::kMaxSampleVocab)
      return c.error(Code::kInvalidShape, strf("V is %ld, wanted 1 to %ld", static_cast<long>(V),
                                               static_cast<long>(kernels::kMaxSampleVocab)));
    if (K < 1 || K > kernels::kMaxTop)
      return c.error(Code::kInvalidShape,
                     strf("K is %ld, wanted 1 to %ld", static_cast<long>(K), static_cast<long>(kernels::kMaxTop)));
    if (c["mask_slot"].present() && !c["mask"].present())
      return c.error(Code::kInvalidArgument, "mask_slot is given, but mask is absent");
    if (c["asked"].present() != c["asked_logprob"].present())
      return c.error(Code::kInvalidArgument, "asked and asked_logprob come together");
    if (c["mask"].present() && !c["mask_slot"].present() && c.dim("M") != c.dim("T"))
      return c.error(Code::kInvalidShape,
                     strf("mask: wanted a row for each of %ld choices, got %ld, and no mask_slot says which",
                          static_cast<long>(c.dim("T")), static_cast<long>(c.dim("M"))));
    *a = Args{
        .logits = c.ptr<float>("logits"),
        .token = c.ptr<int32_t>("token"),
        .logprob = c.ptr<float>("logprob"),
        .asked_logprob = c.ptr<float>("asked_logprob"),
        .asked = c.ptr<int32_t>("asked"),
        .wanted = c.ptr<int32_t>("wanted"),
        .mask = c.ptr<int32_t>("mask"),
        .mask_slot = c.ptr<int32_t>("mask_slot"),
        .spans = c.ptr<int32_t>("spans"),
        .rows = c.ptr<int32_t>("rows"),
        .logits_stride = c.row_stride("logits"),
        .token_stride = c.row_stride("token"),
        .logprob_stride = c.row_stride("logprob"),
        .mask_stride = c.row_stride("mask"),
        .spans_stride = c.row_stride("spans"),
        .T = static_cast<int32_t>(c.dim("T")),
        .V = static_cast<int32_t>(V),
        .K = static_cast<int32_t>(K),
        .M = static_cast<int32_t>(c.dim("M")),
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.V;
    return {.bytes = n * 4 + (a.mask ? n / 8 : 0) + a.T * (int64_t{a.K} * 8 + (a.asked ? 8 : 0)), .flops = n * 4};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::top_logprobs(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/sampling/top_logprobs.cuh";
    struct Key {
      kernels::TopLogprobsPolicy p;
      bool operator==(const Key&) const = default;
    };
    // A row's sum depends on its cut: one for any number of rows.
    static constexpr kernels::TopLogprobsPolicy kTactics[] = {{512, 1}, {512, 8}};

    static Result<Key> pick(const Args& a, Arch arch) {
      return Key{kTactics[chip(arch).tma && a.V > SampleGpu::kSmallVocab ? 1 : 0]};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("top_logprobs<vivace::kernels::TopLogprobsPolicy{%d, %d}>", k.p.threads, k.p.cluster);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(int64_t{a.T} * k.p.cluster);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
      launch->cluster = static_cast<uint32_t>(k.p.cluster);
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      for (const kernels::TopLogprobsPolicy& p : kTactics)
        if (p.cluster == 1 || chip(arch).tma) visit(Key{p});
    }
  };
};

}  // namespace vivace::ops::defs
