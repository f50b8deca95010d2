// attention: softmax(q k^T) v over a cache, with grouped heads and the masks that models use.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "vivace/cpu/simd/isa.h"
#include "vivace/kernels/attention/attention.h"
#include "vivace/ops/attention_gpu.h"
#include "vivace/ops/attention_contents.h"
#include "vivace/ops/call.h"

namespace vivace::cpu {
class Pool;
void attention(const kernels::AttentionArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct attention {
  using Args = kernels::AttentionArgs;
  static constexpr int kMaxHeadDim = 1024;
  static constexpr Port kPorts[] = {
      in("q", "T,Hq,D", "f32|bf16|f16", "queries"),
      pitched(in("k", "B,L,Hkv,D", "f32|bf16|f16|e4m3",
                 "keys: B slots of L places; with page_table B pages of L places; with layout=hnd [B, Hkv, L, D]; "
                 "places may lie apart, as in the rows of a product that makes q, k and v; with hnd they may not")),
      pitched(in("v", "B,L,Hkv,Dv", "=k", "values")),
      opt_in("pos", "T", "i32", "position of each query; absent means t"),
      opt_in("slot", "T", "i32", "slot of each query; absent means 0; outside [0, S) nothing is visible"),
      opt_in("length", "S", "i32", "valid places of each slot; absent means all: L, paged P*L"),
      opt_in("prefix", "S", "i32",
             "places of each slot that every query sees, for mask=prefix; for mask=state the place of the state, which "
             "follows the prefix"),
      opt_in("page_table", "S,P", "i32",
             "block of k and v that holds each page of L places of a slot; outside [0, B) its keys and values count as "
             "zeros; absent: block = slot, S = B"),
      opt_in("k_offsets", "R", "i32",
             "ragged keys: slot s has rows k_offsets[s] to k_offsets[s + 1] of k and v, whose B is 1; S = R - 1; rows "
             "outside of k are not there"),
      opt_in("sinks", "Hq", "f32", "a logit of each head that joins the softmax's sum and has no value"),
      opt_in("head_scale", "Hq", "f32", "a factor of each head, beside scale"),
      opt_in("slopes", "Hq", "f32", "ALiBi: slope * (j - pos) joins each head's scores; pos below -2^30 is that"),
      opt_in("bits", "T,W", "i32",
             "bit b of a query's row, from the low one of word 0 on, lets it see place bits_from + b; beyond the row "
             "no place is seen"),
      opt_in("bits_from", "S", "i32",
             "first place of each slot that bits decides on; those before it are as if their bits were set; absent "
             "means 0"),
      out("out", "T,Hq,Dv", "f32|bf16|f16|e4m3", "weighted values, in q's type or in e4m3"),
      opt_in("out_scale", "1", "f32", "static quantization scale of an e4m3 out: value ~ out * out_scale; > 0"),
      opt_out("lse", "T,Hq", "f32", "log of the sum of exp over the visible keys' scores, sinks apart"),
      opt_inout("words", "N", "i32",
                "what clusters of blocks exchange that share the keys of a KV head: with it a decode step of one slot, "
                "a cache of more than 8192 places and up to four KV heads of more than 64 takes several clusters each, "
                "another class of bits. Zeros before the first call, and then what the calls before left, of any "
                "shapes, which follow each other. Of such a slot N >= 4096 + 32 * (min(T, 16) * Hq / Hkv + 16) * Dv', "
                "Dv' being Dv rounded up to 128. The host leaves it alone"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("mask", "causal|prefix|full|state", "which keys a query sees"),
      choice("layout", "nhd|hnd",
             "whether a block of k and v holds its places one after the other, or its heads: [B, Hkv, L, D]"),
      integer("window", 0, "if positive, only keys j > pos - window are visible"),
      real("softcap", 0, "if positive, scores become softcap * tanh(score / softcap)"),
      real("scale", 0, "factor of q k^T; 0 means 1 / sqrt(D)"),
  };
  static constexpr OpSpec spec{
      .name = "attention",
      .group = "attention",
      .brief =
          "Attention over a key-value cache: grouped heads, causal, prefix or full mask, window, soft cap and sinks.",
      .formula =
          "place j of a slot is row j of block `slot`, with page_table row j % L of block page_table[slot, j / L], "
          "with k_offsets row k_offsets[slot] + j of block 0; s_j = cap(scale * head_scale * q . k_j + slope * (j - "
          "pos)); key j is visible iff j < L (paged P*L; ragged k_offsets[slot + 1] - k_offsets[slot]), j < "
          "length[slot], and causal: j <= pos; prefix: j < prefix[slot] or "
          "j <= pos; state: j < prefix[slot] where pos < prefix[slot], j <= pos where they are equal, else all; and j "
          "> pos - window if window > 0; "
          "and, with bits, j < bits_from[slot] or bit j - bits_from[slot] of the query's row is set; values of places "
          "that bits alone hides, or that another query of the call sees, must be finite; keys and values that no "
          "query of the call sees (beyond a length, below and between windows: pages may be gone or used again) may be "
          "anything, NaN too; p = exp(s - m), m the largest visible s or sink; "
          "out = round(sum p_j v_j / (sum p_j + exp(sink - m))) to q's type, e4m3: then sat_e4m3(out / out_scale), the "
          "codes that quantize makes of it; nothing visible, or every score -inf: out 0, lse -inf; a score of +inf: "
          "NaN. All in f32, but that "
          "with 16-bit q and a k of q's type or e4m3 p_j may be rounded to q's type where it meets v_j, not where it "
          "is summed. Head h reads kv head h / (Hq / Hkv).",
      .source =
          "arXiv:1706.03762; online softmax arXiv:1805.02867; ALiBi arXiv:2108.12409; blocks of a state and of actions "
          "arXiv:2410.24164; grouped heads arXiv:2305.13245; pages arXiv:2309.06180; sinks arXiv:2309.17453",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const auto mask = c.choice<kernels::AttentionMask>("mask");
    const bool hnd = c.flag("layout"), ragged = c["k_offsets"].present();
    const long Hq = c.dim("Hq"), Hkv = c.dim(hnd ? "L" : "Hkv"), L = c.dim(hnd ? "Hkv" : "L"), D = c.dim("D"),
               Dv = c.dim("Dv");  // dims are named after nhd
    if (Hkv < 1 || Hq % Hkv != 0)
      return c.error(Code::kInvalidShape, strf("Hq must be a multiple of Hkv, got %ld and %ld", Hq, Hkv));
    if (D < 1 || Dv < 1 || D > kMaxHeadDim || Dv > kMaxHeadDim)
      return c.error(Code::kUnsupported,
                     strf("head sizes must be in [1, %d], got D %ld and Dv %ld", kMaxHeadDim, D, Dv));
    if ((mask == kernels::AttentionMask::prefix || mask == kernels::AttentionMask::state) != c["prefix"].present())
      return c.error(Code::kInvalidArgument, "port prefix is given exactly when mask=prefix or mask=state");
    const DType out = c["out"].dtype;
    if (out != c["q"].dtype && out != DType::e4m3)
      return c.error(Code::kInvalidDType,
                     strf("port out: wanted q's %s or e4m3, got %s", name(c["q"].dtype), name(out)));
    if ((out == DType::e4m3) != c["out_scale"].present())
      return c.error(Code::kInvalidArgument,
                     strf("out is %s: an e4m3 out takes out_scale, any other out none (out_scale %s)", name(out),
                          c["out_scale"].present() ? "given" : "absent"));
    if (c["bits_from"].present() && !c["bits"].present())
      return c.error(Code::kInvalidArgument, "port bits_from says where bits begins: give bits too");
    if (c.integer("window") < 0 || c.integer("window") > INT32_MAX)
      return c.error(Code::kInvalidArgument, strf("window must be in [0, 2^31), got %g", c.real("window")));
    if (!(c.real("softcap") >= 0))
      return c.error(Code::kInvalidArgument, strf("softcap must be >= 0, got %g", c.real("softcap")));
    for (const auto& [name, pitch, dense] : {std::tuple{"k", c.pitch("k"), L * D}, {"v", c.pitch("v"), L * Dv}})
      if (hnd && pitch != dense)
        return c.error(Code::kInvalidLayout,
                       strf("port %s: axis 1 has stride %ld, wanted %ld: with layout=hnd only the outermost may be "
                            "strided",
                            name, static_cast<long>(pitch), dense));
    const bool paged = c["page_table"].present();
    const bool by_slot = paged || c["length"].present() || c["prefix"].present() || c["bits_from"].present();
    const long B = c.dim("B"), S = ragged ? c.dim("R") - 1 : by_slot ? c.dim("S") : B;
    if (ragged && (paged || B != 1))
      return c.error(Code::kInvalidArgument,
                     strf("with k_offsets all keys lie in one block, without page_table; got B = %ld%s", B,
                          paged ? " and page_table" : ""));
    if (ragged && S < 0)
      return c.error(Code::kInvalidShape, "k_offsets has an entry for each slot and one more, got none");
    if (ragged && by_slot && S != c.dim("S"))
      return c.error(
          Code::kInvalidShape,
          strf("k_offsets has R = %ld entries, one more than slots, but length, prefix or bits_from have S = %ld",
               S + 1, static_cast<long>(c.dim("S"))));
    if (!paged && !ragged && S != B)
      return c.error(
          Code::kInvalidShape,
          strf("without page_table length, prefix and bits_from have an entry for each of k's B = %ld slots, got %ld",
               B, S));
    if (paged && c.dim("P") * L > INT32_MAX)
      return c.error(Code::kInvalidShape,
                     strf("P * L = %ld places are above 2^31 - 1", static_cast<long>(c.dim("P") * L)));
    if (c["words"].present() && AttentionGpu::wants_words(S, paged ? c.dim("P") * L : L, Hkv, D))
      if (const int64_t wanted = Args::words_of(c.dim("T"), Hq, Hkv, Dv); c.dim("N") < wanted)
        return c.error(Code::kInvalidShape,
                       strf("words has N = %ld, wanted %ld", static_cast<long>(c.dim("N")), static_cast<long>(wanted)));
    for (const char* d : {"T", "B", "L", "Hkv", "Hq"})
      if (c.dim(d) > INT32_MAX)
        return c.error(Code::kInvalidShape, strf("%s = %ld is above 2^31 - 1", d, static_cast<long>(c.dim(d))));
    if (c.place() == Place::host) {
      if (Status s = cpu::check_isa(); !s.ok()) return s;
    }
    const double scale = c.real("scale");
    *a = Args{
        .q = c.ptr("q"),
        .k = c.ptr("k"),
        .v = c.ptr("v"),
        .pos = c.ptr<int32_t>("pos"),
        .slot = c.ptr<int32_t>("slot"),
        .length = c.ptr<int32_t>("length"),
        .prefix = c.ptr<int32_t>("prefix"),
        .page_table = c.ptr<int32_t>("page_table"),
        .k_offsets = c.ptr<int32_t>("k_offsets"),
        .sinks = c.ptr<float>("sinks"),
        .head_scale = c.ptr<float>("head_scale"),
        .slopes = c.ptr<float>("slopes"),
        .bits = c.ptr<int32_t>("bits"),
        .bits_from = c.ptr<int32_t>("bits_from"),
        .out = c.ptr("out"),
        .out_scale = c.ptr<float>("out_scale"),
        .lse = c.ptr<float>("lse"),
        .rows = c.ptr<int32_t>("rows"),
        .q_stride = c.row_stride("q"),
        .k_stride = c.row_stride("k"),
        .v_stride = c.row_stride("v"),
        .out_stride = c.row_stride("out"),
        .lse_stride = c.row_stride("lse"),
        .table_stride = c.row_stride("page_table"),
        .bits_stride = c.row_stride("bits"),
        .T = static_cast<int32_t>(c.dim("T")),
        .S = static_cast<int32_t>(S),
        .B = static_cast<int32_t>(B),
        .L = static_cast<int32_t>(L),
        .P = paged ? static_cast<int32_t>(c.dim("P")) : 0,
        .W = c["bits"].present() ? static_cast<int32_t>(std::min<int64_t>(c.dim("W"), INT32_MAX)) : 0,
        .Hq = static_cast<int32_t>(Hq),
        .Hkv = static_cast<int32_t>(Hkv),
        .D = static_cast<int32_t>(D),
        .Dv = static_cast<int32_t>(Dv),
        .k_pitch = static_cast<int32_t>(hnd ? D : c.pitch("k")),
        .v_pitch = static_cast<int32_t>(hnd ? Dv : c.pitch("v")),
        .scale = static_cast<float>(scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(D))),
        .softcap = static_cast<float>(c.real("softcap")),
        .window = static_cast<int32_t>(c.integer("window")),
        .mask = mask,
        .dtype = c["q"].dtype,
        .kv_dtype = c["k"].dtype,
        .heads_first = hnd,
        .extra = {},
    };
    uint32_t* const words = c.ptr<uint32_t>("words");
    std::memcpy(a->extra.bytes, &words, sizeof(words));
    return {};
  }

  /// As if each query saw every place: what is masked depends on contents.
  static Cost cost(const Args& a) {
    const int64_t T = a.T, e = info(a.dtype).bytes, slots = a.slot && !a.k_offsets ? (a.S < a.T ? a.S : a.T) : 1,
                  L = a.slot_capacity();
    return {.bytes = T * a.Hq * (a.D * e + a.Dv * int64_t{info(a.out_dtype()).bytes}) +
                     slots * L * a.Hkv * (int64_t{a.D} + a.Dv) * info(a.kv_dtype).bytes,
            .flops = 2 * T * a.Hq * L * (int64_t{a.D} + a.Dv)};
  }

  static Status inspect(const Call& c, const Contents& read) { return inspect_attention(c, read); }
  static void host(const Args& a, cpu::Pool& pool) { cpu::attention(a, pool); }

  using Gpu = AttentionGpu;
};

}  // namespace vivace::ops::defs
