// softmax: rows to probabilities.
#pragma once
#include "vivace/kernels/softmax/softmax.h"
#include "vivace/ops/call.h"

namespace vivace::cpu {
class Pool;
void softmax(const kernels::SoftmaxArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct softmax {
  using Args = kernels::SoftmaxArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "rows of logits; -inf is a masked element"),
      out("out", "T,H", "f32|bf16|f16", "rows of probabilities; a row of nothing but -inf gives zeros, one with NaN or +inf NaN", "x"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      real("scale", 1, "factor of x before the exponential"),
  };
  static constexpr OpSpec spec{
      .name = "softmax",
      .group = "softmax",
      .brief = "Softmax of each row.",
      .formula = "z = f32(x) * f32(scale); m = max(z); e = exp(z - m); out = round(e / sum(e)). All in f32.",
      .source = "softmax with the maximum subtracted; definition of the empty row ours",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    *a = Args{
        .x = c.ptr("x"), .out = c.ptr("out"), .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"), .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")), .H = static_cast<int32_t>(c.dim("H")),
        .scale = static_cast<float>(c.real("scale")), .x_dtype = c["x"].dtype, .out_dtype = c["out"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.H;
    return {.bytes = n * (info(a.x_dtype).bytes + info(a.out_dtype).bytes), .flops = n * 5};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::softmax(a, pool); }
};

}  // namespace vivace::ops::defs
