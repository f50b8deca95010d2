// advance: what ends a decode step on the device, so that the next one needs nothing from the host.
#pragma once
#include "vivace/kernels/sampling/advance.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void advance(const kernels::AdvanceArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct advance {
  using Args = kernels::AdvanceArgs;
  static constexpr Port kPorts[] = {
      in("token", "T", "i32", "tokens that were drawn"),
      opt_in("logprob", "T", "f32", "their log-probabilities; present exactly with ring_logprob"),
      opt_inout("fed", "T", "i32", "tokens that the next step is fed: become those drawn"),
      opt_inout("pos", "T", "i32", "their positions: move on by one"),
      opt_inout("step", "T", "i32", "counters of the draws: move on by one"),
      inout("turn", "1", "i32",
            "row of the rings that is written, modulo N; moves on by one also where no row is valid"),
      inout("ring", "N,C", "i32", "tokens of the last N steps, C >= T; memory that device and host reach will do"),
      opt_inout("ring_logprob", "N,C", "f32", "log-probabilities of the last N steps"),
      rows_port(),
  };
  static constexpr OpSpec spec{
      .name = "advance",
      .group = "sampling",
      .brief = "Records drawn tokens in a ring and moves their rows one position on.",
      .formula =
          "p = turn mod N; ring[p, t] = token[t]; ring_logprob[p, t] = logprob[t]; fed[t] = token[t]; pos[t] += 1; "
          "step[t] += 1; "
          "once for all rows: turn = (p + 1) mod N",
      .source = "bookkeeping of a decode step; definition ours",
      .ports = kPorts,
      .attrs = {},
  };

  static Status bind(const Call& c, Args* a) {
    if (c["logprob"].present() != c["ring_logprob"].present())
      return c.error(Code::kInvalidArgument, strf("logprob is %s and ring_logprob %s: they come together",
                                                  c["logprob"].present() ? "given" : "absent",
                                                  c["ring_logprob"].present() ? "given" : "absent"));
    if (c.dim("N") < 1 || c.dim("C") < c.dim("T"))
      return c.error(Code::kInvalidShape,
                     strf("ring is [%ld, %ld], wanted [1 or more, T = %ld or more]", static_cast<long>(c.dim("N")),
                          static_cast<long>(c.dim("C")), static_cast<long>(c.dim("T"))));
    *a = Args{
        .token = c.ptr<int32_t>("token"),
        .logprob = c.ptr<float>("logprob"),
        .fed = c.ptr<int32_t>("fed"),
        .pos = c.ptr<int32_t>("pos"),
        .step = c.ptr<int32_t>("step"),
        .turn = c.ptr<int32_t>("turn"),
        .ring = c.ptr<int32_t>("ring"),
        .ring_logprob = c.ptr<float>("ring_logprob"),
        .rows = c.ptr<int32_t>("rows"),
        .ring_stride = c.row_stride("ring"),
        .logprob_stride = c.row_stride("ring_logprob"),
        .T = static_cast<int32_t>(c.dim("T")),
        .N = static_cast<int32_t>(c.dim("N")),
    };
    return {};
  }

  static Cost cost(const Args& a) {
    const int64_t updated = 8 * ((a.pos != nullptr) + int64_t{a.step != nullptr}),
                  once = 8 + 4 * int64_t{a.fed != nullptr} + 8 * int64_t{a.logprob != nullptr};
    return {.bytes = a.T * (updated + once) + 8, .flops = 0};
  }

  static void host(const Args& a, cpu::Pool& pool) { cpu::advance(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/sampling/advance.cuh";
    struct Key {
      kernels::AdvancePolicy p;
      bool operator==(const Key&) const = default;
    };
    static Result<Key> pick(const Args&, Arch) { return Key{{128}}; }
    static std::string instance(const Key& k) {
      return kernel_expression("advance<vivace::kernels::AdvancePolicy{%d}>", k.p.threads);
    }
    static void shape(const Args&, const Key& k, exec::Launch* launch) {
      launch->grid[0] = 1;  // also for T = 0: the turn moves
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) { visit(Key{{128}}); }
  };
};

}  // namespace vivace::ops::defs
