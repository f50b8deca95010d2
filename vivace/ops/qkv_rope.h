// qkv_rope: everything between the qkv product and attention.
#pragma once
#include "vivace/kernels/rope/qkv_rope.h"
#include "vivace/ops/attention_contents.h"
#include "vivace/ops/rope_rules.h"

namespace vivace::cpu {
class Pool;
void qkv_rope(const kernels::QkvShiftedArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct qkv_rope {
  using Args = kernels::QkvShiftedArgs;
  static constexpr Port kPorts[] = {
      in("qkv", "T,(Hq+2*Hkv)*D", "f32|bf16|f16", "per token: Hq heads of q, Hkv of k, Hkv of v; D <= 1024"),
      out("q", "T,Hq,D", "=qkv", "normalised and rotated queries"),
      opt_inout("k_cache", "B,L,Hc,D", "f32|bf16|f16|e4m3",
                "keys by slot and position, with page_table by page and place; Hc = Hkv; with layout=hnd [B, Hkv, L, "
                "D]; the caches or k_out and v_out, not both"),
      opt_inout("v_cache", "B,L,Hc,D", "=k_cache", "values, laid out as k_cache"),
      opt_out("k_out", "T,Hkv,D", "=qkv", "normalised and rotated keys"),
      opt_out("v_out", "T,Hkv,D", "=qkv", "values"),
      opt_in("pos", "T", "i32", "position of each token: angle and cache row; needed by inv_freq and by the caches"),
      opt_in("slot", "T", "i32", "cache slot of each token; absent means 0"),
      opt_in("inv_freq", "R", "f32", "radians a position for each rotated pair, 2R <= D; absent means no rotation"),
      opt_in("q_norm", "D", "f32|bf16|f16",
             "weight of a per-head RMS norm of q, before the rotation; absent means no norm"),
      opt_in("k_norm", "D", "f32|bf16|f16", "the same for k"),
      opt_in("page_table", "S,P", "i32",
             "block of the caches that holds each page of L places of a slot; absent: block = slot"),
      opt_in("shift", "A,T", "i32",
             "what angles add to pos, a row an axis: pair i turns by (pos + shift[axis[i]]) * inv_freq[i]"),
      opt_in("axis", "R", "i32",
             "which row of shift each pair reads, none where it is outside [0, A); absent: the "
             "first"),
      opt_in("angles", "T,2,R", "f32",
             "each token's cosines and sines, as rope makes them of R ones and R zeros; in place of inv_freq"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("style", "half|interleaved", "half rotates dims (i, i+R), interleaved dims (2i, 2i+1)"),
      real("attn_factor", 1, "factor of cos and sin (YaRN's attention factor)"),
      real("eps", 1e-6, "added to the mean square of q_norm and k_norm"),
      kCacheLayout,
      boolean("norm_plus_one", false, "q_norm and k_norm multiply by (1 + weight), Gemma's convention"),
  };
  static constexpr OpSpec spec{
      .name = "qkv_rope",
      .group = "rope",
      .brief = "Splits qkv, normalises and rotates q and k, and appends k and v to a cache or writes them out.",
      .formula =
          "per head h of q and k in f32: if its norm: h = h * rsqrt(mean(h^2) + eps) * (w or 1+w), unrounded; "
          "if inv_freq: rotated as in rope, unrounded, with shift by positions of each pair's own, if angles: with c "
          "and s from there; then rounded once. v is converted. "
          "k and v go to their caches as in kv_append; e4m3 saturates and has scale 1. "
          "A pos, slot or page that does not exist writes no cache row; q is written all the same. "
          "Two tokens of one call with the same place: each element that remains is of either.",
      .source = "RoPE arXiv:2104.09864, M-RoPE arXiv:2409.12191, QK norm arXiv:2010.04245, RMSNorm arXiv:1910.07467",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const auto given = [&](const char* port) { return c[port].present(); };
    const auto word = [&](const char* port) { return given(port) ? "given" : "absent"; };
    const bool caches = given("k_cache") && given("v_cache"), outs = given("k_out") && given("v_out");
    if (given("k_cache") != given("v_cache") || given("k_out") != given("v_out") || caches == outs)
      return c.error(
          Code::kInvalidArgument,
          strf("wants k_cache and v_cache, or k_out and v_out; got k_cache %s, v_cache %s, k_out %s, v_out %s",
               word("k_cache"), word("v_cache"), word("k_out"), word("v_out")));
    if ((caches || given("inv_freq")) && !given("pos"))
      return c.error(Code::kInvalidArgument, strf("pos is absent, but %s needs it", caches ? "k_cache" : "inv_freq"));
    for (const char* port : {"slot", "page_table"})
      if (given(port) && !caches)
        return c.error(Code::kInvalidArgument, strf("%s is given, but k_cache and v_cache are absent", port));
    if (!(c.real("eps") >= 0)) return c.error(Code::kInvalidArgument, strf("eps must be >= 0, got %g", c.real("eps")));
    if (c.flag("norm_plus_one") && !given("q_norm") && !given("k_norm"))
      return c.error(Code::kInvalidArgument, "norm_plus_one needs q_norm or k_norm");
    if (given("angles") && (given("inv_freq") || c.real("attn_factor") != 1))
      return c.error(Code::kInvalidArgument,
                     strf("angles are given, which leave nothing to inv_freq and attn_factor; got inv_freq %s and "
                          "attn_factor %g",
                          word("inv_freq"), c.real("attn_factor")));
    VV_TRY(check_shift(c));
    VV_TRY(check_rotation(c));
    const int64_t Hq = c.dim("Hq"), Hkv = caches ? cache_heads(c) : c.dim("Hkv"), D = c.dim("D"),
                  width = c["qkv"].shape[1];
    if (width != (Hq + 2 * Hkv) * D)
      return c.error(Code::kInvalidShape,
                     strf("qkv has %ld elements a token, wanted (Hq + 2 * Hkv) * D = %ld with Hq = %ld of q, Hkv = %ld "
                          "of %s (layout=%s) and D = %ld",
                          static_cast<long>(width), static_cast<long>((Hq + 2 * Hkv) * D), static_cast<long>(Hq),
                          static_cast<long>(Hkv), caches ? "k_cache" : "k_out", c.flag("layout") ? "hnd" : "nhd",
                          static_cast<long>(D)));
    const kernels::QkvRopeArgs plain{
        .qkv = c.ptr("qkv"),
        .q = c.ptr("q"),
        .k_out = c.ptr("k_out"),
        .v_out = c.ptr("v_out"),
        .cache = cache_of(c),
        .pos = c.ptr<int32_t>("pos"),
        .inv_freq = c.ptr<float>("inv_freq"),
        .q_norm = c.ptr("q_norm"),
        .k_norm = c.ptr("k_norm"),
        .rows = c.ptr<int32_t>("rows"),
        .qkv_stride = c.row_stride("qkv"),
        .q_stride = c.row_stride("q"),
        .k_stride = c.row_stride("k_out"),
        .v_stride = c.row_stride("v_out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .Hq = static_cast<int32_t>(Hq),
        .Hkv = static_cast<int32_t>(Hkv),
        .D = static_cast<int32_t>(D),
        .R = static_cast<int32_t>(c.dim("R")),
        .attn_factor = static_cast<float>(c.real("attn_factor")),
        .eps = static_cast<float>(c.real("eps")),
        .style = c.choice<kernels::RopeStyle>("style"),
        .norm_plus_one = c.flag("norm_plus_one"),
        .dtype = c["qkv"].dtype,
        .q_norm_dtype = c["q_norm"].dtype,
        .k_norm_dtype = c["k_norm"].dtype,
    };
    *a = Args{plain,
              c.ptr<int32_t>("shift"),
              c.ptr<int32_t>("axis"),
              c.row_stride("shift"),
              static_cast<int32_t>(c.dim("A")),
              c.ptr<float>("angles"),
              c.row_stride("angles")};
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t q = int64_t{a.T} * a.Hq * a.D, kv = int64_t{a.T} * a.Hkv * a.D, e = info(a.dtype).bytes;
    const int64_t kv_bytes = a.k_out ? e : info(a.cache.dtype).bytes;
    const int64_t angles = int64_t{a.R} * (a.angles ? 2 * a.T : 1) + int64_t{a.A} * a.T;
    return {.bytes = (q + 2 * kv) * e + q * e + 2 * kv * kv_bytes + angles * 4,
            .flops = (q + kv) * ((a.q_norm || a.k_norm) ? 4 : 0) + int64_t{a.T} * (a.Hq + a.Hkv) * a.R * 6};
  }

  static Status inspect(const Call& c, const Contents& read) { return inspect_cache(c, read); }
  static void host(const Args& a, cpu::Pool& pool) { cpu::qkv_rope(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/rope/qkv_rope.cuh";
    struct Key {
      DType in, kv;
      kernels::RopePolicy p;
      bool shifted = false;
      bool operator==(const Key&) const = default;
    };
    /// Among many tokens of 16 bits. H200, us, 8192 tokens of 30 heads of 128, with norms and without: three a
    /// block 34.3, 32.6, two 35.4, 31.9, four 34.1, 33.2; two heads a thread of one 41.0, 32.7.
    static constexpr kernels::RopePolicy kAhead[] = {
        {128, 8, 8, 4, 1, 1, 3}, {128, 8, 8, 8, 1, 1, 3}, {128, 8, 8, 16, 1, 1, 3}};
    static bool has_ahead(DType in) { return info(in).bytes == 2; }

    static Result<Key> pick(const Args& a, Arch) {
      const DType kv = a.cache.k ? a.cache.dtype : a.dtype;
      const bool wide =
          vectorizable(a.qkv, a.qkv_stride, a.dtype, 8) && vectorizable(a.q, a.q_stride, a.dtype, 8) &&
          vectorizable(a.k_out, a.k_stride, a.dtype, 8) && vectorizable(a.v_out, a.v_stride, a.dtype, 8) &&
          vectorizable(a.cache.k, a.cache.k_stride, kv, 8) && vectorizable(a.cache.v, a.cache.v_stride, kv, 8);
      const int R = a.inv_freq || a.angles ? a.R : 0;
      const bool shifted = a.shift != nullptr || a.angles != nullptr;
      if (!shifted && wide && has_ahead(a.dtype) && a.T >= kRopeManyTokens)
        for (const kernels::RopePolicy& p : kAhead)
          if (p.holds(a.D, R)) return Key{a.dtype, kv, p};
      VV_ASSIGN(const kernels::RopePolicy p, pick_rope(wide, a.T, a.D, R, 2));
      return Key{a.dtype, kv, p, shifted};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("qkv_rope<%s, %s, %s%s>", type_name(k.in), type_name(k.kv),
                               policy_expression(k.p).c_str(), k.shifted ? ", vivace::kernels::QkvShiftedArgs" : "");
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] =
          static_cast<uint32_t>((int64_t{a.T} + k.p.tokens - 1) / k.p.tokens * k.p.blocks(a.Hq + 2 * a.Hkv));
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    static Status complete(const Args& a, const Key& k, const Target&, exec::Launch* launch) {
      if (!k.shifted) launch->set_args(static_cast<const kernels::QkvRopeArgs&>(a));
      return {};
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const DType kv : {t, DType::e4m3}) {
          for (const kernels::RopePolicy& p : kRopeTactics)
            for (const bool shifted : {false, true})
              if (p.heads == 1 || shifted || !has_ahead(t)) visit(Key{t, kv, p, shifted});
          if (has_ahead(t))
            for (const kernels::RopePolicy& p : kAhead) visit(Key{t, kv, p});
        }
    }
  };
};

}  // namespace vivace::ops::defs
