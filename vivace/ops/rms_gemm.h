// rms_gemm: a product of rows whose RMS norm is taken behind it: the sums are scaled by what the rows' sums of squares
// say. For few tokens one kernel; the bits are those of rms_scale and gemm or gated_gemm, one after the other.
#pragma once
#include "vivace/device/tensor_map.h"
#include "vivace/kernels/gemm/rms_gemm.h"
#include "vivace/ops/rms_scale.h"
#include "vivace/ops/two_parts.h"

namespace vivace::ops::defs {

struct rms_gemm : TwoParts<rms_gemm> {
  static constexpr Port kPorts[] = {
      in("x", "T,K", "f32|bf16|f16|e4m3", "rows as rms_rows makes them"),
      in("squares", "T,S", "f32", "parts of the sum of squares of each row before it was scaled, see rms_rows"),
      read_ahead(in("w", "M,K", "f32|bf16|f16|e4m3", "weights as gemm or, where gated, gated_gemm has them")),
      opt_in("bias", "M", "f32|bf16|f16", "added before the activation: W times the norm's shift, where it has one"),
      opt_in("x_scale", "1", "f32", "factor of all of x"),
      opt_in("w_scale", "1", "f32", "factor of all of w"),
      opt_in("w_row_scale", "M", "f32", "factor of each row of w"),
      inout("row_scale", "T", "f32", "scratch: the rows' factors. Its contents afterwards mean nothing"),
      out("out", "T,N", "f32|bf16|f16|e4m3", "result: N = M columns, half of them where gated"),
      opt_in("out_scale", "1", "f32", "static quantization scale of an e4m3 out; > 0"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      real("eps", 1e-6, "added to the mean square"),
      choice("epilogue", "none|silu|gelu_tanh|gelu_erf|relu|relu2",
             "activation of the biased product; of the gate where gated"),
      boolean("gated", false, "neighbouring rows of w are gate and up, see gated_gemm"),
  };
  static constexpr OpSpec spec{
      .name = "rms_gemm",
      .group = "gemm",
      .brief = "Product of rows whose RMS norm is taken behind it, plain or gated, as one op.",
      .formula =
          "s = rms_scale(squares) over K columns; out = gemm(x, w) or gated_gemm(x, w) with x_row_scale = s. So "
          "norm(h) with weight 1, scale and shift, times W, is "
          "rms_gemm(rms_rows(h, scale), bias = W shift): the rounding of normalised rows becomes one of h * (1 + "
          "scale). Rounding points are those of rms_scale and of the product.",
      .source = "RMSNorm arXiv:1910.07467",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  struct Args {
    kernels::RmsScaleArgs scale;
    kernels::GemmArgs g;
  };
  static Cost cost(const Args& a) { return sum(rms_scale::cost(a.scale), gemm::cost(a.g)); }

  static const OpRow& first(const Call&) { return ops::rms_scale; }
  static const OpRow& second(const Call& c) { return EitherProduct::row(c); }
  static Status connect(const Call& c, Call& first, Call& second) {
    VV_ASSIGN(const std::string_view activation, EitherProduct::activation(c));
    VV_TRY(of_part(ops::bind(first, {{"squares", c["squares"]}, {"row_scale", c["row_scale"]}, {"rows", c["rows"]}},
                             {{"columns", static_cast<double>(c.dim("K"))}, {"eps", c.real("eps")}})));
    return of_part(ops::bind(second,
                             {{"x", c["x"]},
                              {"x_scale", c["x_scale"]},
                              {"x_row_scale", c["row_scale"]},
                              {"w", c["w"]},
                              {"bias", c["bias"]},
                              {"w_scale", c["w_scale"]},
                              {"w_row_scale", c["w_row_scale"]},
                              {"out", c["out"]},
                              {"out_scale", c["out_scale"]},
                              {"rows", c["rows"]}},
                             {{c.flag("gated") ? "act" : "epilogue", activation}}));
  }
  static Status read(const Call& c, const Call& first, const Call& second, Args* a) {
    VV_TRY(rms_scale::bind(first, &a->scale));
    return EitherProduct::read(c, second, &a->g);
  }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/gemm/rms_gemm.cuh";
    using Wgmma = kernels::GemmWgmma;
    struct Key {
      DType x, out;
      Wgmma p;
      bool operator==(const Key&) const = default;
    };
    using Maybe = std::optional<Key>;

    /// The tile of a product of few tokens whose epilogue is known; else none.
    static Result<std::optional<Wgmma>> tile(const kernels::GemmArgs& g, ChipPart arch) {
      if (g.T == 0 || g.T > GemmGpu::kStreamTokens || !GemmGpu::has_mma(g) || g.x_dtype == DType::f32)
        return std::optional<Wgmma>();
      VV_ASSIGN(const GemmGpu::Key gemm, GemmGpu::pick(g, arch));
      const Wgmma& p = gemm.wgmma;
      if (gemm.kind != GemmGpu::Kind::wgmma || !p.aligned || p.multicast_x * p.multicast_w > 1 ||
          p.epilogue == kernels::kEpilogueAny || p.tokens < g.T)
        return std::optional<Wgmma>();
      return std::optional<Wgmma>(p);
    }
    /// `p` with room for the rows' factors, which take 1 KiB beside the ring: as many blocks stand on an SM as without.
    static constexpr Wgmma with_room(Wgmma p) {
      const int limit = p.smem_bytes() <= GemmTiles::kHalfSmem ? GemmTiles::kHalfSmem : GemmTiles::kSmem;
      while (p.smem_bytes() + 1024 > limit) --p.stages;
      return p;
    }

    static Result<Maybe> fused(const Args& a, ChipPart arch) {
      VV_ASSIGN(std::optional<Wgmma> p, tile(a.g, arch));
      if (!p) return Maybe();
      *p = with_room(*p);
      p->epilogue |= kernels::kEpilogueTokenNorms;
      return Maybe(Key{a.g.x_dtype, a.g.out_dtype, *p});
    }
    static std::string expression(const char* kernel, DType x, DType out, const Wgmma& p) {
      const auto flag = [](bool b) { return b ? "true" : "false"; };
      return kernel_expression("%s<%s, %s, vivace::kernels::GemmWgmma{%d, %d, %d, %d, %d, %d, %s, %s, %d, %d}>", kernel,
                               type_name(x), type_name(out), p.rows, p.tokens, p.stages, p.split, p.multicast_x,
                               p.multicast_w, flag(p.promote), flag(p.aligned), p.splits_per_block, p.epilogue);
    }
    static std::string instance(const Key& k) { return expression("rms_gemm", k.x, k.out, k.p); }
    /// Grid, block and maps of such a tile. Args: with x_map, w_map and g.
    template <class A>
    static Status lay_out(const kernels::GemmArgs& g, const Wgmma& p, const Target& target, A* args,
                          exec::Launch* launch) {
      const GemmGpu::Key gemm{GemmGpu::Kind::wgmma, g.x_dtype, g.w_dtype, g.out_dtype, {}, {}, {}, p};
      GemmGpu::shape(g, gemm, launch);
      VV_TRY(GemmGpu::complete(g, gemm, target, launch));  // persistent blocks
      const int bytes = info(g.x_dtype).bytes;
      VV_TRY(device::encode_map(device::MapShape{.data = g.x,
                                                 .rows = g.T,
                                                 .columns = g.K,
                                                 .pitch = g.x_stride * bytes,
                                                 .element_bytes = bytes,
                                                 .box_rows = p.tokens},
                                &args->x_map));
      VV_TRY(GemmGpu::map_w(g, p, &args->w_map));
      args->g = g;
      return {};
    }
    static Status complete(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
      kernels::RmsGemmArgs args{};
      VV_TRY(lay_out(a.g, k.p, target, &args, launch));
      args.squares = a.scale.squares;
      launch->block[0] += kernels::kTokenNormThreads;
      launch->set_args(args);
      return {};
    }

    static int row_class(const Args& a) { return GemmGpu::row_class(a.g); }
    /// The kernel of the fused way, for searches; Unsupported where the parts run.
    static Result<Key> pick(const Args& a, Arch arch) {
      return fused_only(fused(a, arch), strf("rms_scale and the product run one after the other: T %d; one kernel "
                                             "serves T <= %d of aligned 16-bit or e4m3 rows on sm_90a",
                                             a.g.T, GemmGpu::kStreamTokens));
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      if (!GemmGpu::has_wgmma(arch)) return;
      // One of each kind; a model's own are compiled when they are first used, and without a compiler the parts run.
      const auto one = [&](DType x, int T, int N, int K, bool gated, bool bias = false, DType out = DType::bf16) {
        static const float kOne = 1;
        Args a{};
        a.g.x_dtype = a.g.w_dtype = x, a.g.out_dtype = out, a.g.x_row_scale = &kOne;
        a.g.bias = bias ? &kOne : nullptr, a.g.bias_dtype = DType::f32, a.g.w_row_scale = bias ? &kOne : nullptr;
        a.g.out_scale = out == DType::e4m3 ? &kOne : nullptr;
        a.g.T = T, a.g.N = N, a.g.K = K, a.g.x_stride = a.g.w_stride = K, a.g.out_stride = gated ? N / 2 : N;
        a.g.gated = gated, a.g.epilogue = gated ? kernels::Activation::gelu_tanh : kernels::Activation::none;
        if (const Result<Key> k = pick(a, arch); k.ok()) visit(*k);
      };
      one(DType::bf16, 50, 8192, 1024, true);
      one(DType::bf16, 50, 2560, 1024, false);
      one(DType::bf16, 1, 6144, 4096, false);
      one(DType::bf16, 16, 2560, 1024, false);
      one(DType::bf16, 32, 24576, 4096, true);
      one(DType::e4m3, 50, 8192, 1024, true);
      // A flow's expert in e4m3.
      one(DType::e4m3, 50, 8192, 1024, true, true, DType::e4m3);
      one(DType::e4m3, 50, 2560, 1024, false, true);
    }
  };
};

}  // namespace vivace::ops::defs
