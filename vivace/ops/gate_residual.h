// gate_residual: what joins a residual stream between two products, every part of it optional.
#pragma once
#include <algorithm>

#include "vivace/kernels/gate/gate_residual.h"
#include "vivace/ops/ada_contents.h"
#include "vivace/ops/call.h"
#include "vivace/ops/stretch.h"

namespace vivace::cpu {
class Pool;
void gate_residual(const kernels::GateResidualArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct gate_residual {
  using Args = kernels::GateResidualArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "rows to add"),
      opt_in("residual", "T,H", "=x", "residual stream; absent means 0"),
      opt_in("bias", "H", "=x", "added to every row of x"),
      opt_in("table", "P,H", "=x", "added to x by position: row t % P"),
      opt_in("gate", "R,H", "=x", "factor of x after bias and table"),
      opt_in("ada_row", "T", "i32",
             "row of gate for each token, outside [0, R) the token's out becomes NaN; absent means row min(t, R-1)"),
      opt_in("dt", "1", "f32", "factor of x in device memory, beside alpha"),
      out("out", "T,H", "=x", "the sum", "residual"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {real("alpha", 1, "factor of x"),
                                    choice("act", "none|silu", "activation of the sum")};
  static constexpr OpSpec spec{
      .name = "gate_residual",
      .group = "gate",
      .brief = "Residual plus gated rows, with bias, position table, step size and activation.",
      .formula =
          "out = round(act(residual + gate * (x + bias + table[t % P]) * (alpha * dt))), absent terms left out; "
          "silu(y) = y / (1 + exp(-y)). All in f32, rounded once.",
      .source = "residual gates arXiv:2212.09748, Euler step arXiv:2210.02747",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    if (c["ada_row"].present() && !c["gate"].present()) return c.error(Code::kInvalidArgument, "ada_row needs gate");
    for (const char* port : {"table", "gate"})
      if (c[port].present() && c[port].shape[0] < 1)
        return c.error(Code::kInvalidShape, strf("port %s: needs at least one row, got 0", port));
    *a = Args{
        .x = c.ptr("x"),
        .residual = c.ptr("residual"),
        .bias = c.ptr("bias"),
        .table = c.ptr("table"),
        .gate = c.ptr("gate"),
        .ada_row = c.ptr<int32_t>("ada_row"),
        .dt = c.ptr<float>("dt"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .residual_stride = c.row_stride("residual"),
        .table_stride = c.row_stride("table"),
        .gate_stride = c.row_stride("gate"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .H = static_cast<int32_t>(c.dim("H")),
        .R = static_cast<int32_t>(c.dim("R")),
        .P = static_cast<int32_t>(c.dim("P")),
        .alpha = static_cast<float>(c.real("alpha")),
        .act = c.choice<kernels::Activation>("act"),
        .dtype = c["x"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t row = int64_t{a.H} * info(a.dtype).bytes;
    return {.bytes = row * (int64_t{a.T} * (a.residual ? 3 : 2) + (a.bias != nullptr) +
                            (a.table ? std::min(a.P, a.T) : 0) + (a.gate ? std::min(a.R, a.T) : 0)),
            .flops = int64_t{a.T} * a.H * 3};
  }

  static Status inspect(const Call& c, const Contents& read) { return inspect_ada_row(c, read); }
  static void host(const Args& a, cpu::Pool& pool) { cpu::gate_residual(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/gate/gate_residual.cuh";
    struct Key {
      DType t;
      kernels::StretchPolicy p;
      bool operator==(const Key&) const = default;
    };
    static double moved(DType t) { return 3 * info(t).bytes; }  // with a residual
    static Result<Key> pick(const Args& a, Arch) {
      const auto fits = [&](const void* p, int64_t stride) { return vectorizable(p, stride, a.dtype, 8); };
      const bool wide = fits(a.x, a.x_stride) && fits(a.residual, a.residual_stride) && fits(a.bias, 0) &&
                        fits(a.table, a.table_stride) && fits(a.gate, a.gate_stride) && fits(a.out, a.out_stride);
      return Key{a.dtype, pick_stretch(a.T, a.H, wide, info(a.dtype).bytes, moved(a.dtype))};
    }
    static std::string instance(const Key& k) { return stretch_expression("gate_residual", type_name(k.t), k.p); }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) { shape_stretch(a.T, a.H, k.p, launch); }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        each_stretch(info(t).bytes, moved(t), [&](const auto& p) { visit(Key{t, p}); });
    }
  };
};

}  // namespace vivace::ops::defs
