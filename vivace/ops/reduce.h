// reduce: one number a row.
#pragma once
#include "vivace/kernels/reduce/reduce.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void reduce(const kernels::ReduceArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct reduce {
  using Args = kernels::ReduceArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "rows to reduce"),
      out("out", "T", "f32", "the result of each row"),
      opt_in("cols", "1", "i32", "count of valid columns in device memory, clamped to [0, H]; absent means H"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {choice("kind", "sum|mean|max|amax", "amax is the largest magnitude")};
  static constexpr OpSpec spec{
      .name = "reduce",
      .group = "reduce",
      .brief = "Sum, mean, maximum or largest magnitude of each row.",
      .formula =
          "out = f32 sum, sum / H, max or max |x| of the valid columns, in an order that H alone decides; max and amax "
          "pass over NaN. "
          "Of no column: sum and amax 0, max -inf, mean NaN.",
      .source = "Vivace",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    *a = Args{
        .x = c.ptr("x"),
        .out = c.ptr<float>("out"),
        .cols = c.ptr<int32_t>("cols"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .T = static_cast<int32_t>(c.dim("T")),
        .H = static_cast<int32_t>(c.dim("H")),
        .kind = c.choice<kernels::Reduction>("kind"),
        .dtype = c["x"].dtype,
    };
    return {};
  }
  static Cost cost(const Args& a) {
    return {.bytes = int64_t{a.T} * a.H * info(a.dtype).bytes + a.T * int64_t{4}, .flops = int64_t{a.T} * a.H};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::reduce(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/reduce/reduce.cuh";
    using Policy = kernels::ReducePolicy;
    struct Key {
      DType t;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactics[] = {{32, 4, true},  {32, 4, false},  {128, 2, true}, {128, 2, false},
                                          {128, 4, true}, {128, 4, false}, {512, 4, true}, {512, 4, false}};

    static Result<Key> pick(const Args& a, Arch) {
      const int size = a.H <= 1024 ? 0 : a.H <= 2048 ? 1 : a.H <= 8192 ? 2 : 3;
      return Key{a.dtype, kTactics[2 * size + (vectorizable(a.x, a.x_stride, a.dtype, 8) ? 0 : 1)]};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("reduce<%s, vivace::kernels::ReducePolicy{%d, %d, %s}>", type_name(k.t), k.p.threads,
                               k.p.flight, k.p.wide ? "true" : "false");
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(a.T);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const Policy& p : kTactics) visit(Key{t, p});
    }
  };
};

}  // namespace vivace::ops::defs
