#include "vivace/ops/tactic.h"

#include "vivace/base/check.h"
#include "vivace/ops/all_ops.h"
#include "vivace/ops/define.h"

namespace vivace::ops {
namespace {

template <class Op>
Result<std::string> picked(const Call& call, Arch arch) {
  if constexpr (OnGpu<Op>) {
    typename Op::Args args{};
    VV_TRY(Op::bind(call, &args));
    VV_ASSIGN(const typename Op::Gpu::Key key, Op::Gpu::pick(args, arch));
    return Op::Gpu::instance(key);
  }
  return call.error(Code::kUnsupported, Op::spec.composite ? "a composite op runs the kernels of its parts"
                                                           : "it has no CUDA kernel of its own");
}

}  // namespace

Result<std::string> picked_kernel(const OpRow& op, const Call& call, Arch arch) {
#define OP(name) if (&op == &ops::name) return picked<defs::name>(call, arch);
#define COMPOSITE(name) if (&op == &ops::name) return picked<defs::name>(call, arch);
#include "vivace/ops/ops.def"
#undef OP
#undef COMPOSITE
  return call.error(Code::kInternal, "it is not in the table");
}

}  // namespace vivace::ops
