// moe_combine: the experts' rows back to their tokens, weighted.
#pragma once
#include <algorithm>

#include "vivace/kernels/moe/moe_combine.h"
#include "vivace/ops/call.h"
#include "vivace/ops/stretch.h"

namespace vivace::cpu {
class Pool;
void moe_combine(const kernels::MoeCombineArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct moe_combine {
  using Args = kernels::MoeCombineArgs;
  static constexpr Port kPorts[] = {
      in("y", "T*K,N", "f32|bf16|f16", "rows of the experts, in moe_route's order"),
      in("place", "T,K", "i32", "row of y of each choice; one outside [0, T * K) gives a row of NaN"),
      in("weights", "T,K", "f32", "weight of each choice"),
      opt_in("residual", "T,N", "=out", "added last"),
      out("out", "T,N", "f32|bf16|f16", "result", "residual"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "moe_combine",
      .group = "moe",
      .brief = "Weighted sum of each token's expert rows, with residual.",
      .formula = "out[t] = round(residual[t] + sum over k of weights[t,k] * y[place[t,k]]), in f32, k ascending.",
      .source = "arXiv:1701.06538",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    if (c.dim("K") < 1) return c.error(Code::kInvalidShape, "K must be at least 1");
    if (c.dim("T") > INT32_MAX / c.dim("K") || c.dim("N") > INT32_MAX)
      return c.error(Code::kInvalidShape, "T * K and N must be below 2^31");
    *a = Args{
        .y = c.ptr("y"),
        .place = c.ptr<int32_t>("place"),
        .weights = c.ptr<float>("weights"),
        .residual = c.ptr("residual"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .y_stride = c.row_stride("y"),
        .place_stride = c.row_stride("place"),
        .weights_stride = c.row_stride("weights"),
        .residual_stride = c.row_stride("residual"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .K = static_cast<int32_t>(c.dim("K")),
        .N = static_cast<int32_t>(c.dim("N")),
        .dtype = c["y"].dtype,
        .out_dtype = c["out"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.N, choices = int64_t{a.T} * a.K;
    return {.bytes = n * a.K * info(a.dtype).bytes + choices * 8 + n * info(a.out_dtype).bytes * (a.residual ? 2 : 1),
            .flops = 2 * n * a.K};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::moe_combine(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/moe/moe_combine.cuh";
    struct Key {
      DType in, out;
      kernels::StretchPolicy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr double kMoved = 0;  // few larger blocks: a thread reads K rows one after another
    static int widest(DType in, DType out) { return std::max(info(in).bytes, info(out).bytes); }
    static Result<Key> pick(const Args& a, Arch) {
      const bool wide = vectorizable(a.y, a.y_stride, a.dtype, 8) &&
                        vectorizable(a.out, a.out_stride, a.out_dtype, 8) &&
                        vectorizable(a.residual, a.residual_stride, a.out_dtype, 8);
      return Key{a.dtype, a.out_dtype, pick_stretch(a.T, a.N, wide, widest(a.dtype, a.out_dtype), kMoved)};
    }
    static std::string instance(const Key& k) {
      return stretch_expression("moe_combine", strf("%s, %s", type_name(k.in), type_name(k.out)), k.p);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) { shape_stretch(a.T, a.N, k.p, launch); }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType in : {DType::f32, DType::bf16, DType::f16})
        for (const DType out : {DType::f32, DType::bf16, DType::f16})
          each_stretch(widest(in, out), kMoved, [&](const auto& p) { visit(Key{in, out, p}); });
    }
  };
};

}  // namespace vivace::ops::defs
