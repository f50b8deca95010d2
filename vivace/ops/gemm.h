// gemm: x times W transposed, W plain or block-quantized, with everything that models fold into it.
#pragma once
#include "vivace/cpu/simd/isa.h"
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

struct gemm {
  using Args = kernels::GemmArgs;
  static constexpr Port kPorts[] = {
      in("x", "T,K", "f32|bf16|f16|e4m3", "activations"),
      columns(read_ahead(
          in("w", "N,K", "f32|bf16|f16|e4m3|i8|i4|e2m1|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k",
             "weights, one output a row; block formats in GGUF's layout, i4 and e2m1 two a byte, low nibble first; "
             "f32, bf16 and f16 of x's type also as the transpose of a row-major [K, N]"))),
      opt_in("bias", "N", "f32|bf16|f16", "added before the activation"),
      opt_in("gate", "R,N", "=out", "factor of the activated product, before the residual: row min(t, R-1)"),
      opt_in("residual", "T,N", "=out", "added last"),
      opt_in("x_scale", "1", "f32", "factor of all of x: x stands for x * x_scale"),
      opt_in("w_scale", "1", "f32", "factor of all of w"),
      opt_in("x_row_scale", "T", "f32", "factor of each token's x"),
      opt_in("w_row_scale", "N", "f32", "factor of each row of w"),
      read_ahead(opt_in("w_block_scale", "?,?", "f32|bf16|f16|e4m3",
                        "factor of each piece of w: [N, ceil(K/g)], g of 16, 32, 64, 128 as the shape says, or "
                        "[ceil(N/128), ceil(K/g)] for 8-bit w")),
      read_ahead(opt_in("w_block_zero", "?,?", "i8",
                        "of an i4 w: the code of each piece that stands for zero; the shape of w_block_scale")),
      opt_in("x_block_scale", "T,(K+127)/128", "f32", "of an e4m3 x: factor of each 128 columns of each token"),
      out("out", "T,N", "f32|bf16|f16|e4m3", "result", "residual"),
      opt_in("out_scale", "1", "f32", "static quantization scale of an e4m3 out: value ~ out * out_scale; > 0"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "f32|q8",
             "how activations enter a product with a block-quantized w: as f32, or as int8 in blocks of 32"),
      real("alpha", 1, "factor of the product"),
      choice("epilogue", "none|silu|gelu_tanh|gelu_erf|relu|relu2", "activation of the biased product"),
      boolean(
          "tf32", false,
          "products of f32 with f32: on CUDA the factors are cut to tf32, 10 bits of mantissa, for the tensor cores"),
      boolean("fast_accum", false,
              "e4m3 products: sums may stay in the tensor core, which keeps about 13 bits of them"),
  };
  static constexpr OpSpec spec{
      .name = "gemm",
      .group = "gemm",
      .brief =
          "Matrix product of activations with transposed plain or block-quantized weights, with bias, activation, gate "
          "and residual.",
      .formula =
          "out = round(residual + gate * epilogue(s * (x W^T) + bias)), absent terms left out, s = alpha * x_scale * "
          "w_scale * x_row_scale[t] * w_row_scale[n]; an e4m3 out is "
          "sat_e4m3(... / out_scale). All in f32, summed over K in an order that depends on the weight's shape and not "
          "on the other tokens. "
          "act=f32: x as f32 times W as f32 (block formats dequantized; with w_block_scale: (w - zero) * scale of its "
          "piece); on Hopper more than 64 bf16 tokens meet these values rounded to bf16, where rows of w are whole 16 "
          "bytes. act=q8: each 32 values of x become int8: d = amax / 127, "
          "q = rint(x * (127 / amax)) half to even, zeros where amax = 0; a block adds (dw * d) * (sum qw q), qw less "
          "its format's "
          "zero point, plus m * (d * sum q) in formats with a minimum (m = -dmin * min in q4_k, q5_k); integer sums "
          "are exact.",
      .source = "GGUF block formats: the ggml project's quantization reference; integer activations arXiv:1712.05877",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const Tensor &x = c["x"], &w = c["w"], &out = c["out"];
    const auto act = c.choice<kernels::GemmAct>("act");
    if (act == kernels::GemmAct::q8 && !is_block(w.dtype))
      return c.error(Code::kInvalidArgument,
                     strf("act=q8 needs a block-quantized w, got %s; use act=f32", name(w.dtype)));
    if (c.dim("K") < 1 || c.dim("N") < 1)
      return c.error(Code::kInvalidShape, strf("N and K must be at least 1, got %ld and %ld",
                                               static_cast<long>(c.dim("N")), static_cast<long>(c.dim("K"))));
    for (const char* d : {"T", "N", "K"})
      if (c.dim(d) > INT32_MAX)
        return c.error(Code::kInvalidShape, strf("%s = %ld is above 2^31 - 1", d, static_cast<long>(c.dim(d))));
    if (c.place() == Place::host) {
      if (Status s = cpu::check_isa(); !s.ok()) return s;
    }
    if ((out.dtype == DType::e4m3) != c["out_scale"].present())
      return c.error(Code::kInvalidArgument,
                     strf("out is %s and out_scale %s: an e4m3 out needs it, any other takes none", name(out.dtype),
                          c["out_scale"].present() ? "given" : "absent"));
    for (const char* port : {"gate", "residual"})
      if (out.dtype == DType::e4m3 && c[port].present())
        return c.error(Code::kInvalidArgument, strf("an e4m3 out takes no %s; use bf16 and quantize", port));
    if (c["gate"].present() && c.dim("R") < 1)
      return c.error(Code::kInvalidShape, "port gate: needs at least one row, got 0");
    if (c.flag("fast_accum") && (x.dtype != DType::e4m3 || w.dtype != DType::e4m3))
      return c.error(Code::kInvalidArgument, strf("fast_accum is for products of e4m3 with e4m3, got %s with %s",
                                                  name(x.dtype), name(w.dtype)));
    if (c.flag("tf32") && (x.dtype != DType::f32 || w.dtype != DType::f32))
      return c.error(Code::kInvalidArgument,
                     strf("tf32 is for products of f32 with f32, got %s with %s", name(x.dtype), name(w.dtype)));
    const bool by_column = c.by_column("w");
    if (by_column && (w.dtype != x.dtype || (w.dtype != DType::f32 && info(w.dtype).bytes != 2)))
      return c.error(Code::kUnsupported,
                     strf("port w lies column after column, as f32, bf16 and f16 of x's type may, got x %s and w %s; "
                          "copy it row after row",
                          name(x.dtype), name(w.dtype)));
    if (by_column && (c.flag("tf32") || c["w_block_scale"].present()))
      return c.error(Code::kUnsupported,
                     strf("port w lies column after column, which goes without %s; copy it row after row",
                          c.flag("tf32") ? "tf32" : "w_block_scale"));
    *a = Args{
        .x = x.data,
        .w = w.data,
        .bias = c.ptr("bias"),
        .gate = c.ptr("gate"),
        .residual = c.ptr("residual"),
        .out = out.data,
        .rows = c.ptr<int32_t>("rows"),
        .x_scale = c.ptr<float>("x_scale"),
        .w_scale = c.ptr<float>("w_scale"),
        .x_row_scale = c.ptr<float>("x_row_scale"),
        .w_row_scale = c.ptr<float>("w_row_scale"),
        .out_scale = c.ptr<float>("out_scale"),
        .w_block_scale = nullptr,
        .w_block_zero = nullptr,
        .x_block_scale = nullptr,
        .x_stride = c.row_stride("x"),
        .w_stride = by_column ? c.pitch("w") : c.row_stride("w"),
        .gate_stride = c.row_stride("gate"),
        .residual_stride = c.row_stride("residual"),
        .out_stride = c.row_stride("out"),
        .block_stride = 0,
        .zero_stride = 0,
        .x_block_stride = 0,
        .T = static_cast<int32_t>(c.dim("T")),
        .N = static_cast<int32_t>(c.dim("N")),
        .K = static_cast<int32_t>(c.dim("K")),
        .gate_rows = c["gate"].present() ? static_cast<int32_t>(c.dim("R")) : 0,
        .block_rows = 0,
        .block_group = 0,
        .alpha = static_cast<float>(c.real("alpha")),
        .epilogue = c.choice<kernels::Activation>("epilogue"),
        .act = act,
        .x_dtype = x.dtype,
        .w_dtype = w.dtype,
        .bias_dtype = c["bias"].dtype,
        .out_dtype = out.dtype,
        .scale_dtype = DType::f32,
        .fast_accum = c.flag("fast_accum"),
        .tf32 = c.flag("tf32"),
        .w_by_column = by_column,
        .gated = false,
    };
    return bind_blocks(c, a);
  }

  static Cost cost(const Args& a) {
    const int64_t T = a.T, N = a.N, K = a.K;
    return {.bytes = N * row_bytes(a.w_dtype, K) + T * K * info(a.x_dtype).bytes +
                     T * N * info(a.out_dtype).bytes * (a.residual ? 2 : 1) +
                     a.gate_rows * N * info(a.out_dtype).bytes + (a.bias ? N * info(a.bias_dtype).bytes : 0),
            .flops = 2 * T * N * K};
  }

  static Status inspect(const Call& c, const Contents& read) {
    return inspect_scales(
        c, read, {"x_scale", "w_scale", "x_row_scale", "w_row_scale", "w_block_scale", "x_block_scale", "out_scale"});
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::gemm(a, pool); }

  using Gpu = GemmGpu;
};

}  // namespace vivace::ops::defs
