// norm_micro: norm whose rows leave as FP4 codes with an e4m3 scale for each 16 columns.
#pragma once
#include "vivace/kernels/norm/norm_micro.h"
#include "vivace/ops/micro_rules.h"
#include "vivace/ops/norm.h"

namespace vivace::cpu {
void norm_micro(const kernels::NormMicroArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct norm_micro {
  using Args = kernels::NormMicroArgs;
  static constexpr Port kPorts[] = {
      norm::kPorts[0], norm::kPorts[1], norm::kPorts[2], norm::kPorts[3], norm::kPorts[4], norm::kPorts[5], norm::kPorts[6], norm::kPorts[7],
      out("out", "T,H/2", "u8", "codes, two a byte, the even column in the low nibble; H is a multiple of 16"),
      out("scales", "?", "e4m3", "block scales in the given layout, fp4_scale_bytes(T, H, layout) of them"),
      in("tensor_scale", "1", "f32", "scale of the whole tensor; > 0"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {norm::kAttrs[0], norm::kAttrs[1], norm::kAttrs[2], choice("layout", "linear|swizzled", kMicroLayoutDoc)};
  static constexpr OpSpec spec{
      .name = "norm_micro",
      .group = "norm",
      .brief = "norm with FP4 (e2m1) codes out, an e4m3 scale for each 16 columns and one f32 tensor scale.",
      .formula = "y as in norm, unrounded; out and scales as quantize_micro makes them of y. All in f32.",
      .source = "RMSNorm arXiv:1910.07467; OCP Microscaling Formats 1.0 (e2m1)",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    VV_TRY(norm::bind_rows(c, &a->norm));
    return bind_micro_out(c, "x", c.dim("H"), &a->micro);
  }
  static Cost cost(const Args& a) {
    const Cost rows = norm::cost(a.norm);  // with an out of x's type
    return {.bytes = rows.bytes - int64_t{a.norm.T} * a.norm.H * info(a.norm.out_dtype).bytes + micro_bytes(a.micro), .flops = rows.flops};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::norm_micro(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/norm/norm_micro.cuh";
    struct Key {
      DType x, w;
      kernels::NormPolicy p;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args& a, Arch) {
      VV_ASSIGN(const kernels::NormPolicy p, norm::Gpu::policy(a.norm, micro_aligned(a.micro)));
      return Key{a.norm.x_dtype, a.norm.weight ? a.norm.w_dtype : a.norm.x_dtype, p};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("norm_micro<%s, %s, %s>", type_name(k.x), type_name(k.w), norm::Gpu::expression(k.p).c_str());
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(micro_rows(a.micro));
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    /// Rows of f32, which no model quantises so, are compiled when they come.
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType x : {DType::bf16, DType::f16}) norm::Gpu::policies(false, [&](const kernels::NormPolicy& p) { visit(Key{x, x, p}); });
    }
  };
};

}  // namespace vivace::ops::defs
