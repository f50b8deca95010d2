// rms_rows: what a product needs of rows whose RMS norm is taken behind it.
#pragma once
#include "vivace/kernels/norm/rms_rows.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gemm_contents.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void rms_rows(const kernels::RmsRowsArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct rms_rows {
  using Args = kernels::RmsRowsArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "rows"),
      opt_in("weight", "H", "f32|bf16|f16", "factor of each column; not with scale"),
      opt_in("scale", "R,H", "=x", "adaptive scale: row min(t, R-1)"),
      out("scaled", "T,H", "f32|bf16|f16|e4m3", "x * weight or x * (1 + scale), in x's type or in e4m3"),
      opt_in("scaled_scale", "1", "f32",
             "static quantization scale of an e4m3 scaled: value ~ scaled * scaled_scale; > 0"),
      out("squares", "T,(H+7)/8", "f32", "sum of the squares of each 8 columns of x; the last may be fewer"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "rms_rows",
      .group = "norm",
      .brief =
          "What a product needs of rows whose RMS norm is taken behind it: rows times their factors, and sums of "
          "squares.",
      .formula =
          "scaled = round(x * factor), or sat_e4m3(x * factor / scaled_scale): factor is weight, 1 + scale, or 1 where "
          "both are absent; squares[i] = sum of x^2 of columns 8 i .. 8 i + 7. All in f32, in one order.",
      .source = "RMSNorm arXiv:1910.07467",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    if (c.dim("H") < 1) return c.error(Code::kInvalidShape, "H must be at least 1");
    if (c["scale"].present() && c.dim("R") < 1)
      return c.error(Code::kInvalidShape, "port scale: needs at least one row, got 0");
    if (c["scale"].present() && c["weight"].present())
      return c.error(Code::kInvalidArgument, "weight and scale are two factors of the same columns: give one");
    if (const DType out = c["scaled"].dtype, own = c["x"].dtype;
        (out != own && out != DType::e4m3) || (out == DType::e4m3) != c["scaled_scale"].present())
      return c.error(Code::kInvalidArgument,
                     strf("port scaled: wanted x's %s without scaled_scale, or e4m3 with it, got %s %s it", name(own),
                          name(out), c["scaled_scale"].present() ? "with" : "without"));
    for (const char* d : {"T", "H"})
      if (c.dim(d) > INT32_MAX)
        return c.error(Code::kInvalidShape, strf("%s = %ld is above 2^31 - 1", d, static_cast<long>(c.dim(d))));
    *a = Args{
        .x = c.ptr("x"),
        .weight = c.ptr("weight"),
        .scale = c.ptr("scale"),
        .scaled = c.ptr("scaled"),
        .squares = c.ptr<float>("squares"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .scale_stride = c.row_stride("scale"),
        .scaled_stride = c.row_stride("scaled"),
        .squares_stride = c.row_stride("squares"),
        .T = static_cast<int32_t>(c.dim("T")),
        .H = static_cast<int32_t>(c.dim("H")),
        .R = c["scale"].present() ? static_cast<int32_t>(c.dim("R")) : 0,
        .dtype = c["x"].dtype,
        .weight_dtype = c["weight"].dtype,
        .scaled_scale = c.ptr<float>("scaled_scale"),
    };
    return {};
  }
  static Status inspect(const Call& c, const Contents& read) { return inspect_scales(c, read, {"scaled_scale"}); }
  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.H, e = info(a.dtype).bytes;
    return {.bytes = n * (e + info(a.scaled_dtype()).bytes) + int64_t{a.R} * a.H * e +
                     (a.weight != nullptr ? a.H * info(a.weight_dtype).bytes : 0) +
                     int64_t{a.T} * ((a.H + kernels::kRmsColumns - 1) / kernels::kRmsColumns) * 4,
            .flops = 4 * n};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::rms_rows(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/norm/rms_rows.cuh";
    struct Key {
      DType x, scaled;
      kernels::RmsRowsPolicy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr kernels::RmsRowsPolicy kTactics[] = {{128, true}, {128, false}};
    static Result<Key> pick(const Args& a, Arch) {
      const bool aligned = a.H % 8 == 0 && vectorizable(a.x, a.x_stride, a.dtype, 8) &&
                           vectorizable(a.scale, a.scale_stride, a.dtype, 8) &&
                           vectorizable(a.scaled, a.scaled_stride, a.scaled_dtype(), 8);
      return Key{a.dtype, a.scaled_dtype(), kTactics[aligned ? 0 : 1]};
    }
    static std::string instance(const Key& k) {
      const std::string scaled = k.scaled != k.x ? std::string(", ") + type_name(k.scaled) : "";
      return kernel_expression("rms_rows<%s, vivace::kernels::RmsRowsPolicy{%d, %s}%s>", type_name(k.x), k.p.threads,
                               k.p.aligned ? "true" : "false", scaled.c_str());
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(a.T);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType x : {DType::f32, DType::bf16, DType::f16})
        for (const DType scaled : {x, DType::e4m3})
          for (const kernels::RmsRowsPolicy& p : kTactics) visit(Key{x, scaled, p});
    }
  };
};

}  // namespace vivace::ops::defs
