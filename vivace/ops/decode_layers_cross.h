// decode_layers_cross: one token through all layers of a decoder that also attends to an encoder, as one kernel.
#pragma once
#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/device/tensor_map.h"
#include "vivace/kernels/decode/decode_layers_cross.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void decode_layers_cross(const kernels::DecodeLayersCrossArgs& a, Pool& pool);
}  // namespace vivace::cpu

namespace vivace::ops::defs {

struct decode_layers_cross {
  using Args = kernels::DecodeLayersCrossArgs;
  using Policy = kernels::DecodeCrossPolicy;
  static constexpr Port kPorts[] = {
      in("x", "T,H", "bf16", "the token's row of the residual stream; T = 1"),
      opt_in("add", "T,H", "bf16", "added to it: the row of its position"),
      in("norms", "N,3*H", "f32", "weights of each layer's norms, in front of qkv, cross_q and up"),
      in("norm_biases", "N,3*H", "f32", "what they add"),
      in("biases", "N,V", "bf16", "what is added to products: qkv, o, cross_q, cross_o, up and down; V = 7 H + M"),
      in("qkv", "N,3*H,H", "bf16", "what makes queries, keys and values of self-attention"),
      in("o", "N,H,H", "bf16", "of what self-attention gives"),
      in("cross_q", "N,H,H", "bf16", "what makes queries of cross-attention"),
      in("cross_o", "N,H,H", "bf16", "of what cross-attention gives"),
      in("up", "N,M,H", "bf16", "the MLP's first matrix"),
      in("down", "N,H,M", "bf16", "its second"),
      inout("k_cache", "N,B,L,Hq,D", "bf16", "keys by layer, slot and position, with page_table by page and place"),
      inout("v_cache", "N,B,L,Hq,D", "bf16", "values"),
      in("cross_k", "N,C,F,Hq,D", "bf16", "keys of what is heard, by layer, window and place; Hq * D = H, D = 64"),
      in("cross_v", "N,C,F,Hq,D", "bf16", "their values"),
      in("pos", "T", "i32", "position of the token: cache row and what it sees of its own"),
      opt_in("slot", "T", "i32", "its cache slot; absent means 0"),
      opt_in("window", "T", "i32", "which window it hears, all F places of it; absent means 0"),
      opt_in("page_table", "S,P", "i32",
             "block of the caches that holds each page of L places of a slot; absent: block = slot"),
      inout("words", "W", "i32",
            "what blocks of the kernel exchange: zeros before the first call, then what the call before left, of the "
            "same shape and on the same multiprocessors; of calls that follow each other. W >= 32 + 2 * (9 * H' + M' + "
            "64 * H), x' being x rounded up to 32. The host leaves them alone"),
      opt_out("queries", "N,T,H", "bf16", "queries of cross-attention, of each layer"),
      out("out", "T,H", "bf16", "the row behind the last layer", "x"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      real("eps", 1e-5, "added to the variance in every norm"),
  };
  static constexpr OpSpec spec{
      .name = "decode_layers_cross",
      .group = "decode",
      .brief =
          "One token through all layers of a decoder with cross-attention: self-attention over a cache, attention "
          "over what an encoder gave, and an MLP, N times.",
      .formula =
          "r = x + add in f32. In each layer: y = round((r - mean(r)) / sqrt(var(r) + eps) * norm + "
          "norm_bias); q, k, v = round(qkv y + bias); k and v go to the caches at pos; a = softmax(q k^T / "
          "sqrt(D)) v over the slot's places up to pos; r = r + o round(a) + bias; y the same with its own norm; q = "
          "round(cross_q y + bias), which is queries; a = softmax(q cross_k^T / sqrt(D)) cross_v over all of "
          "the window; r = r + cross_o round(a) + bias; y the same; u = up y + bias; r = r + "
          "down round(u/2 (1 + erf(u / sqrt 2))) + bias, each product with its own of biases. out = round(r). round() "
          "is to bf16, sums are f32, and "
          "what passes from one product or attention to the next keeps 15 bits of fraction. Without a row, or where "
          "pos or window has no place, nothing is written; pages that do not exist are not seen.",
      .source = "arXiv:1706.03762, arXiv:2212.04356",
      .ports = kPorts,
      .attrs = kAttrs,
      .min_arch = Arch::sm90a,
  };

  static Status bind(const Call& c, Args* a) {
    const int64_t N = c.dim("N"), H = c.dim("H"), M = c.dim("M"), D = c.dim("D"), Hq = c.dim("Hq"), C = c.dim("C"),
                  F = c.dim("F");
    for (const int64_t n : {N, H, M, c.dim("B"), c.dim("L"), c.dim("S"), c.dim("P"), C, F})
      if (n > INT32_MAX / 4)
        return c.error(Code::kInvalidShape, strf("dims must be below 2^29, got %ld", static_cast<long>(n)));
    if (c.dim("T") != 1)
      return c.error(Code::kInvalidShape, strf("x has T = %ld rows, wanted one", static_cast<long>(c.dim("T"))));
    if (N < 1 || Hq < 1 || D != Args::D || Hq * D != H || M < 1 || C < 1 || F < 1)
      return c.error(Code::kInvalidShape,
                     strf("wanted at least a layer, a window and a place, and H = Hq * D with D = %d; got N %ld, H "
                          "%ld, Hq %ld, D %ld, M %ld, C %ld, F %ld",
                          Args::D, static_cast<long>(N), static_cast<long>(H), static_cast<long>(Hq),
                          static_cast<long>(D), static_cast<long>(M), static_cast<long>(C), static_cast<long>(F)));
    if (c.dim("B") * c.dim("L") > INT32_MAX)
      return c.error(Code::kInvalidShape, "a layer's cache has at most 2^31 - 1 places");
    if (!(c.real("eps") >= 0)) return c.error(Code::kInvalidArgument, strf("eps must be >= 0, got %g", c.real("eps")));
    const int64_t wanted = words_of(H, M);
    if (c.dim("W") < wanted)
      return c.error(Code::kInvalidShape,
                     strf("words has W = %ld, wanted %ld", static_cast<long>(c.dim("W")), static_cast<long>(wanted)));
    if (c.dim("V") != 7 * H + M)
      return c.error(Code::kInvalidShape, strf("biases has V = %ld, wanted 7 H + M = %ld",
                                               static_cast<long>(c.dim("V")), static_cast<long>(7 * H + M)));
    const auto stack = [&](Name port) { return kernels::LayerStack{c.ptr(port), c.row_stride(port)}; };
    const auto part = [&](Name port, int64_t first, int64_t bytes) {
      const kernels::LayerStack all = stack(port);
      return kernels::LayerStack{static_cast<const std::byte*>(all.data) + first * bytes, all.stride};
    };
    const auto norm = [&](int64_t n) { return Args::Norm{part("norms", n * H, 4), part("norm_biases", n * H, 4)}; };
    const auto bias = [&](int64_t first) { return part("biases", first, 2); };
    *a = Args{
        .x = c.ptr("x"),
        .add = c.ptr("add"),
        .out = c.ptr("out"),
        .attn_norm = norm(0),
        .cross_norm = norm(1),
        .mlp_norm = norm(2),
        .qkv = {stack("qkv"), bias(0)},
        .o = {stack("o"), bias(3 * H)},
        .cross_q = {stack("cross_q"), bias(4 * H)},
        .cross_o = {stack("cross_o"), bias(5 * H)},
        .up = {stack("up"), bias(6 * H)},
        .down = {stack("down"), bias(6 * H + M)},
        .k_cache = c.ptr("k_cache"),
        .v_cache = c.ptr("v_cache"),
        .cross_k = c.ptr("cross_k"),
        .cross_v = c.ptr("cross_v"),
        .queries = c.ptr("queries"),
        .pos = c.ptr<int32_t>("pos"),
        .slot = c.ptr<int32_t>("slot"),
        .window = c.ptr<int32_t>("window"),
        .rows = c.ptr<int32_t>("rows"),
        .page_table = c.ptr<int32_t>("page_table"),
        .words = c.ptr<uint32_t>("words"),
        .k_stride = c.row_stride("k_cache"),
        .v_stride = c.row_stride("v_cache"),
        .cross_k_stride = c.row_stride("cross_k"),
        .cross_v_stride = c.row_stride("cross_v"),
        .queries_stride = c.row_stride("queries"),
        .table_stride = c.row_stride("page_table"),
        .N = static_cast<int32_t>(N),
        .H = static_cast<int32_t>(H),
        .heads = static_cast<int32_t>(Hq),
        .M = static_cast<int32_t>(M),
        .B = static_cast<int32_t>(c.dim("B")),
        .L = static_cast<int32_t>(c.dim("L")),
        .S = static_cast<int32_t>(c.dim("S")),
        .P = static_cast<int32_t>(c.dim("P")),
        .C = static_cast<int32_t>(C),
        .F = static_cast<int32_t>(F),
        .eps = static_cast<float>(c.real("eps")),
    };
    return {};
  }
  /// Elements of the port `words`.
  static int64_t words_of(int64_t H, int64_t M) {
    return kernels::kDecodeWordsAhead +
           int64_t{2} * kernels::DecodeCrossWords::of(static_cast<int32_t>(H), static_cast<int32_t>(M)).all;
  }

  /// Where the context is full: positions are on the device.
  static Cost cost(const Args& a) {
    const int64_t H = a.H, weights = a.N * (H * (6 * H + 2 * int64_t{a.M}) + 15 * H + a.M),
                  keys = (a.page_table != nullptr ? int64_t{a.P} * a.L : a.L) + a.F;
    return {.bytes = 2 * (weights + a.N * 2 * H * keys), .flops = 2 * weights + a.N * 4 * H * keys};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::decode_layers_cross(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/decode/decode_layers_cross.cuh";
    struct Key {
      Policy p;
      bool operator==(const Key&) const = default;
    };

    static Result<Key> pick(const Args& a, ChipPart part) {
      const Chip& c = chip(part.arch);
      const int multiprocessors = part.multiprocessors > 0 ? part.multiprocessors : c.sm_count;
      const Policy p{a.H, a.heads, a.M, std::min(multiprocessors, Policy::most_blocks(a.H, a.M))};
      // One block has what Hopper's multiprocessors hold, and rings of its own copies. It has run on no later chip.
      if (!c.wgmma || c.smem_bytes() < Policy::kSmem)
        return Status(Code::kUnsupported, strf("%s: the kernel is for Hopper, with %d bytes of shared memory a block",
                                               c.target, Policy::kSmem));
      if (!p.fits())
        return Status(Code::kUnsupported, strf("H %d, M %d on %d multiprocessors: wanted M in units of 64, a block for "
                                               "each head, and rows that shared memory holds",
                                               a.H, a.M, multiprocessors));
      for (const int64_t stride : {a.cross_k_stride, a.cross_v_stride})
        if (stride % a.H != 0 || (a.N - 1) * (stride / a.H) + int64_t{a.C} * a.F > INT32_MAX)
          return Status(Code::kUnsupported, "layers of what is heard lie whole places apart, 2^31 places in all");
      const auto fits = [](const kernels::LayerStack& s, DType t) { return vectorizable(s.data, s.stride, t, 8); };
      for (const Args::Norm* n : {&a.attn_norm, &a.cross_norm, &a.mlp_norm})
        if (!fits(n->weight, DType::f32) || !fits(n->bias, DType::f32)) return unaligned();
      for (const kernels::LayerStack& s :
           {a.qkv.w, a.o.w, a.cross_q.w, a.cross_o.w, a.up.w, a.down.w, kernels::LayerStack{a.k_cache, a.k_stride},
            kernels::LayerStack{a.v_cache, a.v_stride}, kernels::LayerStack{a.cross_k, a.cross_k_stride},
            kernels::LayerStack{a.cross_v, a.cross_v_stride}, kernels::LayerStack{a.x, 0},
            kernels::LayerStack{a.add, 0}, kernels::LayerStack{a.words, 0}})
        if (!fits(s, DType::bf16)) return unaligned();
      return Key{p};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("decode_layers_cross<vivace::kernels::DecodeCrossPolicy{%d, %d, %d, %d}>", k.p.H,
                               k.p.heads, k.p.M, k.p.blocks);
    }
    static void shape(const Args&, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(k.p.blocks);
      launch->block[0] = static_cast<uint32_t>(Policy::kThreads);
      launch->smem_bytes = static_cast<uint32_t>(k.p.smem());
      launch->cooperative = true;  // blocks wait for each other, so that all must stand at once
      launch->pdl = false;
    }
    /// What is heard as a matrix of words, a place of any layer and window a row, for boxes of a stage by a head.
    static Status map_heard(const Args& a, const void* data, int64_t stride, kernels::TensorMap* map, int32_t* rows) {
      *rows = static_cast<int32_t>(stride / a.H);
      return device::encode_map(device::WordMapShape{.data = data,
                                                     .rows = (a.N - 1) * (stride / a.H) + int64_t{a.C} * a.F,
                                                     .words = a.H / 2,
                                                     .pitch = int64_t{a.H} * 2,
                                                     .box_rows = Policy::kKeys,
                                                     .box_words = Policy::D / 2},
                                map);
    }
    /// Tensor maps; and what the device at hand says of itself: its multiprocessors may be fewer than its chip's.
    static Status complete(const Args& a, const Key& k, const Target& target, exec::Launch* launch) {
      if (k.p.blocks > target.sm_count())
        return Status(Code::kUnsupported, strf("%d blocks wait for each other, %s has %d multiprocessors", k.p.blocks,
                                               chip(target.arch()).target, target.sm_count()));
      kernels::DecodeLayersCrossTmaArgs f{};
      VV_TRY(map_heard(a, a.cross_k, a.cross_k_stride, &f.k, &f.k_rows));
      VV_TRY(map_heard(a, a.cross_v, a.cross_v_stride, &f.v, &f.v_rows));
      f.a = a;
      launch->set_args(f);
      return {};
    }
    /// Whisper's widths on a whole chip: large and turbo, medium, small, base, tiny.
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      const Chip& c = chip(arch);
      if (!c.wgmma) return;
      for (const int heads : {20, 16, 12, 8, 6})
        visit(Key{{heads * Policy::D, heads, 4 * heads * Policy::D, c.sm_count}});
    }

   private:
    static Status unaligned() {
      return Status(Code::kUnsupported,
                    "weights, norms, caches, what is heard, x, add and words begin at multiples of 16 bytes, in every "
                    "layer");
    }
  };
};

}  // namespace vivace::ops::defs
