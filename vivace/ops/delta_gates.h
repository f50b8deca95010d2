// delta_gates: what the gated delta rule forgets and corrects at each token, from two projections.
#pragma once
#include "vivace/kernels/linear/delta_gates.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void delta_gates(const kernels::DeltaGatesArgs& a, Pool& pool);
}  // namespace vivace::cpu

namespace vivace::ops::defs {

/// Ports a, b, rate and bias of a call.
inline kernels::DeltaProjections delta_projections(const Call& c) {
  return {.a = c.ptr("a"),
          .b = c.ptr("b"),
          .rate = c.ptr("rate"),
          .bias = c.ptr("bias"),
          .a_stride = c.row_stride("a"),
          .b_stride = c.row_stride("b"),
          .dtype = c["a"].dtype,
          .rate_dtype = c["rate"].dtype,
          .bias_dtype = c["bias"].dtype};
}

struct delta_gates {
  using Args = kernels::DeltaGatesArgs;
  static constexpr Port kPorts[] = {
      in("a", "T,H", "f32|bf16|f16", "how much time passes, before its bias"),
      in("b", "T,H", "=a", "how much is corrected, before the sigmoid"),
      in("rate", "H", "f32|bf16|f16", "logarithm of each head's rate"),
      in("bias", "H", "f32|bf16|f16", "added to a"),
      out("decay", "T,H", "f32", "logarithm of what the state keeps, as gated_delta takes it"),
      out("beta", "T,H", "f32", "how much of the correction is made"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "delta_gates",
      .group = "linear",
      .brief = "Decay and correction of the gated delta rule from their projections.",
      .formula =
          "x = a + bias; decay = -exp(rate) * (x if x > 20 else log(1 + exp(x))); beta = 1 / (1 + exp(-b)). All in "
          "f32.",
      .source = "Gated DeltaNet arXiv:2412.06464, Mamba-2 arXiv:2405.21060",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* args) {
    if (c.dim("H") < 1) return c.error(Code::kInvalidShape, "H must be at least 1");
    if (c.dim("T") > INT32_MAX / c.dim("H")) return c.error(Code::kInvalidShape, "T * H must be below 2^31");
    *args = Args{
        .in = delta_projections(c),
        .decay = c.ptr<float>("decay"),
        .beta = c.ptr<float>("beta"),
        .rows = c.ptr<int32_t>("rows"),
        .decay_stride = c.row_stride("decay"),
        .beta_stride = c.row_stride("beta"),
        .T = static_cast<int32_t>(c.dim("T")),
        .H = static_cast<int32_t>(c.dim("H")),
    };
    return {};
  }
  static Cost cost(const Args& a) {
    const int64_t n = int64_t{a.T} * a.H;
    return {.bytes = n * (2 * info(a.in.dtype).bytes + 8) +
                     a.H * (info(a.in.rate_dtype).bytes + info(a.in.bias_dtype).bytes),
            .flops = n * 12};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::delta_gates(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/linear/delta_gates.cuh";
    struct Key {
      DType t;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args& a, Arch) { return Key{a.in.dtype}; }
    static std::string instance(const Key& k) { return kernel_expression("delta_gates<%s>", type_name(k.t)); }
    static void shape(const Args& a, const Key&, exec::Launch* launch) {
      const int64_t n = int64_t{a.T} * a.H;
      launch->grid[0] = static_cast<uint32_t>((n + Args::kThreads - 1) / Args::kThreads);
      launch->block[0] = Args::kThreads;
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16}) visit(Key{t});
    }
  };
};

}  // namespace vivace::ops::defs
