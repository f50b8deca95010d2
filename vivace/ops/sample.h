// sample: the next token of each row, with penalties, masks and the usual truncations.
#pragma once
#include "vivace/kernels/sampling/sample.h"
#include "vivace/ops/call.h"
#include "vivace/ops/sample_gpu.h"

namespace vivace::cpu {
class Pool;
void sample(const kernels::SampleArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct sample {
  using Args = kernels::SampleArgs;
  static constexpr Port kPorts[] = {
      in("logits", "T,V", "f32|bf16|f16", "one row a draw, V <= 2^22; -inf is a token that cannot come"),
      out("token", "T", "i32", "the token; -1 if an allowed logit is NaN or no token is allowed"),
      opt_out("logprob", "T", "f32",
              "log softmax of the raw logits (no penalty, mask or temperature) at the token; NaN for token -1"),
      opt_in("temperature", "T", "f32",
             "divides the logits; absent, NaN or below 1e-6 takes the largest logit, ties to the lowest id"),
      opt_in("top_k", "T", "i32", "keeps the k largest, ties by lower id; absent, 0, less, or V and more keep all"),
      opt_in("top_p", "T", "f32",
             "keeps the fewest most probable of what top_k kept with mass >= top_p, ties by lower id, at least one; "
             "absent or 1 keeps all"),
      opt_in("min_p", "T", "f32",
             "keeps tokens of at least min_p times the top token's probability, and always the top token; absent or 0 "
             "keeps all"),
      opt_in("seed", "T", "i64",
             "key of the row's noise, absent means 0; rows with the same seed and step draw with the same noise"),
      opt_in("step", "T", "i32", "counter of the row's noise, absent means 0: raise it with every draw of a seed"),
      opt_in("counts", "S,V", "i32", "occurrences of each token, see count_tokens"),
      opt_in("slot", "T", "i32", "row of counts, absent means 0; outside [0, S) the row has no penalties"),
      opt_in("repetition", "T", "f32", "repetition penalty, > 0; absent or 1 is none"),
      opt_in("presence", "T", "f32", "subtracted from the logits of tokens that have come up; absent means 0"),
      opt_in("frequency", "T", "f32", "subtracted once an occurrence; absent means 0"),
      opt_in("mask", "M,(V+31)/32", "i32", "bit v%32 of word v/32 set: token v is allowed; absent allows all"),
      opt_in("mask_slot", "T", "i32", "row of mask, outside [0, M) allows all; absent means the row's own, and M is T"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "sample",
      .group = "sampling",
      .brief =
          "Draws one token a row: penalties, mask, temperature, top-k, top-p, min-p and Gumbel-max with Philox noise.",
      .formula =
          "l = f32(logits); where counts c > 0: l = l > 0 ? l / repetition : l * repetition, then l = l - (presence + "
          "frequency * f32(c)); "
          "masked tokens get -inf, which never comes. Greedy: argmax l. Else z = l / temperature; e = exp(z - max z); "
          "top_k, top_p and min_p narrow the tokens in this order, top_p by masses floor(e * 2^40), min_p by e >= "
          "min_p; "
          "token = argmax(z + g), ties to the lowest id, with w = word v%4 of Philox4x32-10(key = seed's low and high "
          "words, "
          "counter = (v/4, step, 0, 0)), u = min((f32(w) + 0.5) * 2^-32, 1 - 2^-24), g = -log(-log1p(-u)). "
          "Every operation rounds to f32; nothing is contracted.",
      .source =
          "Gumbel-max arXiv:1411.0030, Philox doi:10.1145/2063384.2063405, top-p arXiv:1904.09751, repetition penalty "
          "arXiv:1909.05858, min-p arXiv:2407.01082",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t V = c.dim("V");
    if (V < 1 || V > kernels::kMaxSampleVocab)
      return c.error(Code::kInvalidShape, strf("V is %ld, wanted 1 to %ld", static_cast<long>(V),
                                               static_cast<long>(kernels::kMaxSampleVocab)));
    for (const char* port : {"slot", "repetition", "presence", "frequency"})
      if (c[port].present() && !c["counts"].present())
        return c.error(Code::kInvalidArgument, strf("%s is given, but counts is absent", port));
    if (c["mask_slot"].present() && !c["mask"].present())
      return c.error(Code::kInvalidArgument, "mask_slot is given, but mask is absent");
    if (c["mask"].present() && !c["mask_slot"].present() && c.dim("M") != c.dim("T"))
      return c.error(Code::kInvalidShape,
                     strf("mask: wanted a row for each of %ld draws, got %ld, and no mask_slot says which",
                          static_cast<long>(c.dim("T")), static_cast<long>(c.dim("M"))));
    *a = Args{
        .logits = c.ptr("logits"),
        .token = c.ptr<int32_t>("token"),
        .logprob = c.ptr<float>("logprob"),
        .temperature = c.ptr<float>("temperature"),
        .top_k = c.ptr<int32_t>("top_k"),
        .top_p = c.ptr<float>("top_p"),
        .min_p = c.ptr<float>("min_p"),
        .seed = c.ptr<int64_t>("seed"),
        .step = c.ptr<int32_t>("step"),
        .counts = c.ptr<int32_t>("counts"),
        .slot = c.ptr<int32_t>("slot"),
        .repetition = c.ptr<float>("repetition"),
        .presence = c.ptr<float>("presence"),
        .frequency = c.ptr<float>("frequency"),
        .mask = c.ptr<int32_t>("mask"),
        .mask_slot = c.ptr<int32_t>("mask_slot"),
        .rows = c.ptr<int32_t>("rows"),
        .logits_stride = c.row_stride("logits"),
        .counts_stride = c.row_stride("counts"),
        .mask_stride = c.row_stride("mask"),
        .T = static_cast<int32_t>(c.dim("T")),
        .V = static_cast<int32_t>(V),
        .S = static_cast<int32_t>(c.dim("S")),
        .M = static_cast<int32_t>(c.dim("M")),
        .dtype = c["logits"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.V;
    return {.bytes = n * (info(a.dtype).bytes + (a.counts ? 4 : 0)) + (a.mask ? n / 8 : 0) +
                     a.T * int64_t{a.logprob ? 8 : 4},
            .flops = n * 4};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::sample(a, pool); }

  using Gpu = SampleGpu;
};

}  // namespace vivace::ops::defs
