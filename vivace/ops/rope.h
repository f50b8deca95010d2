// rope: rotary position embedding of heads.
#pragma once
#include "vivace/kernels/rope/rope.h"
#include "vivace/ops/rope_rules.h"

namespace vivace::cpu {
class Pool;
void rope(const kernels::RopeArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct rope {
  using Args = kernels::RopeArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,N,D", "f32|bf16|f16", "heads of each token; D <= 1024"),
      in("inv_freq", "R", "f32",
         "radians a position for each rotated pair; the first 2R <= D dims rotate, the rest are copied"),
      in("pos", "T", "i32", "position of each token, any sign"),
      out("out", "T,N,D", "=x", "rotated heads", "x"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("style", "half|interleaved", "half rotates dims (i, i+R), interleaved dims (2i, 2i+1)"),
      real("attn_factor", 1, "factor of cos and sin (YaRN's attention factor)"),
  };
  static constexpr OpSpec spec{
      .name = "rope",
      .group = "rope",
      .brief = "Rotary position embedding of the first 2R dims of every head.",
      .formula =
          "angle_i = f32(pos) * inv_freq[i], rounded to f32; c = cos(angle_i) * attn_factor, s = sin(angle_i) * "
          "attn_factor; "
          "with (a, b) = dims (i, i+R) or (2i, 2i+1): out_a = round(a*c - b*s), out_b = round(b*c + a*s); "
          "dims from 2R on are copied. All in f32.",
      .source = "RoPE arXiv:2104.09864, YaRN arXiv:2309.00071",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    VV_TRY(check_rotation(c));
    *a = Args{
        .x = c.ptr("x"),
        .inv_freq = c.ptr<float>("inv_freq"),
        .pos = c.ptr<int32_t>("pos"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .N = static_cast<int32_t>(c.dim("N")),
        .D = static_cast<int32_t>(c.dim("D")),
        .R = static_cast<int32_t>(c.dim("R")),
        .attn_factor = static_cast<float>(c.real("attn_factor")),
        .style = c.choice<kernels::RopeStyle>("style"),
        .dtype = c["x"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.N * a.D;
    return {.bytes = n * 2 * info(a.dtype).bytes + a.T * int64_t{4} + a.R * int64_t{4},
            .flops = int64_t{a.T} * a.N * a.R * 6};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::rope(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/rope/rope.cuh";
    struct Key {
      DType dtype;
      kernels::RopePolicy p;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args& a, Arch) {
      const bool wide = vectorizable(a.x, a.x_stride, a.dtype, 8) && vectorizable(a.out, a.out_stride, a.dtype, 8);
      VV_ASSIGN(const kernels::RopePolicy p, pick_rope(wide, a.T, a.D, a.R, 1));
      return Key{a.dtype, p};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("rope<%s, %s>", type_name(k.dtype), policy_expression(k.p).c_str());
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(int64_t{a.T} * k.p.blocks(a.N));
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const kernels::RopePolicy& p : kRopeTactics)
          if (p.heads == 1) visit(Key{t, p});
    }
  };
};

}  // namespace vivace::ops::defs
