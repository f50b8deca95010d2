// gate_heads: heads times an activated gate, normalised first where there is a weight.
#pragma once
#include "vivace/kernels/gate/gate_heads.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void gate_heads(const kernels::GateHeadsArgs& a, Pool& pool);
}  // namespace vivace::cpu

namespace vivace::ops::defs {

struct gate_heads {
  using Args = kernels::GateHeadsArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,N,D", "f32|bf16|f16", "heads"),
      in("gate", "T,N,G", "=x", "argument of the activation: of each element, or one a head (G = 1)"),
      opt_in("weight", "D", "f32|bf16|f16", "each head is divided by its root mean square and multiplied by this"),
      out("out", "T,N,D", "=x", "gated heads", "x"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "sigmoid|silu", "activation of the gate"),
      real("eps", 1e-6, "added to the mean square"),
  };
  static constexpr OpSpec spec{
      .name = "gate_heads",
      .group = "gate",
      .brief = "Heads times an activated gate, with an RMS norm of each head before it.",
      .formula =
          "y = x; with weight y = x * rsqrt(mean over D of x^2 + eps) * weight; out = round(y * act(gate)); "
          "sigmoid(g) = 1 / (1 + exp(-g)), silu(g) = g * sigmoid(g). All in f32.",
      .source = "gated attention arXiv:2505.06708, Gated DeltaNet arXiv:2412.06464",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const long N = c.dim("N"), D = c.dim("D"), G = c.dim("G");
    if (N < 1 || D < 1) return c.error(Code::kInvalidShape, strf("N and D must be at least 1, got %ld and %ld", N, D));
    if (G != D && G != 1)
      return c.error(Code::kInvalidShape, strf("port gate: wanted D = %ld values a head, or 1, got %ld", D, G));
    if (c.dim("T") > INT32_MAX / N || N > INT32_MAX / D)
      return c.error(Code::kInvalidShape, "T * N and N * D must be below 2^31");
    if (!(c.real("eps") >= 0)) return c.error(Code::kInvalidArgument, strf("eps must be >= 0, got %g", c.real("eps")));
    *a = Args{
        .x = c.ptr("x"),
        .gate = c.ptr("gate"),
        .weight = c.ptr("weight"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .gate_stride = c.row_stride("gate"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .N = static_cast<int32_t>(N),
        .D = static_cast<int32_t>(D),
        .G = static_cast<int32_t>(G),
        .eps = static_cast<float>(c.real("eps")),
        .silu = c.integer("act") == 1,
        .dtype = c["x"].dtype,
        .weight_dtype = c["weight"].present() ? c["weight"].dtype : DType::f32,
    };
    return {};
  }
  static Cost cost(const Args& a) {
    const int64_t heads = int64_t{a.T} * a.N;
    return {.bytes = heads * (2 * a.D + a.G) * info(a.dtype).bytes +
                     (a.weight ? a.D * int64_t{info(a.weight_dtype).bytes} : 0),
            .flops = heads * a.D * 8};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::gate_heads(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/gate/gate_heads.cuh";
    using Policy = kernels::GateHeadsPolicy;
    struct Key {
      DType t;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr int kWarps = 4;
    static constexpr int widest(DType t) { return t == DType::f32 ? 4 : 8; }

    static Result<Key> pick(const Args& a, Arch) {
      const int vec = widest(a.dtype);
      const bool wide = a.D % vec == 0 && vectorizable(a.x, a.x_stride, a.dtype, vec) &&
                        (a.G == 1 || vectorizable(a.gate, a.gate_stride, a.dtype, vec)) &&
                        vectorizable(a.weight, 0, a.weight_dtype, vec) &&
                        vectorizable(a.out, a.out_stride, a.dtype, vec);
      return Key{a.dtype, {kWarps, wide ? vec : 1, wide && a.D <= 32 * vec}};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("gate_heads<%s, vivace::kernels::GateHeadsPolicy{%d, %d, %s}>", type_name(k.t),
                               k.p.warps, k.p.vec, k.p.held ? "true" : "false");
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int64_t heads = int64_t{a.T} * a.N;
      launch->grid[0] = static_cast<uint32_t>((heads + k.p.warps - 1) / k.p.warps);
      launch->block[0] = static_cast<uint32_t>(k.p.warps) * 32;
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const Policy& p : {Policy{kWarps, widest(t), true}, {kWarps, widest(t), false}, {kWarps, 1, false}})
          visit(Key{t, p});
    }
  };
};

}  // namespace vivace::ops::defs
