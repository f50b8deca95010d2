// block_scaled_act_mul: act_mul whose gate, up and result are FP4.
#pragma once
#include <string_view>

#include "vivace/ops/act_mul.h"
#include "vivace/ops/block_scaled_rules.h"
#include "vivace/ops/registry.h"

namespace vivace::ops::defs {

struct block_scaled_act_mul {
  static constexpr Port kPorts[] = {
      in("gate", "T,C", "u8",
         "codes of the activation's argument, two a byte, the even column in the low nibble; 2 C is a multiple of 16"),
      in("gate_scales", "?", "e4m3", "its block scales in the given layout, fp4_scale_bytes(T, 2 C, layout) of them"),
      in("gate_tensor", "1", "f32", "its scale of the whole tensor"),
      in("up", "T,C", "u8", "codes of the activated gate's factor"),
      in("up_scales", "?", "e4m3", "as gate_scales"),
      in("up_tensor", "1", "f32", "as gate_tensor"),
      opt_in("inv_scale", "2*C", "f32", "factor of each channel, the inverse of the next product's input smoothing"),
      out("out", "T,C", "u8", "codes of the result"),
      out("scales", "?", "e4m3", "its block scales, in the same layout"),
      in("tensor_scale", "1", "f32", "its scale of the whole tensor; > 0"),
      inout("gate_rows", "T,2*C", "f32|bf16|f16", "scratch: values of gate"),
      inout("up_rows", "T,2*C", "=gate_rows", "scratch: values of up"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      act_mul::kAttrs[0], choice("layout", "linear|swizzled", "of all block scales, see dequantize_block_scaled")};
  static constexpr OpSpec spec{
      .name = "block_scaled_act_mul",
      .group = "gate",
      .brief = "act_mul of FP4 (e2m1) codes with FP4 codes out.",
      .formula =
          "dequantize_block_scaled of gate and up into their scratch, rounded to its type; then act_mul_block_scaled",
      .source = "GLU variants arXiv:2002.05202; OCP Microscaling Formats 1.0 (e2m1)",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  static Status decompose(const Call& c, Recorder& rec) {
    constexpr std::string_view kActs[] = {"silu", "gelu_tanh", "gelu_erf", "relu", "relu2"},
                               kLayouts[] = {"linear", "swizzled"};
    const std::string_view layout = kLayouts[c.integer("layout")];
    const int64_t H = 2 * c.dim("C");
    if (H < kernels::kBlockScaledGroup || H % kernels::kBlockScaledGroup != 0)
      return c.error(Code::kInvalidShape, strf("port gate: wanted a multiple of %d columns, got 2 C = %ld",
                                               kernels::kBlockScaledGroup, static_cast<long>(H)));
    for (const char* port : {"gate_scales", "up_scales", "scales"})
      if (const int64_t want = fp4_scale_bytes(c.dim("T"), H, c.choice<kernels::ScaleLayout>("layout")),
          got = c[port].shape[0];
          want != got)
        return c.error(Code::kInvalidShape, strf("port %s: wanted %ld entries (fp4_scale_bytes), got %ld", port,
                                                 static_cast<long>(want), static_cast<long>(got)));
    VV_TRY(rec(ops::dequantize_block_scaled,
               {{"x", c["gate"]},
                {"scales", c["gate_scales"]},
                {"tensor_scale", c["gate_tensor"]},
                {"out", c["gate_rows"]},
                {"rows", c["rows"]}},
               {{"layout", layout}}));
    VV_TRY(rec(ops::dequantize_block_scaled,
               {{"x", c["up"]},
                {"scales", c["up_scales"]},
                {"tensor_scale", c["up_tensor"]},
                {"out", c["up_rows"]},
                {"rows", c["rows"]}},
               {{"layout", layout}}));
    return rec(ops::act_mul_block_scaled,
               {{"gate", c["gate_rows"]},
                {"up", c["up_rows"]},
                {"inv_scale", c["inv_scale"]},
                {"out", c["out"]},
                {"scales", c["scales"]},
                {"tensor_scale", c["tensor_scale"]},
                {"rows", c["rows"]}},
               {{"act", kActs[c.integer("act")]}, {"layout", layout}});
  }
};

}  // namespace vivace::ops::defs
