// dequantize: 8-bit codes back to floating point, the reverse of quantize.
#pragma once
#include "vivace/kernels/quantize/dequantize.h"
#include "vivace/ops/call.h"
#include "vivace/ops/stretch.h"

namespace vivace::cpu {
class Pool;
void dequantize(const kernels::DequantizeArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct dequantize {
  using Args = kernels::DequantizeArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "e4m3|i8", "codes"),
      out("out", "T,H", "f32|bf16|f16", "values"),
      opt_in("scale", "1", "f32", "scale of the whole tensor, static or dynamic"),
      opt_in("row_scale", "T", "f32", "scale of each row"),
      opt_in("block_scale", "T,(H+127)/128", "f32", "scale of each 128 columns of each row"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "dequantize",
      .group = "quantize",
      .brief = "Values of e4m3 or int8 codes with a tensor, row or 128-column scale.",
      .formula = "out = round(f32(x) * s), s of the tensor, of the row or of the block; the product in f32.",
      .source = "OCP OFP8 1.0; block scales arXiv:2412.19437",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    const int scales = c["scale"].present() + c["row_scale"].present() + c["block_scale"].present();
    if (scales != 1)
      return c.error(Code::kInvalidArgument,
                     strf("takes exactly one of scale, row_scale and block_scale, got %d", scales));
    *a = Args{
        .x = c.ptr("x"),
        .out = c.ptr("out"),
        .scale = c.ptr<float>("scale"),
        .row_scale = c.ptr<float>("row_scale"),
        .block_scale = c.ptr<float>("block_scale"),
        .rows = c.ptr<int32_t>("rows"),
        .x_stride = c.row_stride("x"),
        .out_stride = c.row_stride("out"),
        .block_stride = c.row_stride("block_scale"),
        .T = static_cast<int32_t>(c.dim("T")),
        .H = static_cast<int32_t>(c.dim("H")),
        .x_dtype = c["x"].dtype,
        .out_dtype = c["out"].dtype,
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.H, blocks = (int64_t{a.H} + kernels::kQuantBlock - 1) / kernels::kQuantBlock;
    return {.bytes = n * (1 + info(a.out_dtype).bytes) + (a.row_scale ? a.T * int64_t{4} : 0) +
                     (a.block_scale ? a.T * blocks * 4 : 0),
            .flops = n};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::dequantize(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/quantize/dequantize.cuh";
    struct Key {
      DType in, out;
      kernels::StretchPolicy p;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args& a, Arch) {
      const bool wide =
          vectorizable(a.x, a.x_stride, a.x_dtype, 8) && vectorizable(a.out, a.out_stride, a.out_dtype, 8);
      return Key{a.x_dtype, a.out_dtype,
                 pick_stretch(a.T, a.H, wide, info(a.out_dtype).bytes, 1 + info(a.out_dtype).bytes)};
    }
    static std::string instance(const Key& k) {
      return stretch_expression("dequantize", strf("%s, %s", type_name(k.in), type_name(k.out)), k.p);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) { shape_stretch(a.T, a.H, k.p, launch); }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType in : {DType::e4m3, DType::i8})
        for (const DType out : {DType::f32, DType::bf16, DType::f16})
          each_stretch(info(out).bytes, 1 + info(out).bytes, [&](const auto& p) { visit(Key{in, out, p}); });
    }
  };
};

}  // namespace vivace::ops::defs
