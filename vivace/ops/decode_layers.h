// decode_layers: one token through all layers of a dense decoder, as one kernel.
#pragma once
#include <algorithm>
#include <tuple>

#include "vivace/base/check.h"
#include "vivace/device/tensor_map.h"
#include "vivace/kernels/decode/decode_layers.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void decode_layers(const kernels::DecodeLayersArgs& a, Pool& pool);
}  // namespace vivace::cpu

namespace vivace::ops::defs {

struct decode_layers {
  using Args = kernels::DecodeLayersArgs;
  using Policy = kernels::DecodeLayersPolicy;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "bf16", "the token's row of the residual stream; T = 1"),
      in("attn_norm", "N,H", "bf16", "weights of each layer's first RMS norm"),
      in("qkv", "N,Q,H", "bf16|e4m3", "what makes queries, keys and values: Q = A + 2 * Hkv * D"),
      opt_in("qkv_scale", "N,Q", "f32", "of e4m3 matrices, a scale a row; of all four or none"),
      opt_in("qkv_bias", "N,Q", "bf16|f32", "added to them"),
      opt_in("q_norm", "N,D", "bf16", "weight of a per-head RMS norm of q, before the rotation; with k_norm or absent"),
      opt_in("k_norm", "N,D", "bf16", "the same for k"),
      in("o", "N,H,A", "bf16|e4m3", "of what attention gives, A = Hq * D; of qkv's dtype, as gate_up and down are"),
      opt_in("o_scale", "N,H", "f32", "a row's scale"),
      in("mlp_norm", "N,H", "bf16", "weights of each layer's second RMS norm"),
      in("gate_up", "N,2*M,H", "bf16|e4m3", "rows of gate and of up in turn"),
      opt_in("gate_up_scale", "N,2*M", "f32", "a row's scale"),
      in("down", "N,H,M", "bf16|e4m3", "of the gated row"),
      opt_in("down_scale", "N,H", "f32", "a row's scale"),
      in("inv_freq", "R", "f32", "radians a position for each rotated pair, 2R = D"),
      inout("k_cache", "N,B,L,Hkv,D", "bf16", "keys by layer, slot and position, with page_table by page and place"),
      inout("v_cache", "N,B,L,Hkv,D", "bf16", "values"),
      in("pos", "T", "i32", "position of the token: angle, cache row and what it sees"),
      opt_in("slot", "T", "i32", "its cache slot; absent means 0"),
      opt_in("page_table", "S,P", "i32",
             "block of the caches that holds each page of L places of a slot; absent: block = slot"),
      inout("words", "W", "i32",
            "what blocks of the kernel exchange: zeros before the first call, then what the call before left, of the "
            "same shape and on the same multiprocessors; of calls that follow each other. W >= 32 + 2 * (2 * H' + M' + "
            "A' + Q' + 32 * A), x' being x rounded up to 32. The host leaves them alone"),
      out("out", "T,H", "bf16", "the row behind the last layer", "x"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      real("eps", 1e-6, "added to the mean square of every norm"),
      real("attn_factor", 1, "factor of cos and sin (YaRN's attention factor)"),
  };
  static constexpr OpSpec spec{
      .name = "decode_layers",
      .group = "decode",
      .brief = "One token through all layers of a dense decoder: attention over a cache and a gated MLP, N times.",
      .formula =
          "r = x in f32. In each layer: y = round(r * attn_norm); q, k, v = qkv y * rsqrt(mean(r^2) + eps) + qkv_bias; "
          "q_norm and k_norm, and the rotation of pairs (i, i + R), as in qkv_rope; q, k and v rounded; k and v go to "
          "the caches at pos; a = softmax(q k^T / sqrt(D)) v over the slot's places up to pos; r = r + o round(a); y = "
          "round(r * mlp_norm); (g, u) = gate_up y * rsqrt(mean(r^2) + eps); r = r + down round(g / (1 + exp(-g)) * "
          "u). A row of an e4m3 matrix is its codes, each times the row's scale. out = round(r). round() is to bf16, "
          "sums "
          "are f32, and what passes from one product, attention or norm to the next keeps 15 bits of fraction. Without "
          "a "
          "row, or where pos has no place, nothing is written; pages that do not exist are not seen.",
      .source = "arXiv:1706.03762, RoPE arXiv:2104.09864, RMSNorm arXiv:1910.07467, SwiGLU arXiv:2002.05202",
      .ports = kPorts,
      .attrs = kAttrs,
      .min_arch = Arch::sm90a,
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t N = c.dim("N"), H = c.dim("H"), Q = c.dim("Q"), A = c.dim("A"), M = c.dim("M"), D = c.dim("D"),
                  Hkv = c.dim("Hkv"), R = c.dim("R");
    for (const int64_t n : {N, H, Q, M, c.dim("B"), c.dim("L"), c.dim("S"), c.dim("P")})
      if (n > INT32_MAX / 4)
        return c.error(Code::kInvalidShape, strf("dims must be below 2^29, got %ld", static_cast<long>(n)));
    if (c.dim("T") != 1)
      return c.error(Code::kInvalidShape, strf("x has T = %ld rows, wanted one", static_cast<long>(c.dim("T"))));
    if (N < 1 || H < 1 || D < 1 || Hkv < 1 || A < 1 || A % (D * Hkv) != 0 || Q != A + 2 * Hkv * D)
      return c.error(Code::kInvalidShape,
                     strf("wanted at least a layer, A = Hq * D with Hq a multiple of Hkv, and Q = A + 2 * Hkv * D; got "
                          "N %ld, H %ld, A %ld, Q %ld, Hkv %ld, D %ld",
                          static_cast<long>(N), static_cast<long>(H), static_cast<long>(A), static_cast<long>(Q),
                          static_cast<long>(Hkv), static_cast<long>(D)));
    if (2 * R != D || D > kMostHeadDim)
      return c.error(Code::kInvalidShape, strf("inv_freq has R = %ld pairs, wanted all of a head: D = %ld = 2R, at "
                                               "most %d",
                                               static_cast<long>(R), static_cast<long>(D), kMostHeadDim));
    if (c["q_norm"].present() != c["k_norm"].present())
      return c.error(Code::kInvalidArgument, "q_norm and k_norm come together or not at all");
    if (!(c.real("eps") >= 0)) return c.error(Code::kInvalidArgument, strf("eps must be >= 0, got %g", c.real("eps")));
    const DType weight = c["qkv"].dtype;
    for (const auto& [what, dtype, scaled] : {std::tuple("qkv", weight, c["qkv_scale"].present()),
                                              std::tuple("o", c["o"].dtype, c["o_scale"].present()),
                                              std::tuple("gate_up", c["gate_up"].dtype, c["gate_up_scale"].present()),
                                              std::tuple("down", c["down"].dtype, c["down_scale"].present())}) {
      if (dtype != weight)
        return c.error(Code::kInvalidDType, strf("qkv is %s and %s %s: the four matrices have one dtype", name(weight),
                                                 what, name(dtype)));
      if (scaled != (weight == DType::e4m3))
        return c.error(Code::kInvalidArgument, strf("%s is %s and comes %s scales: e4m3 has one a row, bf16 none", what,
                                                    name(dtype), scaled ? "with" : "without"));
    }
    const int64_t wanted = words_of(H, A, Hkv * D, M);
    if (c.dim("W") < wanted)
      return c.error(Code::kInvalidShape,
                     strf("words has W = %ld, wanted %ld", static_cast<long>(c.dim("W")), static_cast<long>(wanted)));
    const auto stack = [&](Name port) { return kernels::LayerStack{c.ptr(port), c.row_stride(port)}; };
    const auto matrix = [&](Name port, Name scale) { return kernels::LayerMatrix{stack(port), stack(scale)}; };
    *a = Args{
        .x = c.ptr("x"),
        .out = c.ptr("out"),
        .attn_norm = stack("attn_norm"),
        .mlp_norm = stack("mlp_norm"),
        .qkv = matrix("qkv", "qkv_scale"),
        .o = matrix("o", "o_scale"),
        .gate_up = matrix("gate_up", "gate_up_scale"),
        .down = matrix("down", "down_scale"),
        .qkv_bias = stack("qkv_bias"),
        .q_norm = stack("q_norm"),
        .k_norm = stack("k_norm"),
        .inv_freq = c.ptr<float>("inv_freq"),
        .k_cache = c.ptr("k_cache"),
        .v_cache = c.ptr("v_cache"),
        .pos = c.ptr<int32_t>("pos"),
        .slot = c.ptr<int32_t>("slot"),
        .rows = c.ptr<int32_t>("rows"),
        .page_table = c.ptr<int32_t>("page_table"),
        .words = c.ptr<uint32_t>("words"),
        .k_stride = c.row_stride("k_cache"),
        .v_stride = c.row_stride("v_cache"),
        .table_stride = c.row_stride("page_table"),
        .N = static_cast<int32_t>(N),
        .H = static_cast<int32_t>(H),
        .Hq = static_cast<int32_t>(A / D),
        .Hkv = static_cast<int32_t>(Hkv),
        .D = static_cast<int32_t>(D),
        .M = static_cast<int32_t>(M),
        .B = static_cast<int32_t>(c.dim("B")),
        .L = static_cast<int32_t>(c.dim("L")),
        .S = static_cast<int32_t>(c.dim("S")),
        .P = static_cast<int32_t>(c.dim("P")),
        .eps = static_cast<float>(c.real("eps")),
        .attn_factor = static_cast<float>(c.real("attn_factor")),
        .bias_dtype = c["qkv_bias"].dtype,
        .weight_dtype = weight,
    };
    return {};
  }
  /// Elements of the port `words`. q_width, kv_width: columns of queries, and of keys.
  static int64_t words_of(int64_t H, int64_t q_width, int64_t kv_width, int64_t M) {
    const auto n = [](int64_t v) { return static_cast<int32_t>(v); };
    return kernels::kDecodeWordsAhead + int64_t{2} * kernels::DecodeWords::of(n(H), n(q_width), n(kv_width), n(M)).all;
  }

