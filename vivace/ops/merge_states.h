// merge_states: attention over several runs of keys made one.
#pragma once
#include "vivace/kernels/attention/merge_states.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void merge_states(const kernels::MergeStatesArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct merge_states {
  using Args = kernels::MergeStatesArgs;
  static constexpr Port kPorts[] = {
      in("v", "T,N,Hq,Dv", "f32|bf16|f16", "outputs of attention over N disjoint runs of keys"),
      in("s", "T,N,Hq", "f32", "their log-sum-exp"),
      opt_in("v2", "T,Hq,Dv", "=v", "one more output, with s2"),
      opt_in("s2", "T,Hq", "f32", "its log-sum-exp"),
      out("out", "T,Hq,Dv", "=v", "the output over all the keys", "v2"),
      opt_out("lse", "T,Hq", "f32", "the log-sum-exp over all the keys", "s2"),
      rows_port(),
  };
  static constexpr Attr kAttrs[] = {boolean("base2", false, "s, s2 and lse are logarithms to base 2")};
  static constexpr OpSpec spec{
      .name = "merge_states",
      .group = "attention",
      .brief = "Merges attention over disjoint runs of keys: split keys, a shared prefix, a draft tree.",
      .formula =
          "m = max s; w_n = exp(s_n - m); out = round(sum w_n v_n / sum w_n); lse = m + log sum w_n, in f32; what a "
          "state of weight 0 holds does not matter; "
          "where every s is -inf: out 0, lse -inf. With base2 exp2 and log2.",
      .source = "online softmax arXiv:1805.02867; shared prefixes arXiv:2402.05099",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    if (c["v2"].present() != c["s2"].present()) return c.error(Code::kInvalidArgument, "ports v2 and s2 go together");
    for (const char* d : {"T", "N", "Hq", "Dv"})
      if (c.dim(d) > INT32_MAX)
        return c.error(Code::kInvalidShape, strf("%s = %ld is above 2^31 - 1", d, static_cast<long>(c.dim(d))));
    if (c.dim("Dv") < 1) return c.error(Code::kInvalidShape, "Dv is 0");
    *a = Args{
        .v = c.ptr("v"),
        .s = c.ptr<float>("s"),
        .v2 = c.ptr("v2"),
        .s2 = c.ptr<float>("s2"),
        .out = c.ptr("out"),
        .lse = c.ptr<float>("lse"),
        .rows = c.ptr<int32_t>("rows"),
        .v_stride = c.row_stride("v"),
        .s_stride = c.row_stride("s"),
        .v2_stride = c.row_stride("v2"),
        .s2_stride = c.row_stride("s2"),
        .out_stride = c.row_stride("out"),
        .lse_stride = c.row_stride("lse"),
        .T = static_cast<int32_t>(c.dim("T")),
        .N = static_cast<int32_t>(c.dim("N")),
        .Hq = static_cast<int32_t>(c.dim("Hq")),
        .Dv = static_cast<int32_t>(c.dim("Dv")),
        .base2 = c.flag("base2"),
        .dtype = c["v"].dtype,
    };
    return {};
  }
  static Cost cost(const Args& a) {
    const int64_t heads = int64_t{a.T} * a.Hq, states = a.N + (a.v2 != nullptr ? 1 : 0);
    return {.bytes = heads * ((states + 1) * a.Dv * info(a.dtype).bytes + states * 4),
            .flops = 2 * heads * states * a.Dv};
  }
  static void host(const Args& a, cpu::Pool& pool) { cpu::merge_states(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/attention/merge_states.cuh";
    using Policy = kernels::MergeStatesPolicy;
    struct Key {
      DType t;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactics[] = {
        {128, 8}, {128, 4}, {128, 1}};  // 16 bytes an access for 16-bit types and f32; odd sizes

    static Result<Key> pick(const Args& a, Arch) {
      const int vec = a.dtype == DType::f32 ? 4 : 8;
      const bool wide = a.Dv % vec == 0 && vectorizable(a.v, a.v_stride, a.dtype, vec) &&
                        vectorizable(a.v2, a.v2_stride, a.dtype, vec) &&
                        vectorizable(a.out, a.out_stride, a.dtype, vec);
      return Key{a.dtype, kTactics[!wide ? 2 : vec == 8 ? 0 : 1]};
    }
    static std::string instance(const Key& k) {
      return kernel_expression("merge_states<%s, vivace::kernels::MergeStatesPolicy{%d, %d}>", type_name(k.t),
                               k.p.threads, k.p.vec);
    }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      const int heads = k.p.heads(a.Dv);
      launch->grid[0] = static_cast<uint32_t>(int64_t{a.T} * ((a.Hq + heads - 1) / heads));
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const Policy& p : kTactics)
          if (p.vec == 1 || (p.vec == 4) == (t == DType::f32)) visit(Key{t, p});
    }
  };
};

}  // namespace vivace::ops::defs
