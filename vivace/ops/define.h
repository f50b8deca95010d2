// define<Op>(): turns an op's header into its row. The only place where specs meet backends.
#pragma once
#include "vivace/base/check.h"
#include "vivace/ops/registry.h"

namespace vivace::ops {

/// A primitive op gives: `Args` (POD), `spec`, `bind(Call, Args*)` with its cross-port rules,
/// `cost(Args)` and `host(Args, Pool)`, may give `inspect(Call, Contents)` (ops/checked.h); once it runs on GPUs also a
/// struct `Gpu` with
///   kHeader                          the .cuh that holds the kernel
///   Key                              POD with ==: dtypes and policy, all that picks an instance
///   pick(Args, Arch or ChipPart) -> Result<Key>   the tactic; pure
///   instance(Key) -> string          the C++ expression of the kernel
///   shape(Args, Key, Launch*)        grid, block, shared memory
///   complete(Args, Key, Target, Launch*) -> Status   optional: what only the device can say, such as tensor maps
///   row_class(Args) -> int           optional: the invariance class of a call's rows; without it there is one
///   general(Key*) -> bool            optional: turns a key made for one use into one of the same bits that packs hold
///   workspace(Args, Key) -> int64_t  optional: bytes of device memory that the library holds for it; without it there
///   are none instances(Arch, visit)           the keys that gates and packs compile: every tactic once
/// A composite gives `spec` and `decompose(Call, Recorder)`; one that has a kernel of its own also Args, bind, cost and
/// a Gpu with kHeader, Key, pick, instance, row_class and instances, and issues it in decompose(); of two parts:
/// ops/two_parts.h.
template <class Op>
concept OnGpu = requires { typename Op::Gpu; };

template <class Op>
Status prepare_gpu(const Call& call, const Target& target, const typename Op::Args& args, exec::Launch* launch) {
  if constexpr (OnGpu<Op>) {
    static KernelTable<typename Op::Gpu> table;
    Result<typename Op::Gpu::Key> key = Op::Gpu::pick(args, target.arch());
    if (!key.ok()) return std::move(key).status().with_context(Op::spec.name);
    Result<const device::Kernel*> kernel = table.get(*target.device, *key);
    if constexpr (requires { Op::Gpu::general(&*key); }) {  // without a compiler, what packs hold
      if (!kernel.ok() && kernel.status().code() == Code::kUnsupported && Op::Gpu::general(&*key))
        kernel = table.get(*target.device, *key);
    }
    if (!kernel.ok()) return std::move(kernel).status().with_context(Op::spec.name);
    launch->kernel = *kernel;
    Op::Gpu::shape(args, *key, launch);
    if constexpr (requires { Op::Gpu::complete(args, *key, target, launch); }) {
      if (Status s = Op::Gpu::complete(args, *key, target, launch); !s.ok())
        return std::move(s).with_context(Op::spec.name);
    }
    return {};
  } else {
    return call.error(Code::kUnsupported, "it has no CUDA kernel; move the tensors to host memory");
  }
}

template <class Op>
Status prepare(const Call& call, const Target& target, exec::Launch* launch) {
  typename Op::Args args{};
  if (Status s = Op::bind(call, &args); !s.ok()) return s;
  const Cost cost = Op::cost(args);
  launch->bytes = cost.bytes;
  launch->flops = cost.flops;
  launch->op = Op::spec.name;
  launch->set_args(args);
  if (target.device != nullptr) return prepare_gpu<Op>(call, target, args, launch);
  launch->host = [](const void* a, cpu::Pool& pool) { Op::host(*static_cast<const typename Op::Args*>(a), pool); };
  return {};
}

template <class Op>
std::vector<Instance> instances(Arch arch) {
  std::vector<Instance> all;
  if constexpr (OnGpu<Op>)
    Op::Gpu::instances(
        arch, [&](const typename Op::Gpu::Key& key) { all.push_back({Op::Gpu::kHeader, Op::Gpu::instance(key)}); });
  return all;
}

template <class Op>
Cost cost(const Call& call) {
  typename Op::Args args{};
  if (!Op::bind(call, &args).ok()) return {};
  return Op::cost(args);
}

template <class Op>
int row_class(const Call& call) {
  if constexpr (requires(typename Op::Args args) { Op::Gpu::row_class(args); }) {
    typename Op::Args args{};
    if (Op::bind(call, &args).ok()) return Op::Gpu::row_class(args);
  }
  return 0;
}

/// Device memory of the library's that a call works in, beside its ports.
template <class Op>
Result<int64_t> workspace(const Call& call, Arch arch) {
  if constexpr (OnGpu<Op>) {
    typename Op::Args args{};
    VV_TRY(Op::bind(call, &args));
    VV_ASSIGN(const typename Op::Gpu::Key key, Op::Gpu::pick(args, arch));
    if constexpr (requires { Op::Gpu::workspace(args, key); }) return Op::Gpu::workspace(args, key);
    return 0;
  } else {
    return call.error(Code::kUnsupported, "it has no CUDA kernel");
  }
}

template <class Op>
constexpr auto inspector() -> Status (*)(const Call&, const Contents&) {
  if constexpr (requires { &Op::inspect; }) return &Op::inspect;
  else return nullptr;
}

template <class Op>
constexpr bool needs_device() {
  if constexpr (OnGpu<Op>)
    return requires(typename Op::Args args, typename Op::Gpu::Key key, const Target& target, exec::Launch* launch) {
      Op::Gpu::complete(args, key, target, launch);
    };
  return false;
}

template <class Op>
constexpr OpRow define() {
  static_assert(Op::spec.complete(), "spec needs brief, formula, source and a doc for every port and attribute");
  if constexpr (Op::spec.composite && OnGpu<Op>)
    return OpRow{.spec = &Op::spec,
                 .cost = &cost<Op>,
                 .instances = &instances<Op>,
                 .row_class = &row_class<Op>,
                 .needs_device = true,
                 .decompose = &Op::decompose};
  else if constexpr (Op::spec.composite) return OpRow{.spec = &Op::spec, .decompose = &Op::decompose};
  else
    return OpRow{.spec = &Op::spec,
                 .prepare = &prepare<Op>,
                 .cost = &cost<Op>,
                 .instances = &instances<Op>,
                 .row_class = &row_class<Op>,
                 .workspace = &workspace<Op>,
                 .needs_device = needs_device<Op>(),
                 .inspect = inspector<Op>()};
}

}  // namespace vivace::ops
