// cast: one floating-point type to another; with equal types a strided copy.
#pragma once
#include <algorithm>

#include "vivace/kernels/copy/cast.h"
#include "vivace/ops/call.h"
#include "vivace/ops/stretch.h"

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
        .x = c.ptr("x"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .H = static_cast<int32_t>(c.dim("H")),
        .x_dtype = c["x"].dtype,
        .out_dtype = c["out"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    return {.bytes = int64_t{a.T} * a.H * (info(a.x_dtype).bytes + info(a.out_dtype).bytes), .flops = 0};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::cast(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/copy/cast.cuh";
    struct Key {
      DType in, out;
      kernels::StretchPolicy p;
      bool operator==(const Key&) const = default;
    };
    static int widest(DType in, DType out) { return std::max(info(in).bytes, info(out).bytes); }
    static double moved(DType in, DType out) { return info(in).bytes + info(out).bytes; }

    static Result<Key> pick(const Args& a, Arch) {
      const bool wide =
          vectorizable(a.x, a.x_stride, a.x_dtype, 8) && vectorizable(a.out, a.out_stride, a.out_dtype, 8);
      return Key{a.x_dtype, a.out_dtype,
                 pick_stretch(a.T, a.H, wide, widest(a.x_dtype, a.out_dtype), moved(a.x_dtype, a.out_dtype))};
    }
    static std::string instance(const Key& k) {
      return stretch_expression("cast", strf("%s, %s", type_name(k.in), type_name(k.out)), k.p);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) { shape_stretch(a.T, a.H, k.p, launch); }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::e5m2};
      for (const DType in : kTypes)
        for (const DType out : kTypes)
          each_stretch(widest(in, out), moved(in, out), [&](const auto& p) { visit(Key{in, out, p}); });
    }
  };
};

}  // namespace vivace::ops::defs
