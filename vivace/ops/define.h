// define<Op>(): turns an op's header into its row. The only place where specs meet backends.
#pragma once
#include "vivace/ops/registry.h"

namespace vivace::ops {

/// A primitive op gives: `Args` (POD), `spec`, `bind(Call, Args*)` with its cross-port rules,
/// `cost(Args)`, and `host(Args, Pool)`. A composite gives `spec` and `decompose(Call, Recorder)`.
template <class Op>
Status prepare(const Call& call, exec::Launch* launch) {
  typename Op::Args args{};
  if (Status s = Op::bind(call, &args); !s.ok()) return s;
  launch->op = Op::spec.name;
  launch->set_args(args);
  if (call.place() == Place::host) {
    launch->host = [](const void* a, cpu::Pool& pool) { Op::host(*static_cast<const typename Op::Args*>(a), pool); };
    return {};
  }
  return call.error(Code::kUnsupported, "no CUDA kernel is built into this version; move the tensors to host memory");
}

template <class Op>
Cost cost(const Call& call) {
  typename Op::Args args{};
  if (!Op::bind(call, &args).ok()) return {};
  return Op::cost(args);
}

template <class Op>
constexpr OpRow define() {
  static_assert(Op::spec.complete(), "spec needs brief, formula, source and a doc for every port and attribute");
  if constexpr (Op::spec.composite) return OpRow{&Op::spec, nullptr, nullptr, &Op::decompose};
  else return OpRow{&Op::spec, &prepare<Op>, &cost<Op>, nullptr};
}

}  // namespace vivace::ops
