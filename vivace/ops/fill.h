// fill: one value everywhere.
#pragma once
#include "vivace/kernels/copy/fill.h"
#include "vivace/ops/call.h"
#include "vivace/ops/stretch.h"

namespace vivace::cpu {
class Pool;
void fill(const kernels::FillArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct fill {
  using Args = kernels::FillArgs;
  static constexpr Port kPorts[] = {
      out("out", "T,H", "f32|bf16|f16", "rows to fill"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {real("value", 0, "what is written, infinities included")};
  static constexpr OpSpec spec{
      .name = "fill",
      .group = "copy",
      .brief = "Writes one value to every element.",
      .formula = "out = round(value)",
      .source = "Vivace",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    *a = Args{
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .H = static_cast<int32_t>(c.dim("H")),
        .value = static_cast<float>(c.real("value")),
        .dtype = c["out"].dtype,
    };
    return {};
  }
  static Cost cost(const Args& a) { return {.bytes = int64_t{a.T} * a.H * info(a.dtype).bytes, .flops = 0}; }
  static void host(const Args& a, cpu::Pool& pool) { cpu::fill(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/copy/fill.cuh";
    struct Key {
      DType t;
      kernels::StretchPolicy p;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args& a, Arch) {
      return Key{a.dtype, pick_stretch(a.T, a.H, vectorizable(a.out, a.out_stride, a.dtype, 8), info(a.dtype).bytes,
                                       info(a.dtype).bytes)};
    }
    static std::string instance(const Key& k) { return stretch_expression("fill", type_name(k.t), k.p); }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) { shape_stretch(a.T, a.H, k.p, launch); }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        each_stretch(info(t).bytes, info(t).bytes, [&](const auto& p) { visit(Key{t, p}); });
    }
  };
};

}  // namespace vivace::ops::defs
