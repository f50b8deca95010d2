// rope_attention: from the qkv product to attention's result. For decode on Hopper one kernel, whose blocks make
// queries, keys and values of qkv themselves; the bits are those of qkv_rope and attention, one after the other.
#pragma once
#include <algorithm>

#include "vivace/kernels/attention/rope_attention.h"
#include "vivace/ops/attention.h"
#include "vivace/ops/qkv_rope.h"
#include "vivace/ops/two_parts.h"

namespace vivace::ops::defs {

struct rope_attention : TwoParts<rope_attention> {
  static constexpr Port kPorts[] = {
      in("qkv", "T,(Hq+2*Hkv)*D", "f32|bf16|f16", "per token: Hq heads of q, Hkv of k, Hkv of v"),
      inout("q", "T,Hq,D", "=qkv", "scratch. Its contents afterwards mean nothing"),
      inout("k_cache", "B,L,Hc,D", "f32|bf16|f16|e4m3",
            "keys by slot and position, with page_table by page and place; Hc = Hkv; with layout=hnd [B, Hkv, L, D]"),
      inout("v_cache", "B,L,Hc,D", "=k_cache", "values, laid out as k_cache"),
      in("pos", "T", "i32", "position of each token: angle, cache row and what it sees"),
      opt_in("slot", "T", "i32", "cache slot of each token; absent means 0"),
      read_ahead(opt_in("inv_freq", "R", "f32",
                        "radians a position for each rotated pair, 2R <= D; absent means no rotation")),
      read_ahead(opt_in("q_norm", "D", "f32|bf16|f16",
                        "weight of a per-head RMS norm of q, before the rotation; absent means no norm")),
      read_ahead(opt_in("k_norm", "D", "f32|bf16|f16", "the same for k")),
      opt_in("page_table", "S,P", "i32",
             "block of the caches that holds each page of L places of a slot; absent: block = slot"),
      opt_in("shift", "A,T", "i32",
             "what angles add to pos, a row an axis: pair i turns by (pos + shift[axis[i]]) * inv_freq[i]"),
      opt_in("axis", "R", "i32",
             "which row of shift each pair reads, none where it is outside [0, A); absent: the "
             "first"),
      opt_in("sinks", "Hq", "f32", "a logit of each head that joins the softmax's sum and has no value"),
      out("out", "T,Hq,D", "f32|bf16|f16|e4m3", "weighted values, in qkv's type or in e4m3"),
      opt_in("out_scale", "1", "f32", "static quantization scale of an e4m3 out: value ~ out * out_scale; > 0"),
      opt_out("lse", "T,Hq", "f32", "log of the sum of exp over the visible keys' scores, sinks apart"),
      opt_inout("words", "N", "i32", "attention's: what clusters of blocks exchange over long caches of few KV heads"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("style", "half|interleaved", "half rotates dims (i, i+R), interleaved dims (2i, 2i+1)"),
      real("attn_factor", 1, "factor of cos and sin (YaRN's attention factor)"),
      real("eps", 1e-6, "added to the mean square of q_norm and k_norm"),
      boolean("norm_plus_one", false, "q_norm and k_norm multiply by (1 + weight), Gemma's convention"),
      kCacheLayout,
      boolean("stable", false,
              "of calls with angles or norms, which are read ahead: so may be pos, slot, page_table, rows, and places "
              "of the caches that the call does not append. No bit depends on it"),
      integer("window", 0, "if positive, only keys j > pos - window are visible"),
      real("softcap", 0, "if positive, scores become softcap * tanh(score / softcap)"),
      real("scale", 0, "factor of q k^T; 0 means 1 / sqrt(D)"),
  };
  static constexpr OpSpec spec{
      .name = "rope_attention",
      .group = "attention",
      .brief =
          "Norm and rotation of q and k, the append of k and v to a cache and causal attention over it, as one op.",
      .formula =
          "q, k_cache, v_cache = qkv_rope(qkv, pos, slot, ...); out, lse = attention(q, k_cache, v_cache, pos, slot, "
          "...) with mask=causal. Rounding points are those of the two, whether one kernel runs "
          "or two. Tokens that share a slot see each other's keys as their positions say. Two tokens of one call with "
          "the same slot and position: either's key and value may be the ones that a token sees, and those that "
          "remain.",
      .source = "RoPE arXiv:2104.09864, QK norm arXiv:2010.04245; arXiv:1706.03762",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  struct Args {
    kernels::QkvShiftedArgs rope;
    kernels::AttentionArgs a;
    bool stable;
  };
  /// q neither comes nor goes.
  static Cost cost(const Args& a) {
    Cost c = sum(qkv_rope::cost(a.rope), attention::cost(a.a));
    c.bytes -= 2 * int64_t{a.a.T} * a.a.Hq * a.a.D * info(a.a.dtype).bytes;
    return c;
  }

  static const OpRow& first(const Call&) { return ops::qkv_rope; }
  static const OpRow& second(const Call&) { return ops::attention; }
  static Status connect(const Call& c, Call& first, Call& second) {
    const std::string_view layout = c.flag("layout") ? "hnd" : "nhd";
    VV_TRY(of_part(ops::bind(first,
                             {{"qkv", c["qkv"]},
                              {"q", c["q"]},
                              {"k_cache", c["k_cache"]},
                              {"v_cache", c["v_cache"]},
                              {"pos", c["pos"]},
                              {"slot", c["slot"]},
                              {"inv_freq", c["inv_freq"]},
                              {"q_norm", c["q_norm"]},
                              {"k_norm", c["k_norm"]},
                              {"page_table", c["page_table"]},
                              {"shift", c["shift"]},
                              {"axis", c["axis"]},
                              {"rows", c["rows"]}},
                             {{"style", c.integer("style") == 1 ? "interleaved" : "half"},
                              {"attn_factor", c.real("attn_factor")},
                              {"eps", c.real("eps")},
                              {"norm_plus_one", c.real("norm_plus_one")},
                              {"layout", layout}})));
    return of_part(ops::bind(second,
                             {{"q", c["q"]},
                              {"k", c["k_cache"]},
                              {"v", c["v_cache"]},
                              {"pos", c["pos"]},
                              {"slot", c["slot"]},
                              {"page_table", c["page_table"]},
                              {"sinks", c["sinks"]},
                              {"out", c["out"]},
                              {"out_scale", c["out_scale"]},
                              {"lse", c["lse"]},
                              {"words", c["words"]},
                              {"rows", c["rows"]}},
                             {{"mask", "causal"},
                              {"window", c.real("window")},
                              {"softcap", c.real("softcap")},
                              {"scale", c.real("scale")},
                              {"layout", layout}}));
  }
  static Status read(const Call& c, const Call& first, const Call& second, Args* a) {
    a->stable = c.flag("stable") && c.reads_ahead();  // else the call is not ordered as its promise wants it
    VV_TRY(qkv_rope::bind(first, &a->rope));
    return attention::bind(second, &a->a);
  }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/attention/rope_attention.cuh";
    using Policy = kernels::RopeAttentionPolicy;
    struct Key {
      DType x;
      Policy p;
      bool fp8_out = false;  // out is e4m3, else x's type
      bool operator==(const Key&) const = default;
    };

    /// The fused kernel for these operands, or none: what attention_swap_ab does not serve or makes tiles of several
    /// tokens of, 8-bit caches, heads off whole words, angles with a shift.
    using Maybe = std::optional<Key>;
    /// Blocks come while the product before them holds its shared memory, so that here an SM has room for two and there
    /// for one. With this much each stands alone, if there are no more than find a place: some SMs are in no group of
    /// four or eight. Steps on an H200, us, two abreast and alone: 8B, 1 row 4,018 and 3,990, 8 rows 4,420 and 4,283;
    /// 0.6B, 8 rows 961 and 932, 4 rows in 32 clusters of four 836 and 976.
    static constexpr int kOneCtaSmem = kHopper.sm_smem_kib / 2 * 1024;
    static bool one_cta_per_sm(const kernels::AttentionArgs& t, const kernels::AttentionSwapAB& config) {
      return int64_t{t.T} * t.Hkv * config.split <= (config.split <= 2 ? AttentionGpu::kAtOnce : 96);
    }
    /// Where two launches win; the bits are the same. Of large heads between 32 and 128 tiles two abreast (8B, 8 rows:
    /// 4,370 for 4,420 us), and long caches in clusters of four and eight: those of attention find an empty chip and
    /// one part of it each, where these share one, at 77 % of the rate (8B at 8,192, 16,384, 32,768 places: 4,328,
    /// 4,638, 5,218 us; one launch, alone, 4,340, 4,752, 5,550). Heads of 64 do not reach that rate: 1B at 131,071
    /// places 2,452 us and 2,407.
    static bool wins(const kernels::AttentionArgs& t, const kernels::AttentionSwapAB& config) {
      const int64_t tiles = int64_t{t.T} * t.Hkv;
      if (t.D <= 64) return true;
      if (config.split >= 4 && t.slot_capacity() > 8192) return false;
      return tiles <= 32 || tiles >= 128 || one_cta_per_sm(t, config);
    }
    static Result<Maybe> fused(const Args& a, Arch arch) {
      const kernels::AttentionArgs& t = a.a;
      if (t.T < 1 || t.T > Policy::kMostTokens || (t.T > 1 && !t.by_token()) || t.group() > Policy::kMostHeads ||
          t.D % 16 != 0 || a.rope.shift != nullptr)
        return Maybe();
      VV_ASSIGN(const AttentionGpu::Key part, AttentionGpu::pick(t, arch));
      if (part.kind != AttentionGpu::Kind::swap_ab || part.clusters > 1 || !wins(t, part.swap_ab))
        return Maybe();
      VV_ASSIGN(const qkv_rope::Gpu::Key rope, qkv_rope::Gpu::pick(a.rope, arch));
      if (rope.p.vec != 8 || rope.p.access != 8 || rope.p.chunks != 1) return Maybe();
      return Maybe(
          Key{t.dtype,
              Policy{part.swap_ab, rope.p.lanes, a.rope.inv_freq != nullptr ? a.rope.R : 0,
                     a.rope.inv_freq != nullptr && a.rope.style == kernels::RopeStyle::interleaved, norms(a.rope),
                     a.stable},
              part.fp8_out});
    }
    static kernels::HeadNorms norms(const kernels::QkvRopeArgs& a) {
      using kernels::HeadNorms;
      if (a.q_norm == nullptr && a.k_norm == nullptr) return HeadNorms::none;
      const auto alike = [&](const void* w, DType t) {
        return w != nullptr && t == a.dtype && vectorizable(w, 0, t, 8);
      };
      return alike(a.q_norm, a.q_norm_dtype) && alike(a.k_norm, a.k_norm_dtype) ? HeadNorms::alike : HeadNorms::any;
    }
    static std::string instance(const Key& k) {
      const auto& t = k.p.swap_ab;
      return kernel_expression(
          "rope_attention<%s, vivace::kernels::RopeAttentionPolicy{vivace::kernels::AttentionSwapAB{%d, %d, %d, %d, "
          "%d}, %d, %d, %s, static_cast<vivace::kernels::HeadNorms>(%d), %s}%s>",
          type_name(k.x), t.d, t.dv, t.rows, t.stages, t.split, k.p.lanes, k.p.R, k.p.interleaved ? "true" : "false",
          static_cast<int>(k.p.norms), k.p.stable ? "true" : "false", k.fp8_out ? ", vivace::kernels::e4m3" : "");
    }
    static Status complete(const Args& a, const Key& k, const Target&, exec::Launch* launch) {
      AttentionGpu::Key part = AttentionGpu::key(k.x, k.p.swap_ab);
      part.fp8_out = k.fp8_out;
      AttentionGpu::shape(a.a, part, launch);
      launch->smem_bytes =
          static_cast<uint32_t>(one_cta_per_sm(a.a, k.p.swap_ab) ? std::max(k.p.smem(), kOneCtaSmem) : k.p.smem());
      kernels::RopeAttentionArgs args{};
      VV_TRY(AttentionGpu::map_cache(a.a, part, &args.tma));
      const kernels::QkvRopeArgs& r = a.rope;
      args.qkv = r.qkv, args.inv_freq = r.inv_freq, args.q_norm = r.q_norm, args.k_norm = r.k_norm,
      args.qkv_stride = r.qkv_stride;
      args.attn_factor = r.attn_factor, args.eps = r.eps, args.norm_plus_one = r.norm_plus_one,
      args.q_norm_dtype = r.q_norm_dtype, args.k_norm_dtype = r.k_norm_dtype;
      launch->set_args(args);
      return {};
    }

    static int row_class(const Args& a) { return AttentionGpu::row_class(a.a); }
    /// The kernel of the fused way, for searches; Unsupported where the two parts run.
    static Result<Key> pick(const Args& a, Arch arch) {
      return fused_only(
          fused(a, arch),
          strf("qkv_rope and attention run one after the other: T %d, heads %d of %d, D %d; one kernel serves decode "
               "steps of up to %d tokens on sm_90a, with a 16-bit cache and up to %d query heads a kv head",
               a.a.T, a.a.Hq, a.a.Hkv, a.a.D, Policy::kMostTokens, Policy::kMostHeads));
    }
    /// One of each kind; a model's own are compiled when they are first used, and without a compiler the two parts run.
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      if (!chip(arch).wgmma) return;
      using kernels::HeadNorms;
      const auto one = [&](DType x, int d, int R, int64_t slots, HeadNorms norms, bool interleaved = false,
                           bool fp8_out = false) {
        for (const bool stable : {false, true})
          visit(Key{x,
                    Policy{AttentionGpu::swap_ab(AttentionGpu::Role::decode, d, d, 4, 4, 4096, slots), d / 16, R,
                           interleaved, norms, stable},
                    fp8_out});
      };
      for (const int64_t slots : {8, 64, 512}) one(DType::bf16, 128, 64, slots, HeadNorms::alike);
      one(DType::bf16, 128, 64, 8, HeadNorms::none);
      one(DType::bf16, 64, 32, 8, HeadNorms::none);
      one(DType::bf16, 256, 128, 8, HeadNorms::any);
      one(DType::f16, 128, 16, 8, HeadNorms::any, true);
      one(DType::bf16, 128, 0, 8, HeadNorms::none);
      one(DType::bf16, 128, 64, 8, HeadNorms::alike, false, true);
    }
  };
};

}  // namespace vivace::ops::defs
