// rms_gemm_rope: the product that makes queries, keys and values of rows whose RMS norm is taken behind it, with their
// rotation and the append to a cache. For few tokens one kernel; the bits are those of rms_gemm and qkv_rope, one after
// the other.
#pragma once
#include "vivace/ops/qkv_rope.h"
#include "vivace/ops/rms_gemm.h"

namespace vivace::ops::defs {

struct rms_gemm_rope : TwoParts<rms_gemm_rope> {
  static constexpr Port kPorts[] = {
      in("x", "T,K", "f32|bf16|f16|e4m3", "rows as rms_rows makes them"),
      in("squares", "T,S", "f32", "parts of the sum of squares of each row before it was scaled, see rms_rows"),
      read_ahead(in("w", "M,K", "f32|bf16|f16|e4m3",
                    "weights: rows of Hq heads of q, then of Hkv of k, then of v; M = (Hq + 2 Hkv) D, D <= 1024")),
      opt_in("bias", "M", "f32|bf16|f16", "added to the product: W times the norm's shift, where it has one"),
      opt_in("x_scale", "1", "f32", "factor of all of x"),
      opt_in("w_scale", "1", "f32", "factor of all of w"),
      opt_in("w_row_scale", "M", "f32", "factor of each row of w"),
      inout("row_scale", "T", "f32", "scratch: the rows' factors. Its contents afterwards mean nothing"),
      inout("qkv", "T,M", "f32|bf16|f16",
            "scratch, of the type that the product is rounded to. Its contents afterwards mean nothing"),
      out("q", "T,Hq,D", "=qkv", "rotated queries"),
      inout("k_cache", "B,L,Hkv,D", "=qkv", "keys by slot and position, see qkv_rope"),
      inout("v_cache", "B,L,Hkv,D", "=qkv", "values, laid out as k_cache"),
      read_ahead(in("pos", "T", "i32", "cache row of each token")),
      read_ahead(opt_in("slot", "T", "i32", "cache slot of each token; absent means 0")),
      read_ahead(in("angles", "T,2,R", "f32", "each token's cosines and sines, see qkv_rope; 2R <= D")),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {real("eps", 1e-6, "added to the mean square")};
  static constexpr OpSpec spec{
      .name = "rms_gemm_rope",
      .group = "gemm",
      .brief = "Queries, keys and values of rows whose RMS norm is taken behind the product, rotated and appended to a "
               "cache, as one op.",
      .formula = "qkv = rms_gemm(x, squares, w, bias, scales, eps), rounded; q, k_cache, v_cache = qkv_rope(qkv, pos, "
                 "slot, angles). Rounding points are those of the two.",
      .source = "RoPE arXiv:2104.09864, RMSNorm arXiv:1910.07467",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  struct Args {
    rms_gemm::Args product;
    kernels::QkvShiftedArgs rope;
  };
  /// qkv neither comes nor goes.
  static Cost cost(const Args& a) {
    Cost c = sum(rms_gemm::cost(a.product), qkv_rope::cost(a.rope));
    c.bytes -= 2 * int64_t{a.product.g.T} * a.product.g.N * info(a.rope.dtype).bytes;
    return c;
  }

  static const OpRow& first(const Call&) { return ops::rms_gemm; }
  static const OpRow& second(const Call&) { return ops::qkv_rope; }
  static Status connect(const Call& c, Call& first, Call& second) {
    VV_TRY(of_part(ops::bind(first,
                             {{"x", c["x"]},
                              {"squares", c["squares"]},
                              {"row_scale", c["row_scale"]},
                              {"w", c["w"]},
                              {"bias", c["bias"]},
                              {"x_scale", c["x_scale"]},
                              {"w_scale", c["w_scale"]},
                              {"w_row_scale", c["w_row_scale"]},
                              {"out", c["qkv"]},
                              {"rows", c["rows"]}},
                             {{"eps", c.real("eps")}})));
    return of_part(ops::bind(second,
                             {{"qkv", c["qkv"]},
                              {"q", c["q"]},
                              {"k_cache", c["k_cache"]},
                              {"v_cache", c["v_cache"]},
                              {"pos", c["pos"]},
                              {"slot", c["slot"]},
                              {"angles", c["angles"]},
                              {"rows", c["rows"]}},
                             {}));
  }
  static Status read(const Call&, const Call& first, const Call& second, Args* a) {
    VV_TRY(rms_gemm::bind(first, &a->product));
    return qkv_rope::bind(second, &a->rope);
  }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/gemm/rms_gemm.cuh";
    using Key = rms_gemm::Gpu::Key;
    using Maybe = std::optional<Key>;

    /// Heads that turn whole, whose rows are whole tiles; K is cut, so that a block has one tile, and has both halves
    /// of what it finishes. e4m3 operands, whose sums take more registers, are left to two launches.
    static bool serves(const kernels::QkvRopeArgs& r, const kernels::GemmWgmma& p) {
      const DType t = r.dtype;
      return info(t).bytes == 2 && !p.promote && 2 * r.R == r.D && r.D % p.rows == 0 && p.parts() > 1 &&
             p.rows / 8 / p.parts() % 2 == 0 &&
             vectorizable(r.q, r.q_stride, t, 2) && vectorizable(r.cache.k, r.cache.k_stride, t, 2) &&
             vectorizable(r.cache.v, r.cache.v_stride, t, 2);
    }
    static Result<Maybe> fused(const Args& a, ChipPart arch) {
      VV_ASSIGN(Maybe key, rms_gemm::Gpu::fused(a.product, arch));
      if (!key || !serves(a.rope, key->p)) return Maybe();
      key->p.epilogue |= kernels::kEpilogueRope;
      return key;
    }
    static std::string instance(const Key& k) { return rms_gemm::Gpu::expression("rms_gemm_rope", k.x, k.out, k.p); }
    static Status complete(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
      kernels::RmsGemmRopeArgs args{};
      const kernels::GemmArgs& g = a.product.g;
      VV_TRY(rms_gemm::Gpu::lay_out(g, k.p, target, &args, launch));
      const int bytes = info(g.w_dtype).bytes;
      VV_TRY(device::encode_halved_map({.data = g.w,
                                        .rows = g.N,
                                        .columns = g.K,
                                        .pitch = g.w_stride * bytes,
                                        .element_bytes = bytes,
                                        .box_rows = k.p.rows},
                                       a.rope.D, &args.w_map));
      const kernels::QkvRopeArgs& r = a.rope;
      args.squares = a.product.scale.squares;
      args.heads = {.q = r.q,
                    .k = r.cache.k,
                    .v = r.cache.v,
                    .pos = r.pos,
                    .slot = r.cache.slot,
                    .angles = a.rope.angles,
                    .q_stride = r.q_stride,
                    .k_stride = r.cache.k_stride,
                    .v_stride = r.cache.v_stride,
                    .angles_stride = a.rope.angles_stride,
                    .Hq = r.Hq,
                    .Hkv = r.Hkv,
                    .D = r.D,
                    .R = r.R,
                    .B = r.cache.B,
                    .L = r.cache.L};
      launch->block[0] += kernels::kTokenNormThreads;
      launch->set_args(args);
      return {};
    }

    static int row_class(const Args& a) { return GemmGpu::row_class(a.product.g); }
    /// The kernel of the fused way, for searches; Unsupported where rms_gemm and qkv_rope run.
    static Result<Key> pick(const Args& a, Arch arch) {
      return fused_only(fused(a, arch),
                        strf("rms_gemm and qkv_rope run one after the other: T %d, D %d, R %d; one kernel serves up to "
                             "%d tokens on sm_90a, aligned 16-bit rows whose K is cut, heads of a multiple of 64 that "
                             "turn whole",
                             a.product.g.T, a.rope.D, a.rope.R, GemmGpu::kStreamTokens));
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      if (!GemmGpu::has_wgmma(arch)) return;
      // One of each kind; see rms_gemm.
      const auto one = [&](DType x, int T, int N, int K, int D) {
        static const char kAligned[16] = {};
        static const float kOne = 1;
        Args a{};
        kernels::GemmArgs& g = a.product.g;
        g.x_dtype = g.w_dtype = x, g.out_dtype = a.rope.dtype = DType::bf16, g.x_row_scale = &kOne;
        g.bias = &kOne, g.bias_dtype = DType::f32;
        g.T = T, g.N = N, g.K = K, g.x_stride = g.w_stride = K, g.out_stride = N;
        a.rope.D = D, a.rope.R = D / 2, a.rope.q = const_cast<char*>(kAligned);
        if (const Result<Key> k = pick(a, arch); k.ok()) visit(*k);
      };
      for (const int T : {1, 16, 50}) one(DType::bf16, T, 2560, 1024, 256);  // K in four
      one(DType::bf16, 32, 4096, 2048, 128);                                 // in two
    }
  };
};

}  // namespace vivace::ops::defs
