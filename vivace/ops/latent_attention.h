// latent_attention: attention whose keys and values are one small row a place, shared by all heads.
#pragma once
#include "vivace/kernels/attention/latent_attention.h"
#include "vivace/ops/attention_rules.h"

namespace vivace::cpu {
class Pool;
void latent_attention(const kernels::LatentAttentionArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct latent_attention {
  using Args = kernels::LatentAttentionArgs;
  static constexpr int kMaxDim = 1024;
  static constexpr Port kPorts[] = {
      in("q", "T,Hq,E", "f32|bf16|f16",
         "queries: C elements that the key projection was absorbed into, then the rotated ones"),
      in("cache", "B,L,E", "=q",
         "a row a place: C latent elements, then the rotated key; B slots of L places, with page_table B pages"),
      kQueryPos,
      kQuerySlot,
      kSlotLength,
      kSlotPages,
      out("out", "T,N,Hq,C", "=q", "weighted latent elements over each of N runs of places"),
      opt_out("lse", "T,N,Hq", "f32", "log-sum-exp of each run, which merge_states makes one with out"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      kCausalOrFull,
      real("scale", 0,
           "factor of q . key, which must be given: 1 / sqrt of a head's size before absorption, 1 / sqrt(192) for 128 "
           "+ 64"),
  };
  static constexpr OpSpec spec{
      .name = "latent_attention",
      .group = "attention",
      .brief = "Multi-head latent attention over a cache of latent rows, in runs of places that merge_states joins.",
      .formula =
          "run n is places [n w, (n + 1) w), w = places / N rounded up to a multiple of 32; s_j = scale * q . cache_j "
          "over the visible places of a run, "
          "visible as in attention; out = round(sum p_j cache_j[0, C) / sum p_j), p = softmax parts, in f32, but that "
          "with 16-bit types p_j is rounded "
          "to q's type where it meets the values; nothing visible: out 0, lse -inf.",
      .source = "DeepSeek-V2 arXiv:2405.04434",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* args) {
    const long E = c.dim("E"), C = c.dim("C"), N = c.dim("N");
    if (C < 1 || C > E || E > kMaxDim)
      return c.error(Code::kInvalidShape, strf("wanted 1 <= C <= E <= %d, got C %ld and E %ld", kMaxDim, C, E));
    if (N < 1 || N > 1024) return c.error(Code::kInvalidShape, strf("N must be in [1, 1024], got %ld", N));
    if (!(c.real("scale") > 0))
      return c.error(Code::kInvalidArgument,
                     strf("scale must be given and positive, such as 1 / sqrt(192), got %g", c.real("scale")));
    *args = Args{};
    VV_TRY(bind_slots(c, "cache", "cache", &args->a));
    kernels::AttentionArgs& a = args->a;
    a.Hkv = 1, a.D = static_cast<int32_t>(E), a.Dv = static_cast<int32_t>(C),
    a.scale = static_cast<float>(c.real("scale")), a.dtype = a.kv_dtype = c["q"].dtype;
    args->N = static_cast<int32_t>(N);
    return {};
  }
  static Cost cost(const Args& args) {
    const kernels::AttentionArgs& a = args.a;
    const int64_t e = info(a.dtype).bytes, slots = slots_read(a);
    return {.bytes = int64_t{a.T} * a.Hq * (a.D + int64_t{args.N} * a.Dv) * e + slots * a.slot_capacity() * a.D * e,
            .flops = 2 * int64_t{a.T} * a.Hq * a.slot_capacity() * (a.D + int64_t{a.Dv})};
  }
  static Status inspect(const Call& c, const Contents& read) { return inspect_attention(c, read); }
  static void host(const Args& a, cpu::Pool& pool) { cpu::latent_attention(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/attention/latent_attention.cuh";
    using Tile = kernels::LatentTile;
    using Plain = kernels::LatentPlain;
    struct Key {
      DType t;
      bool tensor;  // tile, else plain
      Tile tile;
      Plain plain;
      bool operator==(const Key&) const = default;
    };
    /// 64 heads of 576 and two blocks of places where 150 KB fit, else 32 and one.
    static constexpr Tile tile_config(int e, int c, bool wide, Arch arch) {
      const bool large = chip(arch).sm_smem_kib >= 164;
      return large ? Tile{e, c, 64, 2, wide} : Tile{e, c, 32, 1, wide};
    }
    static constexpr Plain plain(int e) { return {e <= 128 ? 4 : e <= 256 ? 8 : e <= 576 ? 18 : 32}; }
    static Result<Key> pick(const Args& args, Arch arch) {
      const kernels::AttentionArgs& a = args.a;
      if (int64_t{a.T} * args.N * a.Hq > INT32_MAX)
        return Status(Code::kUnsupported, "T * N * Hq is above 2^31 - 1; cut the call");
      if (a.dtype == DType::f32 || a.D % 32 != 0 || a.Dv % 128 != 0 || a.D > 576)
        return Key{a.dtype, false, {}, plain(a.D)};
      const bool wide = vectorizable(a.q, a.q_stride, a.dtype, 8) && vectorizable(a.k, a.k_stride, a.dtype, 8) &&
                        vectorizable(a.out, a.out_stride, a.dtype, 2);
      return Key{a.dtype, true, tile_config(a.D, a.Dv, wide, arch), {}};
    }
    static std::string instance(const Key& k) {
      if (!k.tensor)
        return kernel_expression("latent_plain<%s, vivace::kernels::LatentPlain{%d}>", type_name(k.t), k.plain.items);
      return kernel_expression("latent_attention<%s, vivace::kernels::LatentTile{%d, %d, %d, %d, %s}>", type_name(k.t),
                               k.tile.e, k.tile.c, k.tile.rows, k.tile.stages, k.tile.wide ? "true" : "false");
    }
    static void shape(const Args& args, const Key& k, exec::Launch* launch) {
      const int heads = k.tensor ? k.tile.rows : 1;
      launch->grid[0] = static_cast<uint32_t>(int64_t{args.a.T} * args.N * ((args.a.Hq + heads - 1) / heads));
      launch->block[0] = static_cast<uint32_t>(k.tensor ? kernels::LatentTile::kThreads : Plain::kThreads);
      launch->smem_bytes = static_cast<uint32_t>(k.tensor ? k.tile.smem() : Plain::smem(args.a.Dv));
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      for (const DType t : {DType::bf16, DType::f16})
        for (const bool wide : {true, false}) visit(Key{t, true, tile_config(576, 512, wide, arch), {}});
      for (const int e : {128, 256, 576, 1024}) visit(Key{DType::f32, false, {}, plain(e)});
      visit(Key{DType::bf16, false, {}, plain(128)});
    }
  };
};

}  // namespace vivace::ops::defs
