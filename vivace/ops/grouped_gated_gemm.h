// grouped_gated_gemm: the first half of the experts' gated MLPs: runs of rows times a gate and an up matrix of their
// own.
#pragma once
#include "vivace/ops/act_mul.h"
#include "vivace/ops/grouped_gemm.h"
#include "vivace/ops/two_parts.h"

namespace vivace::ops::defs {

struct grouped_gated_gemm : TwoParts<grouped_gated_gemm> {
  static constexpr Port kPorts[] = {
      in("x", "X,K", "f32|bf16|f16", "activations as grouped_gemm takes them"),
      in("w", "E,2*N,K", "f32|bf16|f16|e4m3|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k",
         "of each group N rows of the gate, then N of the up"),
      in("offsets", "E+1", "i32",
         "group e is rows [offsets[e], offsets[e+1]), as moe_route gives them: the first is 0, none is below the one "
         "before it or above A"),
      inout("gate_up", "A,2*N", "f32|bf16|f16",
            "scratch; its dtype is the one that both products are rounded to. Its contents afterwards mean nothing"),
      out("out", "A,N", "=gate_up", "gated rows; rows of no group are not written"),
      opt_in("w_row_scale", "E,2*N", "f32", "of an e4m3 w: factor of each row"),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "silu|gelu_tanh|gelu_erf", "activation of the gate"),
      choice("quant", "f32|q8", "how activations enter a product with a block-quantized w, as gemm's attribute act"),
  };
  static constexpr OpSpec spec{
      .name = "grouped_gated_gemm",
      .group = "moe",
      .brief = "Products of runs of rows with a gate and an up matrix a run, gated, as one op.",
      .formula = "gate_up = grouped_gemm(x, w); out = act_mul(gate_up). Rounding points are those of the ops.",
      .source = "GLU variants arXiv:2002.05202",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  struct Args {
    kernels::GroupedGemmArgs g;
    kernels::ActMulArgs act;
  };
  static Cost cost(const Args& a) {
    Cost c = grouped_gemm::cost(a.g);
    c.bytes -= int64_t{a.g.A} * a.act.H * info(a.g.out_dtype).bytes;  // half of the columns leave
    return c;
  }

  static const OpRow& first(const Call&) { return ops::grouped_gemm; }
  static const OpRow& second(const Call&) { return ops::act_mul; }
  static Status connect(const Call& c, Call& first, Call& second) {
    constexpr std::string_view kActs[] = {"silu", "gelu_tanh", "gelu_erf"}, kQuants[] = {"f32", "q8"};
    Tensor rows = c["offsets"];
    if (rows.data != nullptr) rows.data = static_cast<char*>(rows.data) + c.dim("E") * 4;
    rows.shape.dim[0] = 1;
    VV_TRY(of_part(ops::bind(first,
                             {{"x", c["x"]},
                              {"w", c["w"]},
                              {"w_row_scale", c["w_row_scale"]},
                              {"offsets", c["offsets"]},
                              {"out", c["gate_up"]}},
                             {{"act", kQuants[c.integer("quant")]}})));
    return of_part(ops::bind(second, {{"x", c["gate_up"]}, {"out", c["out"]}, {"rows", rows}},
                             {{"act", kActs[c.integer("act")]}}));
  }
  static Status read(const Call&, const Call& first, const Call& second, Args* a) {
    VV_TRY(grouped_gemm::bind(first, &a->g));
    return act_mul::bind(second, &a->act);
  }

  struct Gpu {
    static constexpr const char* kHeader = grouped_gemm::Gpu::kHeader;
    using Wgmma = kernels::GroupedWgmma;
    using Plain = grouped_gemm::Gpu;
    using Key = Plain::Key;
    using Maybe = std::optional<Key>;

    static Result<Maybe> fused(const Args& a, Arch arch) {
      if (a.g.A == 0 || !Plain::has_wgmma(a.g, arch)) return Maybe();
      VV_ASSIGN(Key key, Plain::pick(a.g, arch));
      key.wgmma.gated = true;
      return Maybe(key);
    }
    static std::string instance(const Key& k) { return Plain::instance(k); }
    static Status complete(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
      kernels::GroupedGemmArgs g = a.g;
      g.out = a.act.out, g.out_stride = a.act.out_stride, g.gate = a.act.act;
      Plain::shape(g, k, launch);
      return Plain::complete(g, k, target, launch);
    }
    static int row_class(const Args& a) { return Plain::row_class(a.g); }
    /// The kernel of the fused way, for searches; Unsupported where the parts run.
    static Result<Key> pick(const Args& a, Arch arch) {
      return fused_only(fused(a, arch), strf("grouped_gemm and act_mul run one after the other, x %s and w %s on %s: "
                                             "one kernel serves aligned bf16 or f16 of both, and e4m3 or q4_0 w under "
                                             "bf16, without gaps, on sm_90a",
                                             name(a.g.x_dtype), name(a.g.w_dtype), name(arch)));
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      if (!chip(arch).wgmma || portable_only()) return;
      for (const DType t : {DType::bf16, DType::f16})
        for (Wgmma p : Plain::kTiles) p.gated = true, visit(Key{{t, t, t, kernels::GemmAct::f32, {}}, p});
      for (Wgmma p : Plain::kEightTiles)
        p.gated = true, visit(Key{{DType::bf16, DType::e4m3, DType::bf16, kernels::GemmAct::f32, {}}, p});
      for (Wgmma p : Plain::kFourTiles)
        p.gated = true, visit(Key{{DType::bf16, DType::q4_0, DType::bf16, kernels::GemmAct::f32, {}}, p});
    }
  };
};

}  // namespace vivace::ops::defs
