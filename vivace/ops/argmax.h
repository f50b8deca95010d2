// argmax: the largest element of each row.
#pragma once
#include "vivace/kernels/sampling/sample.h"
#include "vivace/ops/call.h"
#include "vivace/ops/sample_gpu.h"

namespace vivace::cpu {
class Pool;
void sample(const kernels::SampleArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

/// The greedy half of `sample`: the same kernels with every option absent.
struct argmax {
  using Args = kernels::SampleArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,V", "f32|bf16|f16", "rows to search, V <= 2^22"),
      out("token", "T", "i32", "place of the largest element; -1 if the row has a NaN or nothing above -inf"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "argmax",
      .group = "sampling",
      .brief = "Place of the largest element of each row.",
      .formula = "token = the lowest v with x[v] = max(x); -1 if the row has a NaN or nothing above -inf",
      .source = "definition ours: greedy decoding",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t V = c.dim("V");
    if (V < 1 || V > kernels::kMaxSampleVocab)
      return c.error(Code::kInvalidShape, strf("V is %ld, wanted 1 to %ld", static_cast<long>(V),
                                               static_cast<long>(kernels::kMaxSampleVocab)));
    *a = Args{};
    a->logits = c.ptr("x");
    a->token = c.ptr<int32_t>("token");
    a->rows = c.ptr<int32_t>("rows");
    a->logits_stride = c.row_stride("x");
    a->T = static_cast<int32_t>(c.dim("T"));
    a->V = static_cast<int32_t>(V);
    a->dtype = c["x"].dtype;
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.V;
    return {.bytes = n * info(a.dtype).bytes + a.T * int64_t{4}, .flops = n};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::sample(a, pool); }

  struct Gpu : SampleGpu {
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      SampleGpu::instances(arch, [&](const Key& k) {
        if (k.p.greedy) visit(k);
      });
    }
  };
};

}  // namespace vivace::ops::defs
