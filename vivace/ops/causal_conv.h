// causal_conv: a short convolution along tokens, each channel its own, with state.
#pragma once
#include "vivace/kernels/linear/causal_conv.h"
#include "vivace/ops/gpu.h"
#include "vivace/ops/sequences.h"

namespace vivace::cpu {
class Pool;
void causal_conv(const kernels::CausalConvArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct causal_conv {
  using Args = kernels::CausalConvArgs;
  static constexpr int kMaxTaps = 8;
  static constexpr Port kPorts[] = {
      in("x", "T,C", "f32|bf16|f16", "inputs"),
      in("weight", "C,K", "=x", "taps of each channel; the last meets the token itself"),
      opt_in("bias", "C", "=x", "bias of each channel"),
      inout("state", "S,P,C", "f32", "the last P = K - 1 inputs of S sequences, oldest first"),
      offsets_port(),
      state_slot_port(),
      fresh_port(),
      out("out", "T,C", "=x", "outputs"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      choice("act", "none|silu", "activation of the sum"),
      boolean("frozen", false, "state is read and left as it is: tokens that may yet be taken back"),
  };
  static constexpr OpSpec spec{
      .name = "causal_conv",
      .group = "linear",
      .brief = "Causal depthwise convolution along the tokens of sequences, with the last inputs kept as state.",
      .formula =
          "out_t = round(act(bias + sum_k weight_k x_{t - (K - 1) + k})), f32; inputs before the sequence's first "
          "token are its row of state, or zeros; "
          "its last K - 1 inputs are left there unless frozen. Tokens in no sequence are not written.",
      .source = "Mamba arXiv:2312.00752",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const long K = c.dim("K");
    if (K < 2 || K > kMaxTaps)
      return c.error(Code::kUnsupported, strf("weight must have 2 to %d taps, got %ld", kMaxTaps, K));
    if (c.dim("P") != K - 1)
      return c.error(Code::kInvalidShape, strf("port state holds P = K - 1 = %ld inputs of each sequence, got %ld",
                                               K - 1, static_cast<long>(c.dim("P"))));
    if (c.dim("C") > INT32_MAX / 2)
      return c.error(Code::kInvalidShape, strf("C = %ld is above 2^30", static_cast<long>(c.dim("C"))));
    kernels::Sequences sequences;
    VV_TRY(bind_sequences(c, &sequences));
    *a = Args{
        .x = c.ptr("x"),
        .weight = c.ptr("weight"),
        .bias = c.ptr("bias"),
        .state = c.ptr<float>("state"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .sequences = sequences,
        .x_stride = c.row_stride("x"),
        .weight_stride = c.row_stride("weight"),
        .state_stride = c.row_stride("state"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .C = static_cast<int32_t>(c.dim("C")),
        .K = static_cast<int32_t>(K),
        .silu = c.integer("act") == 1,
        .frozen = c.flag("frozen"),
        .dtype = c["x"].dtype,
    };
    return {};
  }
  static Cost cost(const Args& a) {
    const int64_t e = info(a.dtype).bytes, states = a.sequences.N < a.T ? a.sequences.N : a.T;
    return {.bytes = 2 * int64_t{a.T} * a.C * e + int64_t{a.C} * a.K * e + states * (a.K - 1) * int64_t{a.C} * 4,
            .flops = 2 * int64_t{a.T} * a.C * a.K};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::causal_conv(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/linear/causal_conv.cuh";
    using Policy = kernels::CausalConvPolicy;
    struct Key {
      DType t;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr int kMany = 256;  // tokens from which on a thread takes several

    static Result<Key> pick(const Args& a, Arch) {
      const int vec = a.dtype == DType::f32 || a.T < kMany ? 4 : 8;
      const bool wide = a.C % vec == 0 && vectorizable(a.x, a.x_stride, a.dtype, vec) &&
                        vectorizable(a.out, a.out_stride, a.dtype, vec) &&
                        vectorizable(a.state, a.state_stride, DType::f32, vec);
      return Key{a.dtype, {128, wide ? vec : 1, a.T >= kMany ? 16 : 1, a.K}};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("causal_conv<%s, vivace::kernels::CausalConvPolicy{%d, %d, %d, %d}>", type_name(k.t),
                               k.p.threads, k.p.vec, k.p.tokens, k.p.taps);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int64_t channels = int64_t{k.p.threads} * k.p.vec, slices = (a.C + channels - 1) / channels;
      launch->grid[0] = static_cast<uint32_t>((a.T + k.p.tokens - 1) / k.p.tokens * slices);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    /// The taps that models have; others compile when they come.
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const int tokens : {1, 16})
          for (const int vec : {t == DType::f32 || tokens == 1 ? 4 : 8, 1})
            for (const int taps : {3, 4}) visit(Key{t, {128, vec, tokens, taps}});
    }
  };
};

}  // namespace vivace::ops::defs
