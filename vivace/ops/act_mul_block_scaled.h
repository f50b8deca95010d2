// act_mul_block_scaled: act_mul whose rows leave as FP4 codes with an e4m3 scale for each 16 columns.
#pragma once
#include "vivace/kernels/gate/act_mul_block_scaled.h"
#include "vivace/ops/act_mul.h"
#include "vivace/ops/block_scaled_rules.h"

namespace vivace::cpu {
void act_mul_block_scaled(const kernels::ActMulBlockScaledArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct act_mul_block_scaled {
  using Args = kernels::ActMulBlockScaledArgs;
  static constexpr Port kPorts[] = {
      opt_in("x", "T,4*C", "f32|bf16|f16",
             "merged rows: 2 C gate values, then as many up values; exactly one of x and gate"),
      opt_in("gate", "T,2*C", "f32|bf16|f16", "argument of the activation"),
      opt_in("up", "T,2*C", "=gate", "factor of the activated gate; absent means the activation alone"),
      opt_in("inv_scale", "2*C", "f32", "factor of each channel, the inverse of the next product's input smoothing"),
      out("out", "T,C", "u8", "codes, two a byte, the even column in the low nibble; 2 C is a multiple of 16"),
      out("scales", "?", "e4m3", "block scales in the given layout, fp4_scale_bytes(T, 2 C, layout) of them"),
      in("tensor_scale", "1", "f32", "scale of the whole tensor; > 0"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {act_mul::kAttrs[0], choice("layout", "linear|swizzled", kBlockScaledLayoutDoc)};
  static constexpr OpSpec spec{
      .name = "act_mul_block_scaled",
      .group = "gate",
      .brief = "act_mul with FP4 (e2m1) codes out, an e4m3 scale for each 16 columns and one f32 tensor scale.",
      .formula = "y as in act_mul, unrounded; out and scales as quantize_block_scaled makes them of y. All in f32.",
      .source = "GLU variants arXiv:2002.05202; OCP Microscaling Formats 1.0 (e2m1)",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    VV_TRY(act_mul::bind_rows(c, &a->act));
    return bind_block_scaled_out(c, c["x"].present() ? "x" : "gate", 2 * c.dim("C"), &a->block_scaled);
  }
  static Cost cost(const Args& a) {
    const Cost rows = act_mul::cost(a.act);  // with an out of the gate's type
    return {.bytes = rows.bytes - int64_t{a.act.T} * a.act.H * info(a.act.out_dtype).bytes +
                     block_scaled_bytes(a.block_scaled),
            .flops = rows.flops};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::act_mul_block_scaled(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/gate/act_mul_block_scaled.cuh";
    using Policy = kernels::ActMulBlockScaledPolicy;
    struct Key {
      DType in;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactics[] = {{128, true}, {128, false}};
    static Result<Key> pick(const Args& a, Arch) {
      const bool aligned = vectorizable(a.act.gate, a.act.gate_stride, a.act.dtype, 8) &&
                           vectorizable(a.act.up, a.act.up_stride, a.act.dtype, 8) &&
                           block_scaled_aligned(a.block_scaled);
      return Key{a.act.dtype, kTactics[aligned ? 0 : 1]};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("act_mul_block_scaled<%s, vivace::kernels::ActMulBlockScaledPolicy{%d, %s}>",
                               type_name(k.in), k.p.threads, k.p.aligned ? "true" : "false");
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int64_t columns = int64_t{k.p.threads} * 8;
      launch->grid[0] = static_cast<uint32_t>(block_scaled_rows(a.block_scaled) * ((a.act.H + columns - 1) / columns));
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType in : {DType::f32, DType::bf16, DType::f16})
        for (const Policy& p : kTactics) visit(Key{in, p});
    }
  };
};

}  // namespace vivace::ops::defs
