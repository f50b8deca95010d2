// norm_gemm: a product of normalised rows. For few tokens one kernel, whose blocks normalise the rows themselves; the
// bits are those of norm and gemm, one after the other.
#pragma once
#include "vivace/kernels/gemm/norm_gemm.h"
#include "vivace/ops/norm.h"
#include "vivace/ops/two_parts.h"

namespace vivace::ops::defs {

struct norm_gemm : TwoParts<norm_gemm> {
  static constexpr Port kPorts[] = {
      in("x", "T,K", "f32|bf16|f16", "rows as they are before their norm"),
      read_ahead(opt_in("weight", "K", "f32|bf16|f16", "factor of the normalised row, see norm")),
      read_ahead(opt_in("norm_bias", "K", "=weight", "added after weight, norm's bias")),
      opt_in("scale", "R,K", "=x", "adaptive scale, see norm"),
      opt_in("shift", "R,K", "=x", "adaptive shift, see norm"),
      opt_in("ada_row", "T", "i32", "row of scale and shift for each token, see norm"),
      read_ahead(in("w", "M,K", "f32|bf16|f16|e4m3|i8|e2m1|q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k",
                    "weights as gemm or, where gated, gated_gemm has them")),
      opt_in("bias", "M", "f32|bf16|f16", "added before the activation"),
      opt_in("residual", "T,N", "=out", "added last; not where gated"),
      opt_in("w_scale", "1", "f32", "factor of all of w"),
      opt_in("w_row_scale", "M", "f32", "factor of each row of w"),
      read_ahead(opt_in("w_block_scale", "?,?", "f32|bf16|f16|e4m3", "factor of each piece of w, see gemm")),
      inout("normed", "T,K", "f32|bf16|f16|e4m3",
            "scratch; its dtype is the one that normalised rows are rounded to. Its contents afterwards mean nothing"),
      opt_in("normed_scale", "1", "f32", "static quantization scale of e4m3 normalised rows; > 0"),
      out("out", "T,N", "f32|bf16|f16|e4m3", "result: N = M columns, half of them where gated", "residual"),
      opt_in("out_scale", "1", "f32", "static quantization scale of an e4m3 out; > 0"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("kind", "rms|layer", "of the norm, see norm"),
      real("eps", 1e-6, "added to the mean square or the variance"),
      boolean("weight_plus_one", false, "multiply by (1 + weight), Gemma's convention"),
      choice("epilogue", "none|silu|gelu_tanh|gelu_erf|relu|relu2",
             "activation of the biased product; of the gate where gated"),
      boolean("gated", false, "neighbouring rows of w are gate and up, see gated_gemm"),
      choice("act", "f32|q8", "how normalised rows enter a product with a block-quantized w, see gemm"),
  };
  static constexpr OpSpec spec{
      .name = "norm_gemm",
      .group = "gemm",
      .brief = "RMS or layer norm of rows and the product that takes them, plain or gated, as one op.",
      .formula =
          "normed = norm(x, weight, norm_bias, scale, shift), rounded to its dtype (e4m3: sat_e4m3(y / normed_scale)); "
          "out = "
          "gemm(normed * normed_scale, w) or gated_gemm(...), with bias, epilogue, "
          "residual and scales as there. Rounding points are those of norm and of the product, whether one kernel runs "
          "or two.",
      .source = "RMSNorm arXiv:1910.07467, LayerNorm arXiv:1607.06450",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  struct Args {
    kernels::NormArgs norm;
    kernels::GemmArgs g;
  };
  static Cost cost(const Args& a) { return sum(norm::cost(a.norm), gemm::cost(a.g)); }

  static const OpRow& first(const Call&) { return ops::norm; }
  static const OpRow& second(const Call& c) { return EitherProduct::row(c); }
  static Status connect(const Call& c, Call& first, Call& second) {
    VV_ASSIGN(const std::string_view activation, EitherProduct::activation(c));
    const bool gated = c.flag("gated");
    if (gated && c["residual"].present())
      return c.error(Code::kInvalidArgument, "gated=true takes no residual; see gated_gemm");
    VV_TRY(of_part(ops::bind(first,
                             {{"x", c["x"]},
                              {"weight", c["weight"]},
                              {"bias", c["norm_bias"]},
                              {"scale", c["scale"]},
                              {"shift", c["shift"]},
                              {"ada_row", c["ada_row"]},
                              {"out", c["normed"]},
                              {"out_scale", c["normed_scale"]},
                              {"rows", c["rows"]}},
                             {{"kind", c.integer("kind") == 1 ? "layer" : "rms"},
                              {"eps", c.real("eps")},
                              {"weight_plus_one", c.real("weight_plus_one")}})));
    VV_TRY(of_part(ops::bind(second,
                             {{"x", c["normed"]},
                              {"x_scale", c["normed_scale"]},
                              {"w", c["w"]},
                              {"bias", c["bias"]},
                              {"w_scale", c["w_scale"]},
                              {"w_row_scale", c["w_row_scale"]},
                              {"w_block_scale", c["w_block_scale"]},
                              {"out", c["out"]},
                              {"out_scale", c["out_scale"]},
                              {"rows", c["rows"]}},
                             {})));
    const std::string_view quant = c.integer("act") == 1 ? "q8" : "f32";
    if (gated) return of_part(ops::bind(second, {}, {{"act", activation}, {"quant", quant}}));
    return of_part(ops::bind(second, {{"residual", c["residual"]}}, {{"epilogue", activation}, {"act", quant}}));
  }
  static Status read(const Call& c, const Call& first, const Call& second, Args* a) {
    VV_TRY(norm::bind(first, &a->norm));
    return EitherProduct::read(c, second, &a->g);
  }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/gemm/norm_gemm.cuh";
    using Wgmma = kernels::GemmWgmma;
    using Panel = kernels::NormPanel;
    struct Key {
      DType x, weight, normed, out;
      Wgmma p;
      Panel panel;
      bool operator==(const Key&) const = default;
    };

    /// Where every block's own norm costs less than a launch (lab/notes/010): two tokens, but not of 16 bits in rows so
    /// long that products with their norms apart stand better beside each other (2560: 53.7 us a layer for 56.9;
    /// 4096: 97.6 for 96.3).
    static constexpr int kMostTokens = 2, kLongest16 = 2560;
    static bool wins(const Args& a) {
      return a.norm.T <= kMostTokens && (info(a.g.x_dtype).bytes == 1 || a.g.K <= kLongest16);
    }

    /// The fused kernel for these operands, or none: another chip, type, alignment, or rows that fill the shared
    /// memory.
    using Maybe = std::optional<Key>;
    static Result<Maybe> fused(const Args& a, Arch arch) {
      const kernels::NormArgs& n = a.norm;
      if (a.g.T == 0 || !wins(a)) return Maybe();
      if (n.bias != nullptr && n.kind != kernels::NormKind::layer) return Maybe();  // no kernel of RMS norms adds one
      VV_ASSIGN(const GemmGpu::Key gemm, GemmGpu::pick(a.g, arch));
      if (gemm.kind != GemmGpu::Kind::wgmma || !gemm.wgmma.aligned || a.g.tf32) return Maybe();
      VV_ASSIGN(const kernels::NormPolicy rows, norm::Gpu::policy(n, true));
      if (!rows.aligned || rows.items == 0) return Maybe();
      const std::optional<Wgmma> p = tile(a.g, gemm.wgmma.promote);
      if (!p) return Maybe();
      return Maybe(Key{n.x_dtype, n.weight != nullptr ? n.w_dtype : n.x_dtype, n.out_dtype, a.g.out_dtype, *p,
                       panel(rows, a.g.T, n.scale != nullptr || n.shift != nullptr,
                             n.kind == kernels::NormKind::layer)});
    }
    /// gemm's tile for T tokens with x in a panel: the cut of K is that of gemm, and so are the bits.
    static std::optional<Wgmma> tile(const kernels::GemmArgs& g, bool promote) {
      const int64_t k_bytes = int64_t{g.K} * info(g.w_dtype).bytes, all = (k_bytes + 127) / 128;
      Wgmma p = GemmTiles::pick_few(g.T, g.N, k_bytes, promote);
      int64_t most = 0;
      for (int64_t i = 0; i < p.split; i += p.splits_per_block)
        most = std::max(most, all * (i + p.splits_per_block) / p.split - all * i / p.split);
      p.panel = 4;
      while (p.panel < most)
        p.panel += p.panel % 3 == 0 ? p.panel / 3 : p.panel / 2;  // 4, 6, 8, 12, 16, ...: few kernels
      p.panel_rows = g.T;
      p.epilogue = gemm_epilogue(g, p);
      for (const int smem : {GemmTiles::kHalfSmem, GemmTiles::kSmem - 1024}) {
        const Wgmma whole = GemmTiles::with_stages(p, smem);
        if (whole.stages >= 4 && GemmTiles::serves(whole, g.N)) return whole;
      }
      return std::nullopt;
    }
    static constexpr Panel panel(const kernels::NormPolicy& p, int64_t T, bool adaptive, bool layer) {
      const int team = p.threads / 32;
      return {p.threads, p.items, team, T == 1 ? team : std::max(team, 8), adaptive, layer};
    }
    static std::string instance(const Key& k) {
      const auto flag = [](bool b) { return b ? "true" : "false"; };
      return kernel_expression(
          "norm_gemm<%s, %s, %s, %s, vivace::kernels::GemmWgmma{%d, %d, %d, %d, %d, %d, %s, %s, %d, %d, %d, %d}, "
          "vivace::kernels::NormPanel{%d, %d, %d, %d, %s, %s}>",
          type_name(k.normed), type_name(k.x), type_name(k.weight), type_name(k.out), k.p.rows, k.p.tokens, k.p.stages,
          k.p.split, k.p.multicast_x, k.p.multicast_w, flag(k.p.promote), flag(k.p.aligned), k.p.splits_per_block,
          k.p.epilogue, k.p.panel, k.p.panel_rows, k.panel.threads, k.panel.items, k.panel.team, k.panel.warps,
          flag(k.panel.adaptive), flag(k.panel.layer));
    }
    static Status complete(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
      GemmGpu::Key gemm{GemmGpu::Kind::wgmma, a.g.x_dtype, a.g.w_dtype, a.g.out_dtype, {}, {}, {}, k.p};
      GemmGpu::shape(a.g, gemm, launch);
      VV_TRY(GemmGpu::complete(a.g, gemm, target, launch));  // persistent blocks
      launch->block[0] += 32 * static_cast<uint32_t>(k.panel.warps);
      kernels::NormGemmArgs args{};
      VV_TRY(GemmGpu::map_w(a.g, k.p, &args.w_map));
      args.g = a.g, args.norm = a.norm;
      launch->set_args(args);
      return {};
    }

    static int row_class(const Args& a) { return GemmGpu::row_class(a.g); }
    /// The kernel of the fused way, for searches; Unsupported where norm and the product run.
    static Result<Key> pick(const Args& a, Arch arch) {
      return fused_only(fused(a, arch), strf("norm and the product run one after the other: T %d, K %d; one kernel "
                                             "serves T <= %d, of 16 bits K <= %d, on sm_90a",
                                             a.g.T, a.g.K, kMostTokens, kLongest16));
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      if (!GemmGpu::has_wgmma(arch)) return;
      const auto one = [&](DType normed, int64_t T, int64_t N, int64_t K, bool gated, bool adaptive = false,
                           bool layer = false) {
        static const char kAligned[16] = {};
        Args a{};
        a.norm.x_dtype = a.norm.w_dtype = DType::bf16, a.norm.out_dtype = normed;
        a.norm.T = a.g.T = static_cast<int32_t>(T), a.norm.H = a.g.K = static_cast<int32_t>(K),
        a.g.N = static_cast<int32_t>(N);
        a.norm.x_stride = a.norm.out_stride = a.g.x_stride = a.g.w_stride = K, a.g.out_stride = gated ? N / 2 : N;
        (adaptive ? a.norm.scale : a.norm.weight) = kAligned;
        if (layer) a.norm.kind = kernels::NormKind::layer, a.norm.bias = kAligned;
        a.g.gated = gated, a.g.epilogue = gated ? kernels::Activation::silu : kernels::Activation::none;
        a.g.x_dtype = a.g.w_dtype = normed, a.g.out_dtype = DType::bf16;
        if (const Result<Key> k = pick(a, arch); k.ok()) visit(*k);
      };
      // One of each kind; a model's own are compiled when they are first used, and without a compiler norm and the
      // product run.
      for (const int64_t T : {1, 2}) one(DType::bf16, T, 520, 1024, false);
      one(DType::e4m3, 1, 1040, 4096, false);
      one(DType::e4m3, 2, 520, 4096, true);
      one(DType::bf16, 2, 520, 2048, false);
      one(DType::bf16, 2, 128, 576, true);
      one(DType::e4m3, 1, 96, 1040, false);
      one(DType::e4m3, 1, 48, 384, true);
      one(DType::bf16, 2, 520, 1024, false, true);
      for (const int64_t T : {1, 2}) one(DType::bf16, T, 520, 1280, false, false, true);
      for (const int64_t T : {1, 2}) one(DType::e4m3, T, 520, 1280, false, false, true);
    }
  };
};

}  // namespace vivace::ops::defs