  /// Where the context is full: positions are on the device.
  static Cost cost(const Args& a) {
    const int64_t q = int64_t{a.Hq} * a.D, kv = int64_t{a.Hkv} * a.D,
                  weights = a.N * a.H * (2 * q + 2 * kv + 3 * int64_t{a.M}),
                  rows = a.N * (4 * int64_t{a.H} + q + 2 * kv + 2 * int64_t{a.M}),
                  keys = a.page_table != nullptr ? int64_t{a.P} * a.L : a.L;
    const bool codes = a.weight_dtype == DType::e4m3;
    return {.bytes = weights * (codes ? 1 : 2) + rows * (codes ? 4 : 1) + 4 * a.N * kv * keys,
            .flops = 2 * weights + a.N * 4 * q * keys};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::decode_layers(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/decode/decode_layers.cuh";
    struct Key {
      Policy p;
      bool operator==(const Key&) const = default;
    };

    static Result<Key> pick(const Args& a, ChipPart part) {
      const Chip& c = chip(part.arch);
      const int multiprocessors = part.multiprocessors > 0 ? part.multiprocessors : c.sm_count;
      const Policy p{a.H,
                     a.Hq,
                     a.Hkv,
                     a.D,
                     a.M,
                     std::min(multiprocessors, Policy::most_blocks(a.H, a.Hq * a.D, a.M)),
                     a.weight_dtype == DType::e4m3 ? 1 : 2,
                     a.q_norm.data != nullptr,
                     a.qkv_bias.data != nullptr};
      // One block has what Hopper's multiprocessors hold, and rings of its own copies. It has run on no later chip.
      if (!c.wgmma || c.smem_bytes() < Policy::kSmem)
        return Status(Code::kUnsupported, strf("%s: the kernel is for Hopper, with %d bytes of shared memory a block",
                                               c.target, Policy::kSmem));
      if (!p.fits())
        return Status(
            Code::kUnsupported,
            strf("H %d, heads %d of %d, D %d, M %d on %d multiprocessors: wanted H and M in units of 64, D 64 or 128, "
                 "at most 8 query heads a kv head, and rows that shared memory holds",
                 a.H, a.Hq, a.Hkv, a.D, a.M, multiprocessors));
      if (a.page_table != nullptr && a.L % Policy::kKeys != 0)
        return Status(Code::kUnsupported, strf("pages have %d positions, wanted a multiple of %d", a.L, Policy::kKeys));
      for (const int64_t stride : {a.k_stride, a.v_stride})
        if (stride % (int64_t{a.Hkv} * a.D) != 0 ||
            (a.N - 1) * (stride / (int64_t{a.Hkv} * a.D)) + int64_t{a.B} * a.L > INT32_MAX)
          return Status(Code::kUnsupported, "layers of a cache lie whole positions apart, 2^31 positions in all");
      for (const kernels::LayerMatrix& m : {a.qkv, a.o, a.gate_up, a.down})
        if (!vectorizable(m.w.data, m.w.stride, a.weight_dtype, 16 / info(a.weight_dtype).bytes))
          return Status(Code::kUnsupported, "matrices begin at multiples of 16 bytes, in every layer");
      for (const kernels::LayerStack& s :
           {a.attn_norm, a.mlp_norm, a.q_norm, a.k_norm,
            kernels::LayerStack{a.k_cache, a.k_stride}, kernels::LayerStack{a.v_cache, a.v_stride},
            kernels::LayerStack{a.x, 0}, kernels::LayerStack{a.words, 0}})
        if (!vectorizable(s.data, s.stride, DType::bf16, 8))
          return Status(Code::kUnsupported,
                        "norms, caches, x and words begin at multiples of 16 bytes, in every layer");
      return Key{p};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("decode_layers<vivace::kernels::DecodeLayersPolicy{%d, %d, %d, %d, %d, %d, %d, %s, %s}>",
                               k.p.H, k.p.Hq, k.p.Hkv, k.p.D, k.p.M, k.p.blocks, k.p.bytes,
                               k.p.norms ? "true" : "false", k.p.biased ? "true" : "false");
    }
    static void shape(const Args&, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(k.p.blocks);
      launch->block[0] = static_cast<uint32_t>(Policy::kThreads);
      launch->smem_bytes = static_cast<uint32_t>(k.p.smem());
      launch->cooperative = true;  // blocks wait for each other, so that all must stand at once
      launch->pdl = false;
    }
    /// A cache as a matrix of words, a position of any layer a row, for boxes of a stage's keys by a head's columns.
    static Status map_cache(const Args& a, const void* data, int64_t stride, kernels::TensorMap* map, int32_t* rows) {
      const int64_t width = int64_t{a.Hkv} * a.D, places = int64_t{a.B} * a.L;
      *rows = static_cast<int32_t>(stride / width);
      return device::encode_map(device::WordMapShape{.data = data,
                                                     .rows = (a.N - 1) * (stride / width) + places,
                                                     .words = width / 2,
                                                     .pitch = width * 2,
                                                     .box_rows = Policy::kKeys,
                                                     .box_words = a.D / 2},
                                map);
    }
    /// Tensor maps; and what the device at hand says of itself: its multiprocessors may be fewer than its chip's.
    static Status complete(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
      if (k.p.blocks > target.sm_count())
        return Status(Code::kUnsupported, strf("%d blocks wait for each other, %s has %d multiprocessors", k.p.blocks,
                                               chip(target.arch()).target, target.sm_count()));
      kernels::DecodeLayersTmaArgs f{};
      VV_TRY(map_cache(a, a.k_cache, a.k_stride, &f.k, &f.k_rows));
      VV_TRY(map_cache(a, a.v_cache, a.v_stride, &f.v, &f.v_rows));
      f.a = a;
      launch->set_args(f);
      return {};
    }
    /// Models of each kind on a whole chip; others are compiled when they are first used.
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      const Chip& c = chip(arch);
      if (!c.wgmma) return;
      for (const int bytes : {2, 1}) {
        visit(Key{{576, 9, 3, 64, 1536, c.sm_count, bytes, false, false}});
        visit(Key{{1024, 16, 8, 128, 3072, c.sm_count, bytes, true, false}});
        visit(Key{{2048, 32, 8, 64, 8192, c.sm_count, bytes, false, false}});
        visit(Key{{896, 14, 2, 64, 4864, c.sm_count, bytes, false, true}});
      }
    }
  };

 private:
  static constexpr int kMostHeadDim = 256;
};

}  // namespace vivace::ops::defs
