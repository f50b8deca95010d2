// qkv_gemm: the product that makes q, k and v, with qkv_rope behind it. For few tokens one kernel, which rotates sums in registers
// and stores them where attention reads; the bits are those of gemm and qkv_rope, one after the other.
#pragma once
#include <optional>

#include "vivace/device/tensor_map.h"
#include "vivace/kernels/gemm/qkv_gemm.h"
#include "vivace/ops/qkv_rope.h"
#include "vivace/ops/rms_gemm.h"

namespace vivace::ops::defs {

struct qkv_gemm {
  static constexpr Port kPorts[] = {
      in("x", "T,K", "f32|bf16|f16|e4m3", "activations"),
      in("w", "M,K", "f32|bf16|f16|e4m3", "weights: rows of Hq heads of q, then of Hkv of k, then of v; D <= 1024; read ahead of the stream's order"),
      opt_in("bias", "M", "f32|bf16|f16", "added to the product"),
      opt_in("x_scale", "1", "f32", "factor of all of x"),
      opt_in("w_scale", "1", "f32", "factor of all of w"),
      opt_in("x_row_scale", "T", "f32", "factor of each token's x"),
      opt_in("squares", "T,C", "f32", "parts of the sum of squares of each row, whose RMS norm is taken behind the product, see rms_gemm; instead of x_row_scale"),
      opt_inout("row_scale", "T", "f32", "scratch, with squares: the rows' factors. Its contents afterwards mean nothing"),
      opt_in("w_row_scale", "M", "f32", "factor of each row of w"),
      inout("qkv", "T,M", "f32|bf16|f16", "scratch; its dtype is the one that the product is rounded to. Its contents afterwards mean nothing"),
      out("q", "T,Hq,D", "=qkv", "rotated queries"),
      opt_inout("k_cache", "B,L,Hc,D", "f32|bf16|f16|e4m3", "keys, see qkv_rope; the caches or k_out and v_out, not both"),
      opt_inout("v_cache", "B,L,Hc,D", "=k_cache", "values, laid out as k_cache"),
      opt_out("k_out", "T,Hkv,D", "=qkv", "rotated keys"),
      opt_out("v_out", "T,Hkv,D", "=qkv", "values"),
      opt_in("pos", "T", "i32", "position of each token, see qkv_rope"),
      opt_in("slot", "T", "i32", "cache slot of each token; absent means 0"),
      opt_in("inv_freq", "R", "f32", "radians a position for each rotated pair, 2R <= D; absent means no rotation"),
      opt_in("q_norm", "D", "f32|bf16|f16", "weight of a per-head RMS norm of q, see qkv_rope"),
      opt_in("k_norm", "D", "f32|bf16|f16", "the same for k"),
      opt_in("page_table", "S,P", "i32", "block of the caches that holds each page of a slot, see qkv_rope"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("style", "half|interleaved", "which dims make a pair, see qkv_rope"),
      real("attn_factor", 1, "factor of cos and sin (YaRN's attention factor)"),
      real("eps", 1e-6, "added to the mean square of q_norm and k_norm"),
      real("rms_eps", 1e-6, "added to the mean square that squares tell"),
      kCacheLayout,
      boolean("norm_plus_one", false, "q_norm and k_norm multiply by (1 + weight), Gemma's convention"),
  };
  static constexpr OpSpec spec{
      .name = "qkv_gemm",
      .group = "gemm",
      .brief = "The product that makes queries, keys and values, with their norm, rotation and way to the caches, as one op.",
      .formula = "qkv = gemm(x, w, bias, scales), or with squares rms_gemm(x, squares, w, bias, scales), rounded to its dtype; q and the caches, or k_out and v_out, as qkv_rope makes them of it. Rounding points are those of rms_scale, gemm and qkv_rope.",
      .source = "RoPE arXiv:2104.09864",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  struct Args {
    kernels::RmsScaleArgs scale;  // where there are squares
    kernels::GemmArgs g;
    kernels::QkvRopeArgs rope;
  };
  static Status bind(const Call& c, Args* a) { return Parts(c).bind(a); }
  static Cost cost(const Args& a) {
    const Cost g = gemm::cost(a.g), r = qkv_rope::cost(a.rope);
    return {.bytes = g.bytes + r.bytes, .flops = g.flops + r.flops};
  }

  static Status decompose(const Call& c, Recorder& rec) {
    Parts parts(c);
    Args args{};
    VV_TRY(parts.bind(&args));  // what qkv_rope refuses is known before the product has run
    if (const device::Device* device = rec.stream().device(); device != nullptr && c.place() == Place::device && !rec.observed()) {
      VV_ASSIGN(const Gpu::Maybe key, Gpu::fused(args, device->info().arch));
      if (key) {
        Status s = rec.issue(c, [&](const Call&, const Target& target, exec::Launch* launch) { return Gpu::prepare(args, *key, target, launch); });
        if (s.code() != Code::kUnsupported) return s;
        say_parts_run(spec.name, s);  // no compiler is there and no pack has it
      }
    }
    if (parts.normed) VV_TRY(of_part(rec.issue(parts.scale, ops::rms_scale.prepare)));
    VV_TRY(of_part(rec.issue(parts.product, ops::gemm.prepare)));
    return of_part(rec.issue(parts.rope, ops::qkv_rope.prepare));
  }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/gemm/qkv_gemm.cuh";
    using Wgmma = kernels::GemmWgmma;
    struct Key {
      DType x, out;
      Wgmma p;
      bool operator==(const Key&) const = default;
    };
    using Maybe = std::optional<Key>;

    /// Heads that turn whole, in pairs of halves: their rows of 64 or 128 come as one box.
    static bool serves(const kernels::QkvRopeArgs& r, const Wgmma& p) {
      const DType t = r.dtype;
      return r.inv_freq != nullptr && r.style == kernels::RopeStyle::half && 2 * r.R == r.D && r.D % p.rows == 0 && r.q_norm == nullptr && r.k_norm == nullptr && info(t).bytes == 2 &&
             (r.cache.k == nullptr || r.cache.dtype == t) && vectorizable(r.q, r.q_stride, t, 2) && vectorizable(r.k_out, r.k_stride, t, 2) && vectorizable(r.v_out, r.v_stride, t, 2) &&
             vectorizable(r.cache.k, r.cache.k_stride, t, 2) && vectorizable(r.cache.v, r.cache.v_stride, t, 2);
    }
    /// The fused kernel for these operands, or none: more tokens, another chip, type, alignment, or heads that are normalised or turn in part.
    static Result<Maybe> fused(const Args& a, Arch arch) {
      if (a.g.T == 0 || a.g.T > GemmGpu::kStreamTokens || !GemmGpu::has_mma(a.g) || a.g.x_dtype == DType::f32) return Maybe();
      VV_ASSIGN(const GemmGpu::Key gemm, GemmGpu::pick(a.g, arch));
      Wgmma p = gemm.wgmma;
      if (gemm.kind != GemmGpu::Kind::wgmma || !p.aligned || p.share_x * p.share_w > 1 || p.finish == kernels::kFinishAny || p.rows / 8 / p.parts() % 2 != 0 || !serves(a.rope, p)) return Maybe();
      p.finish |= kernels::kFinishRope;
      if (a.scale.row_scale != nullptr) {
        if (p.tokens < a.g.T || !rms_gemm::Gpu::has_room(p)) return Maybe();
        p.finish |= kernels::kFinishTokenNorms;
      }
      return Maybe(Key{a.g.x_dtype, a.g.out_dtype, p});
    }
    static std::string instance(const Key& k) { return rms_gemm::Gpu::expression("qkv_gemm", k.x, k.out, k.p); }
    static Status prepare(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
      static KernelTable<Gpu> table;
      VV_ASSIGN(launch->kernel, table.get(*target.device, k));
      const Cost c = cost(a);
      launch->op = spec.name, launch->bytes = c.bytes, launch->flops = c.flops;
      const GemmGpu::Key gemm{GemmGpu::Kind::wgmma, a.g.x_dtype, a.g.w_dtype, a.g.out_dtype, {}, {}, {}, k.p};
      GemmGpu::shape(a.g, gemm, launch);
      VV_TRY(GemmGpu::complete(a.g, gemm, *target.device, launch));  // blocks that stay
      kernels::QkvGemmArgs args{};
      const int bytes = info(a.g.x_dtype).bytes;
      VV_TRY(device::encode_map({.data = a.g.x, .rows = a.g.T, .columns = a.g.K, .pitch = a.g.x_stride * bytes, .element_bytes = bytes, .box_rows = k.p.tokens}, &args.x_map));
      VV_TRY(device::encode_halved_map({.data = a.g.w, .rows = a.g.N, .columns = a.g.K, .pitch = a.g.w_stride * bytes, .element_bytes = bytes, .box_rows = k.p.rows}, a.rope.D, &args.w_map));
      args.g = a.g, args.rope = a.rope, args.squares = a.scale.squares;
      launch->set_args(args);
      return {};
    }

    static int row_class(const Args& a) { return GemmGpu::row_class(a.g); }
    /// The kernel of the fused way, for searches; Unsupported where gemm and qkv_rope run.
    static Result<Key> pick(const Args& a, Arch arch) {
      VV_ASSIGN(const Maybe key, fused(a, arch));
      if (key) return *key;
      return Status(Code::kUnsupported, strf("gemm and qkv_rope run one after the other: T %d, D %d, R %d; one kernel serves T <= %d of 16-bit q on sm_90a, whole heads of a multiple of 64 that rotate, style=half, without norms",
                                             a.g.T, a.rope.D, a.rope.R, GemmGpu::kStreamTokens));
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      if (!GemmGpu::has_wgmma(arch)) return;
      // One of each kind; a model's own are compiled when they are first used, and without a compiler gemm and qkv_rope run.
      const auto one = [&](DType x, int T, int N, int K, bool normed = false) {
        static const char kAligned[16] = {};
        static const float kFrequency = 1;
        static float scratch;
        Args a{};
        a.g.x_dtype = a.g.w_dtype = x, a.g.out_dtype = a.rope.dtype = DType::bf16;
        a.g.T = T, a.g.N = N, a.g.K = K, a.g.x_stride = a.g.w_stride = K, a.g.out_stride = N;
        a.rope.D = 256, a.rope.R = 128, a.rope.inv_freq = &kFrequency, a.rope.k_out = a.rope.v_out = const_cast<char*>(kAligned);
        if (normed) a.g.x_row_scale = a.scale.row_scale = &scratch;
        if (x == DType::e4m3) a.g.x_scale = a.g.w_row_scale = &kFrequency;
        if (const Result<Key> k = pick(a, arch); k.ok()) visit(*k);
      };
      for (const int T : {1, 50}) one(DType::bf16, T, 2560, 1024);
      one(DType::bf16, 16, 8192, 512);
      one(DType::e4m3, 50, 2560, 1024);
      one(DType::bf16, 50, 2560, 1024, true);
    }
  };

 private:
  /// What a part says, with the name of the op that was called before it.
  static Status of_part(Status s) { return s.ok() ? std::move(s) : std::move(s).with_context(spec.name); }
  /// The calls that define this one.
  struct Parts {
    const Call& c;
    Call scale, product, rope;
    const bool normed;

    explicit Parts(const Call& call) : c(call), scale(*ops::rms_scale.spec), product(*ops::gemm.spec), rope(*ops::qkv_rope.spec), normed(call["squares"].present()) {}
    Status bind(Args* a) {
      if (normed != c["row_scale"].present() || (normed && c["x_row_scale"].present()))
        return c.error(Code::kInvalidArgument, "squares and its scratch row_scale go together, and take the place of x_row_scale");
      if (normed) {
        VV_TRY(of_part(ops::bind(scale, {{"squares", c["squares"]}, {"row_scale", c["row_scale"]}, {"rows", c["rows"]}}, {{"columns", static_cast<double>(c.dim("K"))}, {"eps", c.real("rms_eps")}})));
        VV_TRY(of_part(scale.check()));
        VV_TRY(of_part(defs::rms_scale::bind(scale, &a->scale)));
      }
      VV_TRY(of_part(ops::bind(product, {{"x", c["x"]}, {"w", c["w"]}, {"bias", c["bias"]}, {"x_scale", c["x_scale"]}, {"w_scale", c["w_scale"]}, {"x_row_scale", normed ? c["row_scale"] : c["x_row_scale"]},
                                         {"w_row_scale", c["w_row_scale"]}, {"out", c["qkv"]}, {"rows", c["rows"]}}, {})));
      VV_TRY(of_part(ops::bind(rope, {{"qkv", c["qkv"]}, {"q", c["q"]}, {"k_cache", c["k_cache"]}, {"v_cache", c["v_cache"]}, {"k_out", c["k_out"]}, {"v_out", c["v_out"]}, {"pos", c["pos"]}, {"slot", c["slot"]},
                                      {"inv_freq", c["inv_freq"]}, {"q_norm", c["q_norm"]}, {"k_norm", c["k_norm"]}, {"page_table", c["page_table"]}, {"rows", c["rows"]}},
                               {{"style", c.integer("style") == 1 ? "interleaved" : "half"}, {"attn_factor", c.real("attn_factor")}, {"eps", c.real("eps")}, {"layout", c.flag("layout") ? "hnd" : "nhd"},
                                {"norm_plus_one", c.real("norm_plus_one")}})));
      VV_TRY(of_part(product.check()));
      VV_TRY(of_part(rope.check()));
      VV_TRY(of_part(gemm::bind(product, &a->g)));
      return of_part(qkv_rope::bind(rope, &a->rope));
    }
  };
};

}  // namespace vivace::ops::defs
