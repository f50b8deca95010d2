// cast: one floating-point type to another; with equal types a strided copy.
#pragma once
#include "vivace/kernels/copy/cast.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

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

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/copy/cast.cuh";
    using Policy = kernels::CastPolicy;
    struct Key {
      DType in, out;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    // As kStretchTactics: accesses of at most 16 bytes on the wider side.
    static constexpr Policy kTactics[] = {{128, 8, 1}, {256, 8, 2}, {128, 4, 2}, {256, 4, 2}, {128, 1, 4}};
    static constexpr int64_t kManyElements = 1 << 20;  // from here on bytes in flight decide, below latency

    static Result<Key> pick(const Args& a, Arch) {
      const bool wide = a.H % 8 == 0 && vectorizable(a.x, a.x_stride, a.x_dtype, 8) && vectorizable(a.out, a.out_stride, a.out_dtype, 8);
      return Key{a.x_dtype, a.out_dtype, kTactics[!wide ? 4 : (a.x_dtype == DType::f32 || a.out_dtype == DType::f32 ? 2 : 0) + (int64_t{a.T} * a.H >= kManyElements ? 1 : 0)]};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("cast<%s, %s, vivace::kernels::CastPolicy{%d, %d, %d}>", type_name(k.in), type_name(k.out), k.p.threads, k.p.vec, k.p.items);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(a.T * ((a.H + k.p.stretch() - 1) / k.p.stretch()));
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::e5m2};
      for (const DType in : kTypes)
        for (const DType out : kTypes)
          for (const Policy& p : kTactics)
            if (p.vec == 1 || (p.vec == 4) == (in == DType::f32 || out == DType::f32)) visit(Key{in, out, p});
    }
  };
};

}  // namespace vivace::ops::defs
