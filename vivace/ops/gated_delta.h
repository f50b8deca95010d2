// gated_delta: linear attention whose state forgets and corrects itself.
#pragma once
#include <cmath>

#include "vivace/kernels/linear/gated_delta.h"
#include "vivace/ops/delta_gates.h"
#include "vivace/ops/sequences.h"

namespace vivace::cpu {
class Pool;
void gated_delta(const kernels::GatedDeltaArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct gated_delta {
  using Args = kernels::GatedDeltaArgs;
  static constexpr int kMaxDim = 512;
  static constexpr Port kPorts[] = {
      in("q", "T,Hk,D", "f32|bf16|f16", "queries"),
      in("k", "T,Hk,D", "=q", "keys"),
      in("v", "T,Hv,Dv", "=q", "values; value head h belongs to key head h / (Hv / Hk)"),
      opt_in("decay", "T,Hv", "f32", "logarithm of what the state keeps at each token; absent means 0"),
      opt_in("beta", "T,Hv", "f32", "how much of the correction is made; absent means 1"),
      opt_in("a", "T,Hv", "=q", "with b, rate and bias: what decay and beta are made of instead, see delta_gates"),
      opt_in("b", "T,Hv", "=q", "see a"),
      opt_in("rate", "Hv", "f32|bf16|f16", "see a"),
      opt_in("bias", "Hv", "f32|bf16|f16", "see a"),
      inout("state", "S,Hv,D,Dv", "f32", "the states of S sequences"),
      offsets_port(),
      state_slot_port(),
      fresh_port(),
      out("out", "T,Hv,Dv", "=q", "what the queries read"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      real("scale", 0, "factor of q; 0 means 1 / sqrt(D)"),
      boolean("normalize", false, "q and k are divided by their length: x / sqrt(sum x^2 + 1e-6)"),
      boolean("frozen", false, "state is read and left as it is: tokens that may yet be taken back"),
  };
  static constexpr OpSpec spec{
      .name = "gated_delta",
      .group = "linear",
      .brief = "Gated delta rule: linear attention with a decaying state, for prefill and decode.",
      .formula =
          "for each token of a sequence and value head: S = exp(decay) S; u = beta (v - S^T k); S = S + k u^T; out = "
          "round(S^T (scale q)), in f32; "
          "decay and beta are those of delta_gates(a, b, rate, bias) where these are given. "
          "S begins as the sequence's row of state, or zeros, and is left there unless frozen. Tokens in no sequence "
          "are not written. On a GPU prompts in bf16 may go by chunks of "
          "tokens: then S, u and q k^T enter products rounded to 16 bits.",
      .source = "Gated DeltaNet arXiv:2412.06464",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    const long Hk = c.dim("Hk"), Hv = c.dim("Hv"), D = c.dim("D"), Dv = c.dim("Dv");
    if (Hk < 1 || Hv % Hk != 0)
      return c.error(Code::kInvalidShape, strf("Hv must be a multiple of Hk, got %ld and %ld", Hv, Hk));
    if (D < 1 || Dv < 1 || D > kMaxDim || Dv > kMaxDim)
      return c.error(Code::kUnsupported, strf("head sizes must be in [1, %d], got D %ld and Dv %ld", kMaxDim, D, Dv));
    const bool made = c["a"].present();
    for (const char* port : {"b", "rate", "bias"})
      if (c[port].present() != made)
        return c.error(Code::kInvalidArgument,
                       strf("ports a, b, rate and bias come together: %s is missing", made ? port : "a"));
    if (made && (c["decay"].present() || c["beta"].present()))
      return c.error(Code::kInvalidArgument, "decay and beta are given, or made of a, b, rate and bias: not both");
    kernels::Sequences sequences;
    VV_TRY(bind_sequences(c, &sequences));
    const double scale = c.real("scale");
    *a = Args{
        .q = c.ptr("q"),
        .k = c.ptr("k"),
        .v = c.ptr("v"),
        .decay = c.ptr<float>("decay"),
        .beta = c.ptr<float>("beta"),
        .gates = delta_projections(c),
        .state = c.ptr<float>("state"),
        .out = c.ptr("out"),
        .rows = c.ptr<int32_t>("rows"),
        .sequences = sequences,
        .q_stride = c.row_stride("q"),
        .k_stride = c.row_stride("k"),
        .v_stride = c.row_stride("v"),
        .decay_stride = c.row_stride("decay"),
        .beta_stride = c.row_stride("beta"),
        .state_stride = c.row_stride("state"),
        .out_stride = c.row_stride("out"),
        .T = static_cast<int32_t>(c.dim("T")),
        .Hk = static_cast<int32_t>(Hk),
        .Hv = static_cast<int32_t>(Hv),
        .D = static_cast<int32_t>(D),
        .Dv = static_cast<int32_t>(Dv),
        .scale = static_cast<float>(scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(D))),
        .normalize = c.flag("normalize"),
        .frozen = c.flag("frozen"),
        .dtype = c["q"].dtype,
    };
    return {};
  }
  static Cost cost(const Args& a) {
    const int64_t e = info(a.dtype).bytes, T = a.T, states = a.sequences.N < a.T ? a.sequences.N : a.T;
    return {.bytes = T * (2 * a.Hk * int64_t{a.D} + 2 * a.Hv * int64_t{a.Dv}) * e +
                     2 * states * a.Hv * int64_t{a.D} * a.Dv * 4,
            .flops = T * a.Hv * int64_t{a.D} * a.Dv * 7};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::gated_delta(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/linear/gated_delta.cuh";
    using Policy = kernels::GatedDeltaPolicy;
    using Chunks = kernels::GatedDeltaChunks;
    struct Key {
      DType t;
      Policy p;
      bool chunked = false;  // chunks instead
      Chunks chunks = {};
      bool operator==(const Key&) const = default;
    };
    /// Prompts in bf16 go by chunks, everything else token by token: another class of rows.
    static int row_class(const Args& a) {
      const bool aligned = vectorizable(a.q, a.q_stride, a.dtype, 8) && vectorizable(a.k, a.k_stride, a.dtype, 8) &&
                           vectorizable(a.v, a.v_stride, a.dtype, 8) && vectorizable(a.out, a.out_stride, a.dtype, 2);
      return a.dtype == DType::bf16 && (a.D == 64 || a.D == 96 || a.D == 128) && a.Dv % 8 == 0 && aligned &&
                     a.T >= 32 * int64_t{a.sequences.N}
                 ? 1
                 : 0;
    }
    static constexpr bool holds_chunks(Arch arch) {
      return chip(arch).sm_smem_kib >= 164;
    }
    // A state's rows over 4 to 32 threads: 16 or 32 in registers each, so that one head fills four blocks.
    static constexpr Policy kTactics[] = {{32, 4, 16}, {32, 4, 32}, {16, 8, 32}, {8, 32, 16}};

    static Result<Key> pick(const Args& a, Arch arch) {
      if (row_class(a) == 1 && holds_chunks(arch)) return Key{a.dtype, {}, true, {a.D}};
      for (const Policy& p : kTactics)
        if (a.D <= p.lanes * p.items) return Key{a.dtype, p};
      return Status(Code::kInternal, "bind lets no such head through");
    }
    static std::string instance(const Key& k) {
      if (k.chunked) return kernel_expression("gated_delta_chunks<vivace::kernels::GatedDeltaChunks{%d}>", k.chunks.d);
      return kernel_expression("gated_delta<%s, vivace::kernels::GatedDeltaPolicy{%d, %d, %d}>", type_name(k.t),
                               k.p.columns, k.p.lanes, k.p.items);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int columns = k.chunked ? Chunks::kColumns : k.p.columns;
      launch->grid[0] =
          a.T == 0 ? 0 : static_cast<uint32_t>(int64_t{a.sequences.N} * a.Hv * ((a.Dv + columns - 1) / columns));
      launch->block[0] = static_cast<uint32_t>(k.chunked ? Chunks::kThreads : k.p.threads());
      launch->smem_bytes = k.chunked ? static_cast<uint32_t>(k.chunks.smem()) : 0;
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      if (holds_chunks(arch))
        for (const int d : {64, 96, 128}) visit(Key{DType::bf16, {}, true, {d}});
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const Policy& p : kTactics) visit(Key{t, p});
    }
  };
};

}  // namespace vivace::ops::defs
