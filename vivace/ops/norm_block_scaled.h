// norm_block_scaled: norm whose rows leave as FP4 codes with an e4m3 scale for each 16 columns.
#pragma once
#include "vivace/kernels/norm/norm_block_scaled.h"
#include "vivace/ops/block_scaled_rules.h"
#include "vivace/ops/norm.h"

namespace vivace::cpu {
void norm_block_scaled(const kernels::NormBlockScaledArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct norm_block_scaled {
  using Args = kernels::NormBlockScaledArgs;
  static constexpr Port kPorts[] = {
      norm::kPorts[0],
      norm::kPorts[1],
      norm::kPorts[2],
      norm::kPorts[3],
      norm::kPorts[4],
      norm::kPorts[5],
      norm::kPorts[6],
      norm::kPorts[7],
      out("out", "T,H/2", "u8", "codes, two a byte, the even column in the low nibble; H is a multiple of 16"),
      out("scales", "?", "e4m3", "block scales in the given layout, fp4_scale_bytes(T, H, layout) of them"),
      in("tensor_scale", "1", "f32", "scale of the whole tensor; > 0"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {norm::kAttrs[0], norm::kAttrs[1], norm::kAttrs[2],
                                    choice("layout", "linear|swizzled", kBlockScaledLayoutDoc)};
  static constexpr OpSpec spec{
      .name = "norm_block_scaled",
      .group = "norm",
      .brief = "norm with FP4 (e2m1) codes out, an e4m3 scale for each 16 columns and one f32 tensor scale.",
      .formula = "y as in norm, unrounded; out and scales as quantize_block_scaled makes them of y. All in f32.",
      .source = "RMSNorm arXiv:1910.07467; OCP Microscaling Formats 1.0 (e2m1)",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    VV_TRY(norm::bind_rows(c, &a->norm));
    return bind_block_scaled_out(c, "x", c.dim("H"), &a->block_scaled);
  }
  static Cost cost(const Args& a) {
    const Cost rows = norm::cost(a.norm);  // with an out of x's type
    return {.bytes = rows.bytes - int64_t{a.norm.T} * a.norm.H * info(a.norm.out_dtype).bytes +
                     block_scaled_bytes(a.block_scaled),
            .flops = rows.flops};
  }
  static Status inspect(const Call& c, const Contents& read) { return inspect_ada_row(c, read); }
  static void host(const Args& a, cpu::Pool& pool) { cpu::norm_block_scaled(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/norm/norm_block_scaled.cuh";
    struct Key {
      DType x, w;
      kernels::NormPolicy p;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args& a, Arch) {
      VV_ASSIGN(const kernels::NormPolicy p, norm::Gpu::policy(a.norm, block_scaled_aligned(a.block_scaled)));
      return Key{a.norm.x_dtype, a.norm.weight ? a.norm.w_dtype : a.norm.x_dtype, p};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("norm_block_scaled<%s, %s, %s>", type_name(k.x), type_name(k.w),
                               norm::Gpu::expression(k.p).c_str());
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(block_scaled_rows(a.block_scaled));
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    /// Rows of f32, which no model quantizes so, are compiled when they come.
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType x : {DType::bf16, DType::f16})
        norm::Gpu::policies(false, [&](const kernels::NormPolicy& p) { visit(Key{x, x, p}); });
    }
  };
};

}  // namespace vivace::ops::defs
