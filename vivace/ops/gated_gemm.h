// gated_gemm: the first half of a gated MLP in one pass, from weights whose gate and up rows alternate.
#pragma once
#include "vivace/kernels/gemm/gemm.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gemm_blocks.h"
#include "vivace/ops/gemm_contents.h"
#include "vivace/ops/gemm_gpu.h"

namespace vivace::cpu {
class Pool;
void gemm(const kernels::GemmArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

/// gemm's kernels: neighbouring columns meet in the epilogue, so that the [T, 2 N] product is never written.
struct gated_gemm {
  using Args = kernels::GemmArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,K", "f32|bf16|f16|e4m3", "activations"),
      read_ahead(in("w", "2*N,K", "f32|bf16|f16|e4m3|i8|i4|e2m1|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k",
                    "weights, as gemm has them: row 2 n is gate n, row 2 n + 1 is up n")),
      opt_in("bias", "2*N", "f32|bf16|f16", "added before the activation, in the order of w"),
      opt_in("x_scale", "1", "f32", "factor of all of x: x stands for x * x_scale"),
      opt_in("w_scale", "1", "f32", "factor of all of w"),
      opt_in("x_row_scale", "T", "f32", "factor of each token's x"),
      opt_in("w_row_scale", "2*N", "f32", "factor of each row of w"),
      read_ahead(opt_in("w_block_scale", "?,?", "f32|bf16|f16|e4m3", "factor of each piece of w, see gemm")),
      read_ahead(opt_in("w_block_zero", "?,?", "i8",
                        "of an i4 w: the code of each piece that stands for zero; the shape of w_block_scale")),
      opt_in("x_block_scale", "T,(K+127)/128", "f32", "of an e4m3 x: factor of each 128 columns of each token"),
      out("out", "T,N", "f32|bf16|f16|e4m3", "gated rows"),
      opt_in("out_scale", "1", "f32", "static quantization scale of an e4m3 out: value ~ out * out_scale; > 0"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "silu|gelu_tanh|gelu_erf|relu|relu2", "activation of the gate"),
      choice("quant", "f32|q8", "how activations enter a product with a block-quantized w, see gemm's attribute act"),
      real("alpha", 1, "factor of the product"),
      boolean("fast_accum", false,
              "e4m3 products: sums may stay in the tensor core, which keeps about 13 bits of them"),
  };
  static constexpr OpSpec spec{
      .name = "gated_gemm",
      .group = "gemm",
      .brief = "Matrix product with interleaved gate and up weights, gated in the same pass, with quantized output.",
      .formula =
          "g = s * (x W^T) + bias, s = alpha * x_scale * w_scale * x_row_scale[t] * w_row_scale[n]; out[n] = "
          "round(act(g[2 n]) * g[2 n + 1]); an e4m3 out is "
          "sat_e4m3(... / out_scale). All in f32, summed as in gemm; g is not rounded.",
      .source = "GLU variants arXiv:2002.05202",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const Tensor &x = c["x"], &w = c["w"], &out = c["out"];
    const auto quant = c.choice<kernels::GemmAct>("quant");
    if (quant == kernels::GemmAct::q8 && !is_block(w.dtype))
      return c.error(Code::kInvalidArgument,
                     strf("quant=q8 needs a block-quantized w, got %s; use quant=f32", name(w.dtype)));
    if (c.dim("K") < 1 || c.dim("N") < 1)
      return c.error(Code::kInvalidShape, strf("N and K must be at least 1, got %ld and %ld",
                                               static_cast<long>(c.dim("N")), static_cast<long>(c.dim("K"))));
    for (const char* d : {"T", "N", "K"})
      if (c.dim(d) > INT32_MAX / 2)
        return c.error(Code::kInvalidShape, strf("%s = %ld is above 2^30 - 1", d, static_cast<long>(c.dim(d))));
    if ((out.dtype == DType::e4m3) != c["out_scale"].present())
      return c.error(Code::kInvalidArgument,
                     strf("out is %s and out_scale %s: an e4m3 out needs it, any other takes none", name(out.dtype),
                          c["out_scale"].present() ? "given" : "absent"));
    if (c.flag("fast_accum") && (x.dtype != DType::e4m3 || w.dtype != DType::e4m3))
      return c.error(Code::kInvalidArgument, strf("fast_accum is for products of e4m3 with e4m3, got %s with %s",
                                                  name(x.dtype), name(w.dtype)));
    *a = Args{};
    a->x = x.data, a->w = w.data, a->bias = c.ptr("bias"), a->out = out.data, a->rows = c.ptr<int32_t>("rows");
    a->x_scale = c.ptr<float>("x_scale"), a->w_scale = c.ptr<float>("w_scale"),
    a->out_scale = c.ptr<float>("out_scale");
    a->x_row_scale = c.ptr<float>("x_row_scale"), a->w_row_scale = c.ptr<float>("w_row_scale");
    a->x_stride = c.row_stride("x"), a->w_stride = c.row_stride("w"), a->out_stride = c.row_stride("out");
    a->T = static_cast<int32_t>(c.dim("T")), a->N = static_cast<int32_t>(2 * c.dim("N")),
    a->K = static_cast<int32_t>(c.dim("K"));
    a->alpha = static_cast<float>(c.real("alpha"));
    a->epilogue = static_cast<kernels::Activation>(c.integer("act") + 1);  // the choices leave out Activation::none
    a->act = quant;
    a->x_dtype = x.dtype, a->w_dtype = w.dtype, a->bias_dtype = c["bias"].dtype, a->out_dtype = out.dtype,
    a->scale_dtype = DType::f32;
    a->fast_accum = c.flag("fast_accum"), a->gated = true;
    return bind_blocks(c, a);
  }

  static Cost cost(const Args& a) {
    const int64_t T = a.T, N = a.N, K = a.K;
    return {.bytes = N * row_bytes(a.w_dtype, K) + T * K * info(a.x_dtype).bytes + T * N / 2 * info(a.out_dtype).bytes +
                     (a.bias ? N * info(a.bias_dtype).bytes : 0),
            .flops = 2 * T * N * K};
  }

  static Status inspect(const Call& c, const Contents& read) {
    return inspect_scales(
        c, read, {"x_scale", "w_scale", "x_row_scale", "w_row_scale", "w_block_scale", "x_block_scale", "out_scale"});
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::gemm(a, pool); }

  struct Gpu : GemmGpu {
    /// gemm's list holds these kernels; one of each kind stands for them here.
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      Kind last{};
      bool first = true;
      GemmGpu::instances(arch, [&](const Key& k) {
        if (k.kind == Kind::weight_only || k.kind == Kind::mixed_input || (k.x == DType::f32 && k.kind != Kind::simple))
          return;  // few tokens' are the same with a gate; no tf32
        if (first || k.kind != last) {
          Key one = k;
          if (k.kind == Kind::wgmma)
            one.wgmma = GemmTiles::fill(GemmTiles::pick(8, 64, 128, false));  // what N off 8 takes
          visit(one);
        }
        first = false;
        last = k.kind;
      });
      if (!has_wgmma(arch)) return;
      mixed_input_instance(visit, DType::q4_0, 100, false, 0, DType::f32, false, true);
      mixed_input_instance(visit, DType::e2m1, 100, false, 16, DType::e4m3, false, true);
    }
  };
};

}  // namespace vivace::ops::defs
