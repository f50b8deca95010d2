// cast: one floating-point type to another; with equal types a strided copy.
#pragma once
#include "vivace/kernels/copy/cast.h"
#include "vivace/ops/call.h"

namespace vivace::cpu {
class Pool;
void cast(const kernels::CastArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct cast {
  using Args = kernels::CastArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16|e4m3|e5m2", "rows to convert"),
      out("out", "T,H", "f32|bf16|f16|e4m3|e5m2", "converted rows"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "cast",
      .group = "copy",
      .brief = "Converts rows between floating-point types.",
      .formula = "out = round(f32(x)), to nearest even; e4m3 and e5m2 saturate, infinity included (448 and 57344); "
                 "f16 and bf16 overflow to infinity; NaN stays NaN. Equal types copy every value.",
      .source = "IEEE 754 rounding, OCP OFP8 1.0 with saturation",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    *a = Args{
        .x = c.ptr("x"), .out = c.ptr("out"), .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"), .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")), .H = static_cast<int32_t>(c.dim("H")), .x_dtype = c["x"].dtype, .out_dtype = c["out"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    return {.bytes = int64_t{a.T} * a.H * (info(a.x_dtype).bytes + info(a.out_dtype).bytes), .flops = 0};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::cast(a, pool); }
};

}  // namespace vivace::ops::defs
