// scaled_attention: attention whose products are of 8-bit floats, with scales a head.
#pragma once
#include <algorithm>

#include "vivace/device/tensor_map.h"
#include "vivace/kernels/attention/scaled_attention.h"
#include "vivace/ops/attention_rules.h"

namespace vivace::cpu {
class Pool;
void scaled_attention(const kernels::ScaledAttentionArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct scaled_attention {
  using Args = kernels::ScaledAttentionArgs;
  static constexpr int kMaxDim = 256;
  static constexpr Port kPorts[] = {
      in("q", "T,Hq,D", "e4m3", "queries"),
      in("k", "B,L,Hkv,D", "e4m3", "keys: B slots of L places; with page_table B pages of L places"),
      in("v", "B,L,Hkv,D", "e4m3", "values"),
      opt_in("q_scale", "Hq", "f32", "scale of each head's queries; absent means 1"),
      opt_in("k_scale", "Hkv", "f32", "scale of each kv head's keys; absent means 1"),
      opt_in("v_scale", "Hkv", "f32", "scale of each kv head's values; absent means 1"),
      kQueryPos, kQuerySlot, kSlotLength, kSlotPages,
      out("out", "T,Hq,D", "bf16|f16", "weighted values"),
      opt_out("lse", "T,Hq", "f32", "log of the sum of exp over the visible keys' scores"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      kCausalOrFull,
      kWindow,
      kHeadScale,
  };
  static constexpr OpSpec spec{
      .name = "scaled_attention",
      .group = "attention",
      .brief = "Attention in 8-bit products: queries, keys and values in e4m3 with scales a head.",
      .formula =
          "s_j = scale * q_scale * k_scale * q . k_j over the visible keys, visible as in attention, which also says "
          "where the cache may hold anything; p = exp(s - max); out = round(v_scale * sum p_j v_j / sum p_j), in f32, "
          "but that "
          "2^8 p_j may be rounded to e4m3 where it meets v_j, not where it is summed; nothing visible: out 0, lse "
          "-inf.",
      .source = "arXiv:1706.03762; 8-bit products arXiv:2407.08608",
      .ports = kPorts,
      .attrs = kAttrs,
      .min_arch = Arch::sm89,
  };

  static Status bind(const Call& c, Args* args) {
    const long D = c.dim("D");
    if (D < 1 || D > kMaxDim) return c.error(Code::kUnsupported, strf("D must be in [1, %d], got %ld", kMaxDim, D));
    VV_TRY(bind_heads(c, "k", "v", &args->a));
    args->a.dtype = c["out"].dtype, args->a.kv_dtype = DType::e4m3;
    args->q_scale = c.ptr<float>("q_scale"), args->k_scale = c.ptr<float>("k_scale"),
    args->v_scale = c.ptr<float>("v_scale");
    return {};
  }
  static Cost cost(const Args& args) {
    const kernels::AttentionArgs& a = args.a;
    const int64_t slots = slots_read(a), places = a.slot_capacity();
    return {.bytes = int64_t{a.T} * a.Hq * 3 * a.D + slots * places * a.Hkv * 2 * a.D,
            .flops = 4 * int64_t{a.T} * a.Hq * places * a.D};
  }
  static Status inspect(const Call& c, const Contents& read) { return inspect_attention(c, read); }
  static void host(const Args& a, cpu::Pool& pool) { cpu::scaled_attention(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/attention/scaled.cuh";
    using Tile = kernels::ScaledAttentionTile;
    using Prefill = kernels::ScaledAttentionPrefill;
    struct Key {
      DType t;
      Tile tile;
      Prefill prefill = {};  // with stages instead of tile
      bool operator==(const Key&) const = default;
    };
    static bool wide(const kernels::AttentionArgs& a) {
      return vectorizable(a.q, a.q_stride, DType::e4m3, 16) && vectorizable(a.k, a.k_stride, DType::e4m3, 16) &&
             vectorizable(a.v, a.v_stride, DType::e4m3, 16) && vectorizable(a.out, a.out_stride, a.dtype, 4);
    }
    /// Many queries of one sequence, or of several; what few tokens compute must not depend on how many they are.
    static bool prefill(const kernels::AttentionArgs& a) { return a.T > 64 && !a.by_token(); }
    /// Calls of few tokens, then prefills whose rows TMA can read, then all others.
    static int row_class(const Args& args) { return !prefill(args.a) ? 0 : wide(args.a) ? 1 : 2; }
    static bool can_prefill_tma(const kernels::AttentionArgs& a, Arch arch) {
      if (!chip(arch).wgmma || a.D != Prefill::kDim || !prefill(a) || !wide(a) || a.L < 1 || a.B < 1) return false;
      return a.page_table == nullptr || (a.L >= 8 && (Prefill::kKeys % a.L == 0 || a.L % Prefill::kKeys == 0));
    }
    static Result<Key> pick(const Args& args, Arch arch) {
      const kernels::AttentionArgs& a = args.a;
      if (!chip(arch).fp8_mma)
        return Status(Code::kUnsupported,
                      "products of e4m3 begin with compute capability 8.9; cast q, k and v to bf16 and use attention");
      if (a.D != 64 && a.D != 128)
        return Status(Code::kUnsupported,
                      strf("on a GPU D must be 64 or 128, got %d; cast and use attention for other heads", a.D));
      if (int64_t{a.T} * a.Hq > INT32_MAX / 2) return Status(Code::kUnsupported, "T * Hq is above 2^30; cut the call");
      if (can_prefill_tma(a, arch)) return Key{a.dtype, {}, {3}};
      return Key{a.dtype, {a.D, wide(a)}};
    }
    static std::string instance(const Key& k) {
      if (k.prefill.stages > 0)
        return kernel_expression("scaled_attention_prefill<%s, vivace::kernels::ScaledAttentionPrefill{%d}>",
                                 type_name(k.t), k.prefill.stages);
      return kernel_expression("scaled_attention<%s, vivace::kernels::ScaledAttentionTile{%d, %s}>", type_name(k.t),
                               k.tile.d, k.tile.wide ? "true" : "false");
    }
    static void shape(const Args& args, const Key& k, exec::Launch* launch) {
      const bool prefill = k.prefill.stages > 0;
      const int rows = prefill ? Prefill::kRows : Tile::kRows;
      launch->grid[0] = static_cast<uint32_t>((int64_t{args.a.T} * args.a.group() + rows - 1) / rows * args.a.Hkv);
      launch->block[0] = prefill ? Prefill::kThreads : Tile::kThreads;
      launch->smem_bytes = static_cast<uint32_t>(prefill ? k.prefill.smem() : k.tile.smem());
    }
    /// Prefill: tensor maps.
    static Status complete(const Args& args, const Key& k, const Target&, exec::Launch* launch) {
      if (k.prefill.stages == 0) return {};
      const kernels::AttentionArgs& a = args.a;
      const auto cache = [&](const void* data, int64_t stride, kernels::TensorMap* to) {
        const int64_t head = a.D, row = a.Hkv * head;
        return device::encode_map(
            device::BoxShape{.data = data,
                             .axes = 4,
                             .dim = {head / 2, a.L, a.Hkv, a.B, 1},
                             .pitch = {row, head, a.B > 1 ? stride : a.L * row, 0},
                             .box_rows = a.page_table != nullptr ? std::min(a.L, Prefill::kKeys) : Prefill::kKeys},
            to);
      };
      kernels::ScaledAttentionPrefillArgs f{args, {}, {}};
      VV_TRY(cache(a.k, a.k_stride, &f.k));
      VV_TRY(cache(a.v, a.v_stride, &f.v));
      launch->set_args(f);
      return {};
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      if (!chip(arch).fp8_mma) return;
      for (const DType t : {DType::bf16, DType::f16})
        for (const int d : {64, 128})
          for (const bool wide : {true, false}) visit(Key{t, {d, wide}});
      for (const DType t : {DType::bf16, DType::f16})
        if (chip(arch).wgmma) visit(Key{t, {}, {3}});
    }
  };
};

}  // namespace vivace::ops::defs
