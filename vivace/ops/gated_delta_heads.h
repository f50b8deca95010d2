// gated_delta_heads: gated_delta and the gated norm of its heads. For a few tokens one kernel, whose blocks of a head
// hand each other their sums of squares; the bits are those of gated_delta and gate_heads, one after the other.
#pragma once
#include "vivace/kernels/linear/gated_delta_heads.h"
#include "vivace/ops/gate_heads.h"
#include "vivace/ops/gated_delta.h"
#include "vivace/ops/two_parts.h"

namespace vivace::ops::defs {

struct gated_delta_heads : TwoParts<gated_delta_heads> {
  static constexpr Port kPorts[] = {
      in("q", "T,Hk,D", "f32|bf16|f16", "queries, see gated_delta"),
      in("k", "T,Hk,D", "=q", "keys"),
      in("v", "T,Hv,Dv", "=q", "values"),
      opt_in("decay", "T,Hv", "f32", "see gated_delta"),
      opt_in("beta", "T,Hv", "f32", "see gated_delta"),
      opt_in("a", "T,Hv", "=q", "see gated_delta"),
      opt_in("b", "T,Hv", "=q", "see gated_delta"),
      opt_in("rate", "Hv", "f32|bf16|f16", "see gated_delta"),
      opt_in("bias", "Hv", "f32|bf16|f16", "see gated_delta"),
      inout("state", "S,Hv,D,Dv", "f32", "the states of S sequences"),
      offsets_port(),
      state_slot_port(),
      fresh_port(),
      in("gate", "T,Hv,G", "=q", "argument of the activation, see gate_heads"),
      opt_in("weight", "Dv", "f32|bf16|f16", "of the norm of each head, see gate_heads"),
      out("out", "T,Hv,Dv", "=q", "gated heads; of tokens in no sequence it means nothing"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {
      real("scale", 0, "factor of q; 0 means 1 / sqrt(D)"),
      boolean("normalize", false, "q and k are divided by their length, see gated_delta"),
      boolean("frozen", false, "state is read and left as it is"),
      choice("act", "sigmoid|silu", "activation of the gate"),
      real("eps", 1e-6, "added to the mean square"),
  };
  static constexpr OpSpec spec{
      .name = "gated_delta_heads",
      .group = "linear",
      .brief = "Gated delta rule and the gated norm of its heads, as one op.",
      .formula =
          "out = gated_delta(q, k, v, ..., state), rounded; out = gate_heads(out, gate, weight). Rounding points are "
          "those of the two, whether one kernel runs or two.",
      .source = "Gated DeltaNet arXiv:2412.06464",
      .ports = kPorts,
      .attrs = kAttrs,
      .composite = true,
  };

  using Args = kernels::GatedDeltaHeadsArgs;
  static Cost cost(const Args& a) {
    Cost c = sum(gated_delta::cost(a.delta), gate_heads::cost(a.heads));
    c.bytes -= 2 * int64_t{a.heads.T} * a.heads.N * a.heads.D * info(a.heads.dtype).bytes;  // neither left nor read
    return c;
  }

  static const OpRow& first(const Call&) { return ops::gated_delta; }
  static const OpRow& second(const Call&) { return ops::gate_heads; }
  static Status connect(const Call& c, Call& first, Call& second) {
    for (const char* port :
         {"q", "k", "v", "decay", "beta", "a", "b", "rate", "bias", "state", "offsets", "slot", "fresh", "out", "rows"})
      VV_TRY(first.bind(port, c[port]));
    for (const char* attr : {"scale", "normalize", "frozen"}) VV_TRY(first.set(attr, c.real(attr)));
    return of_part(ops::bind(
        second,
        {{"x", c["out"]}, {"gate", c["gate"]}, {"weight", c["weight"]}, {"out", c["out"]}, {"rows", c["rows"]}},
        {{"act", c.integer("act") == 1 ? "silu" : "sigmoid"}, {"eps", c.real("eps")}}));
  }
  static Status read(const Call&, const Call& first, const Call& second, Args* a) {
    VV_TRY(gated_delta::bind(first, &a->delta));
    return gate_heads::bind(second, &a->heads);
  }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/linear/gated_delta_heads.cuh";
    using Policy = kernels::GatedDeltaPolicy;
    static constexpr Policy kTile = {32, 4, 32};
    static constexpr int kColumns = kTile.columns * kernels::GatedDeltaHeadsArgs::kBlocks;  // of a head: one cluster
    struct Key {
      DType t;
      bool operator==(const Key&) const = default;
    };
    using Maybe = std::optional<Key>;

    static Result<Maybe> fused(const Args& a, Arch arch) {
      VV_ASSIGN(const gated_delta::Gpu::Key apart, gated_delta::Gpu::pick(a.delta, arch));
      const bool serves = chip(arch).tma && a.delta.T > 0 && !apart.chunked && apart.p == kTile &&
                          a.delta.Dv == kColumns && info(a.delta.dtype).bytes == 2 && a.heads.weight != nullptr &&
                          a.heads.G == a.heads.D;
      return serves ? Maybe(Key{a.delta.dtype}) : Maybe();
    }
    static std::string instance(const Key& k) {
      return kernel_expression("gated_delta_heads<%s, vivace::kernels::GatedDeltaPolicy{%d, %d, %d}>", type_name(k.t),
                               kTile.columns, kTile.lanes, kTile.items);
    }
    static Status complete(const Args& a, const Key& k, const Target&, exec::Launch* launch) {
      gated_delta::Gpu::shape(a.delta, {k.t, kTile}, launch);
      launch->cluster = kernels::GatedDeltaHeadsArgs::kBlocks;
      launch->set_args(a);
      return {};
    }
    static int row_class(const Args& a) { return gated_delta::Gpu::row_class(a.delta); }
    /// The kernel of the fused way, for searches; Unsupported where the parts run.
    static Result<Key> pick(const Args& a, Arch arch) {
      return fused_only(fused(a, arch), "gated_delta and gate_heads run one after the other: one kernel serves few "
                                        "tokens of 16 bits on Hopper, D above 64 and up to 128, Dv 128, a weight");
    }
    template <class Visit>
    static void instances(Arch arch, Visit&& visit) {
      if (!chip(arch).tma) return;
      for (const DType t : {DType::bf16, DType::f16}) visit(Key{t});
    }
  };
};

}  // namespace vivace::ops::defs
