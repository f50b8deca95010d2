// softmax: rows to probabilities.
#pragma once
#include "vivace/kernels/softmax/softmax.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void softmax(const kernels::SoftmaxArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct softmax {
  using Args = kernels::SoftmaxArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "f32|bf16|f16", "rows of logits; -inf is a masked element"),
      out("out", "T,H", "f32|bf16|f16",
          "rows of probabilities; a row of nothing but -inf gives zeros, one with NaN or +inf NaN", "x"),
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

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/softmax/softmax.cuh";
    using Policy = kernels::SoftmaxPolicy;
    struct Key {
      DType in, out;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    // In order of preference: the first row that holds H and whose accesses the call allows. What is not
    // wide serves rows of whole groups at any alignment, to the bit; groups of one serve any length.
    static constexpr Policy kTactics[] = {
        {32, 8, 1, true},    {32, 8, 2, true},  {32, 8, 4, true},   {64, 8, 4, true},   {128, 8, 4, true},
        {256, 8, 4, true},   {512, 8, 4, true}, {1024, 8, 0, true}, {32, 8, 1, false},  {32, 8, 2, false},
        {32, 8, 4, false},   {64, 8, 4, false}, {128, 8, 4, false}, {256, 8, 4, false}, {512, 8, 4, false},
        {1024, 8, 0, false}, {128, 1, 4, true}, {512, 1, 4, true},  {1024, 1, 0, true},
    };

    static Result<Key> pick(const Args& a, Arch) {
      const bool wide =
          vectorizable(a.x, a.x_stride, a.x_dtype, 8) && vectorizable(a.out, a.out_stride, a.out_dtype, 8);
      for (const Policy& p : kTactics)
        if (p.vec == (a.H % 8 == 0 ? 8 : 1) && (p.vec == 1 || p.wide == wide) && (p.items == 0 || a.H <= p.capacity()))
          return Key{a.x_dtype, a.out_dtype, p};
      return Status(Code::kInternal, "no tactic serves this row");  // rows with no items serve all
    }
    static std::string instance(const Key& k) {
      return kernel_expression("softmax<%s, %s, vivace::kernels::SoftmaxPolicy{%d, %d, %d, %s}>", type_name(k.in),
                               type_name(k.out), k.p.threads, k.p.vec, k.p.items, k.p.wide ? "true" : "false");
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(a.T);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const Policy& p : kTactics) visit(Key{t, t, p});
    }
  };
};

}  // namespace vivace::ops::defs
