// dequantize_block_scaled: FP4 codes with their scales back to floating point.
#pragma once
#include "vivace/kernels/quantize/dequantize_block_scaled.h"
#include "vivace/ops/block_scaled_rules.h"

namespace vivace::cpu {
class Pool;
void dequantize_block_scaled(const kernels::BlockScaledArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct dequantize_block_scaled {
  using Args = kernels::BlockScaledArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H/2", "u8", "codes, two a byte, the even column in the low nibble"),
      in("scales", "?", "e4m3", "block scales in the given layout, fp4_scale_bytes(T, H, layout) of them"),
      in("tensor_scale", "1", "f32", "scale of the whole tensor"),
      out("out", "T,H", "f32|bf16|f16", "values; H is a multiple of 16"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("layout", "linear|swizzled",
             "linear: [T, H/16] dense; swizzled: tiles of 128 rows x 4 scales, 512 bytes each, tile rows outermost, "
             "scale (m, k) of a tile at byte (m % 32) * 16 + (m / 32) * 4 + k, padded to whole tiles"),
  };
  static constexpr OpSpec spec{
      .name = "dequantize_block_scaled",
      .group = "quantize",
      .brief = "Values of FP4 (e2m1) codes with an e4m3 scale for each 16 columns and one f32 tensor scale.",
      .formula = "out = round(e2m1(code) * (f32(s) * tensor_scale)), both products in f32",
      .source = "OCP Microscaling Formats 1.0 (e2m1); scale tiles as in the cuBLAS documentation of 1D block scaling",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) { return bind_block_scaled(c, "out", "x", c.dim("H"), a); }
  static Cost cost(const Args& a) { return cost_block_scaled(a); }
  static void host(const Args& a, cpu::Pool& pool) { cpu::dequantize_block_scaled(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/quantize/dequantize_block_scaled.cuh";
    using Key = BlockScaledKey;
    static Result<Key> pick(const Args& a, Arch) { return pick_block_scaled(a); }
    static std::string instance(const Key& k) { return block_scaled_expression("dequantize_block_scaled", k); }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      shape_block_scaled(int64_t{a.T} * (a.H / kernels::kBlockScaledGroup), k, launch);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) { visit_block_scaled(visit); }
  };
};

}  // namespace vivace::ops::defs
