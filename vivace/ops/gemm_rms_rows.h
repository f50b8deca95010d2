// gemm_rms_rows: a product and what the RMS norm behind it needs of its rows. For some few-token products one kernel;
// the bits are those of gemm and rms_rows, one after the other.
#pragma once
#include "vivace/ops/rms_gemm.h"
#include "vivace/ops/rms_rows.h"

namespace vivace::ops::defs {

struct gemm_rms_rows : TwoParts<gemm_rms_rows> {
  static constexpr Port kPorts[] = {
      in("x", "T,K", "f32|bf16|f16|e4m3", "activations"),
      read_ahead(in("w", "N,K", "f32|bf16|f16|e4m3", "weights, one output a row")),
      opt_in("bias", "N", "f32|bf16|f16", "added to the product"),
      opt_in("gate", "R,N", "=out", "factor of the product, before the residual: row min(t, R-1)"),
      opt_in("residual", "T,N", "=out", "added last"),
      opt_in("x_scale", "1", "f32", "factor of all of x"),
      opt_in("w_scale", "1", "f32", "factor of all of w"),
      opt_in("x_row_scale", "T", "f32", "factor of each token's x"),
      opt_in("w_row_scale", "N", "f32", "factor of each row of w"),
      out("out", "T,N", "f32|bf16|f16", "result", "residual"),
      read_ahead(opt_in("weight", "N", "f32|bf16|f16", "weight of the norm behind, see rms_rows; not with scale")),
      opt_in("scale", "Q,N", "=out", "adaptive scale of the norm behind, see rms_rows: row min(t, Q-1)"),
      out("scaled", "T,N", "f32|bf16|f16|e4m3", "out * weight or out * (1 + scale), in out's type or in e4m3"),
      opt_in("scaled_scale", "1", "f32", "static quantization scale of an e4m3 scaled, see rms_rows"),
      out("squares", "T,(N+7)/8", "f32", "sum of the squares of each 8 columns of out"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "gemm_rms_rows",
      .group = "gemm",
      .brief =
          "A product and, of its rows, what the product behind an RMS norm takes: rows times their factors, and sums "
          "of squares.",
      .formula =
          "out = gemm(x, w, bias, gate, residual, scales), rounded; scaled, squares = rms_rows(out, weight, scale, "
          "scaled_scale). "
          "Rounding points are those of gemm and rms_rows.",
      .source = "RMSNorm arXiv:1910.07467",
      .ports = kPorts,
      .attrs = {},
      .composite = true,
  };

  struct Args {
    kernels::GemmArgs g;
    kernels::RmsRowsArgs next;
  };
  static Cost cost(const Args& a) { return sum(gemm::cost(a.g), rms_rows::cost(a.next)); }

  static const OpRow& first(const Call&) { return ops::gemm; }
  static const OpRow& second(const Call&) { return ops::rms_rows; }
  static Status connect(const Call& c, Call& first, Call& second) {
    VV_TRY(of_part(ops::bind(first,
                             {{"x", c["x"]},
                              {"w", c["w"]},
                              {"bias", c["bias"]},
                              {"gate", c["gate"]},
                              {"residual", c["residual"]},
                              {"x_scale", c["x_scale"]},
                              {"w_scale", c["w_scale"]},
                              {"x_row_scale", c["x_row_scale"]},
                              {"w_row_scale", c["w_row_scale"]},
                              {"out", c["out"]},
                              {"rows", c["rows"]}},
                             {})));
    return of_part(ops::bind(second,
                             {{"x", c["out"]},
                              {"weight", c["weight"]},
                              {"scale", c["scale"]},
                              {"scaled", c["scaled"]},
                              {"scaled_scale", c["scaled_scale"]},
                              {"squares", c["squares"]},
                              {"rows", c["rows"]}},
                             {}));
  }
  static Status read(const Call&, const Call& first, const Call& second, Args* a) {
    VV_TRY(gemm::bind(first, &a->g));
    return rms_rows::bind(second, &a->next);
  }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/gemm/rms_gemm.cuh";
    using Key = rms_gemm::Gpu::Key;
    using Maybe = std::optional<Key>;

    /// Few tokens, in tiles that leave eight columns at a time, which make a sum: 16-bit outputs of whole eights.
    static Result<Maybe> fused(const Args& a, ChipPart arch) {
      VV_ASSIGN(std::optional<kernels::GemmWgmma> p, rms_gemm::Gpu::tile(a.g, arch));
      const DType t = a.g.out_dtype, weight = a.next.weight_dtype;
      const bool known = a.next.weight == nullptr ||
                         ((weight == t || weight == DType::f32) && vectorizable(a.next.weight, 0, weight, 2));
      const DType scaled = a.next.scaled_dtype();
      if (!p || info(t).bytes != 2 || a.g.N % kernels::kRmsColumns != 0 || !known ||
          (a.next.scale != nullptr && a.next.R != 1) || !vectorizable(a.next.scaled, a.next.scaled_stride, scaled, 2) ||
          !vectorizable(a.next.scale, 0, t, 2))
        return Maybe();
      p->epilogue |= kernels::kEpilogueNext | (scaled == DType::e4m3 ? int32_t{kernels::kEpilogueNextFp8} : 0);
      return Maybe(Key{a.g.x_dtype, t, *p});
    }
    static std::string instance(const Key& k) { return rms_gemm::Gpu::expression("gemm_rms_rows", k.x, k.out, k.p); }
    static Status complete(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
      kernels::GemmRmsRowsArgs args{};
      VV_TRY(rms_gemm::Gpu::lay_out(a.g, k.p, target, &args, launch));
      args.next = {.weight = a.next.weight,
                   .scale = a.next.scale,
                   .scaled = a.next.scaled,
                   .squares = a.next.squares,
                   .scaled_stride = a.next.scaled_stride,
                   .squares_stride = a.next.squares_stride,
                   .weight_f32 = a.next.weight != nullptr && a.next.weight_dtype == DType::f32,
                   .scaled_scale = a.next.scaled_scale};
      launch->set_args(args);
      return {};
    }

    static int row_class(const Args& a) { return GemmGpu::row_class(a.g); }
    /// The kernel of the fused way, for searches; Unsupported where gemm and rms_rows run.
    static Result<Key> pick(const Args& a, Arch arch) {
      return fused_only(fused(a, arch),
                        strf("gemm and rms_rows run one after the other: T %d, N %d, K %d; one kernel serves up to %d "
                             "tokens on sm_90a, aligned 16-bit or e4m3 rows, 16-bit out, N a multiple of 8, a weight "
                             "of out's type or f32 or one row of scale",
                             a.g.T, a.g.N, a.g.K, GemmGpu::kStreamTokens));
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      if (!GemmGpu::has_wgmma(arch)) return;
      const auto one = [&](DType x, int T, int N, int K, bool gate, bool scaled = false) {
        static const char kAligned[16] = {};
        static const float kOne = 1;
        Args a{};
        a.g.x_dtype = a.g.w_dtype = x, a.g.out_dtype = a.next.dtype = DType::bf16;
        a.g.T = T, a.g.N = N, a.g.K = K, a.g.x_stride = a.g.w_stride = K, a.g.out_stride = a.g.residual_stride = N;
        a.g.residual = kAligned, a.g.gate = gate ? kAligned : nullptr, a.g.gate_rows = 1;
        a.next.scaled_scale = scaled ? &kOne : nullptr;
        a.g.w_row_scale = scaled && x == DType::e4m3 ? &kOne : nullptr;
        if (const Result<Key> k = pick(a, arch); k.ok()) visit(*k);
      };
      // One of each kind; see rms_gemm.
      for (const DType x : {DType::bf16, DType::e4m3}) one(x, 50, 1024, 4096, true);
      one(DType::bf16, 1, 1024, 2048, false);   // K in eight
      one(DType::bf16, 16, 4096, 4096, false);  // in two
      one(DType::bf16, 32, 2048, 2048, false);
      one(DType::bf16, 64, 8192, 4096, false);  // whole
      for (const int K : {2048, 4096}) one(DType::e4m3, 50, 1024, K, true, true);  // of e4m3, for e4m3
      one(DType::bf16, 64, 8192, 4096, false, true);
    }
  };
};

}  // namespace vivace::ops::defs
