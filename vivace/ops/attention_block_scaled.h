// attention_block_scaled: attention over keys and values in FP4 with a scale for each 16 elements.
#pragma once
#include "vivace/kernels/attention/attention_block_scaled.h"
#include "vivace/ops/attention_rules.h"

namespace vivace::cpu {
class Pool;
void attention_block_scaled(const kernels::AttentionBlockScaledArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct attention_block_scaled {
  using Args = kernels::AttentionBlockScaledArgs;
  static constexpr int kMaxDim = 256;
  static constexpr Port kPorts[] = {
      in("q", "T,Hq,D", "bf16|f16", "queries"),
      in("k", "B,L,Hkv,D/2", "u8",
         "e2m1 codes of keys, two a byte, the even element in the low nibble; B slots of L places, with page_table B "
         "pages"),
      in("k_scales", "B,L,Hkv,D/16", "e4m3", "scale of each 16 elements"),
      in("v", "B,L,Hkv,D/2", "u8", "codes of values"),
      in("v_scales", "B,L,Hkv,D/16", "e4m3", "scale of each 16 elements"),
      opt_in("k_scale", "1", "f32", "scale of all keys; absent means 1"),
      opt_in("v_scale", "1", "f32", "scale of all values; absent means 1"),
      kQueryPos,
      kQuerySlot,
      kSlotLength,
      kSlotPages,
      out("out", "T,N,Hq,D", "=q", "weighted values over each of N runs of places"),
      opt_out("lse", "T,N,Hq", "f32", "log-sum-exp of each run, which merge_states makes one with out"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      kCausalOrFull,
      kWindow,
      kHeadScale,
  };
  static constexpr OpSpec spec{
      .name = "attention_block_scaled",
      .group = "attention",
      .brief = "Attention over a cache in FP4, dequantized in registers, in runs of places that merge_states joins.",
      .formula =
          "key j = k_scale * e2m1(code) * its block's scale, values alike; run n is places [n w, (n + 1) w), w = "
          "places / N rounded up to a multiple of 64; "
          "s_j = scale * q . k_j over the visible places of a run, visible as in attention; out = round(sum p_j v_j / "
          "sum p_j), p = exp(s - max), in f32, but that p_j may be rounded to "
          "q's type where it meets the values; nothing visible: out 0, lse -inf.",
      .source = "arXiv:1706.03762; OCP Microscaling Formats 1.0 (e2m1)",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* args) {
    const long D = c.dim("D"), N = c.dim("N");
    if (D < 16 || D % 16 != 0 || D > kMaxDim)
      return c.error(Code::kInvalidShape, strf("D must be a multiple of 16 up to %d, got %ld", kMaxDim, D));
    if (N < 1 || N > 1024) return c.error(Code::kInvalidShape, strf("N must be in [1, 1024], got %ld", N));
    *args = Args{};
    VV_TRY(bind_heads(c, "k", "v", &args->a));
    args->a.dtype = c["q"].dtype, args->a.kv_dtype = DType::u8;
    args->k_scales = c.ptr("k_scales"), args->v_scales = c.ptr("v_scales"), args->k_scale = c.ptr<float>("k_scale"),
    args->v_scale = c.ptr<float>("v_scale");
    args->k_scales_stride = c.row_stride("k_scales"), args->v_scales_stride = c.row_stride("v_scales"),
    args->N = static_cast<int32_t>(N);
    return {};
  }
  static Cost cost(const Args& args) {
    const kernels::AttentionArgs& a = args.a;
    const int64_t slots = slots_read(a), places = a.slot_capacity();
    return {.bytes = int64_t{a.T} * a.Hq * (1 + args.N) * a.D * 2 + slots * places * a.Hkv * (int64_t{a.D} + a.D / 8),
            .flops = 4 * int64_t{a.T} * a.Hq * places * a.D};
  }
  static Status inspect(const Call& c, const Contents& read) { return inspect_attention(c, read); }
  static void host(const Args& a, cpu::Pool& pool) { cpu::attention_block_scaled(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/attention/attention_block_scaled.cuh";
    using Tile = kernels::AttentionBlockScaledTile;
    struct Key {
      DType t;
      Tile tile;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args& args, Arch) {
      const kernels::AttentionArgs& a = args.a;
      if (a.D != 64 && a.D != 128)
        return Status(Code::kUnsupported,
                      strf("on a GPU D must be 64 or 128, got %d; dequantize the cache for other heads", a.D));
      if (int64_t{a.T} * args.N * a.Hq > INT32_MAX)
        return Status(Code::kUnsupported, "T * N * Hq is above 2^31 - 1; cut the call");
      return Key{a.dtype,
                 {a.D, vectorizable(a.k, a.k_stride, DType::u8, 16) && vectorizable(a.v, a.v_stride, DType::u8, 16)}};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("attention_block_scaled<%s, vivace::kernels::AttentionBlockScaledTile{%d, %s}>",
                               type_name(k.t), k.tile.d, k.tile.wide ? "true" : "false");
    }
    static void shape(const Args& args, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(int64_t{args.a.T} * args.N * args.a.Hkv *
                                              ((args.a.group() + Tile::kRows - 1) / Tile::kRows));
      launch->block[0] = Tile::kThreads;
      launch->smem_bytes = static_cast<uint32_t>(k.tile.smem());
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::bf16, DType::f16})
        for (const int d : {64, 128})
          for (const bool wide : {true, false}) visit(Key{t, {d, wide}});
    }
  };
};

}  // namespace vivace::ops::defs
