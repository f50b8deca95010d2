// What composites of two ops that may run as one kernel share: the calls of the parts, their checks, and which way
// runs.
#pragma once
#include <optional>
#include <string>

#include "vivace/ops/checked.h"
#include "vivace/ops/gated_gemm.h"
#include "vivace/ops/gemm.h"
#include "vivace/ops/registry.h"

namespace vivace::ops::defs {

/// Base of such an op (`struct rms_gemm : TwoParts<rms_gemm>`), which gives, beside spec and Args:
///   first(Call), second(Call) -> const OpRow&    the parts
///   connect(Call, first, second) -> Status       binds the parts' ports and attributes, with the op's own rules across
///   ports
///   read(Call, first, second, Args*) -> Status   the arguments of the bound parts
///   Gpu::fused(Args, Arch or ChipPart) -> Result<Maybe>   key of the kernel that serves both, or none: then the parts
///   run
///   Gpu::complete(Args, Key, Target, Launch*)    all of the launch but its kernel, name and cost
template <class Op>
struct TwoParts {
  template <class Args>
  static Status bind(const Call& c, Args* a) {
    Call first(*Op::first(c).spec), second(*Op::second(c).spec);
    return bind(c, first, second, a);
  }

  static Status decompose(const Call& c, Recorder& rec) {
    const OpRow &one = Op::first(c), &two = Op::second(c);
    Call first(*one.spec), second(*two.spec);
    typename Op::Args args{};
    VV_TRY(bind(c, first, second, &args));  // what the second part refuses is known before the first has run
    if (const device::Device* device = rec.stream().device();
        device != nullptr && c.place() == Place::device && !rec.observed() && !checked()) {
      VV_ASSIGN(const auto key, Op::Gpu::fused(args, ChipPart(device->info().arch, rec.stream().partition())));
      if (key) {
        Status s = rec.issue(c, [&](const Call&, const Target& target, exec::Launch* launch) {
          return prepare(args, *key, target, launch);
        });
        if (s.code() != Code::kUnsupported) return s;
        say_parts_run(Op::spec.name, s);  // no compiler is there and no pack has it
      }
    }
    VV_TRY(of_part(one.decompose ? rec.issue(one, first) : rec.issue(first, one.prepare)));
    return of_part(rec.issue(second, two.prepare));
  }

 protected:
  /// What a part says, with the name of the op that was called before it.
  static Status of_part(Status s) { return s.ok() ? std::move(s) : std::move(s).with_context(Op::spec.name); }
  static Cost sum(const Cost& a, const Cost& b) { return {.bytes = a.bytes + b.bytes, .flops = a.flops + b.flops}; }
  /// The fused kernel for searches, which the parts have none for; Unsupported with `why` where they run.
  template <class Key>
  static Result<Key> fused_only(Result<std::optional<Key>> key, const std::string& why) {
    if (!key.ok()) return std::move(key).status();
    if (!*key) return Status(Code::kUnsupported, why);
    return **key;
  }

 private:
  template <class Args>
  static Status bind(const Call& c, Call& first, Call& second, Args* a) {
    VV_TRY(Op::connect(c, first, second));
    VV_TRY(of_part(first.check()));
    VV_TRY(of_part(second.check()));
    return of_part(Op::read(c, first, second, a));
  }
  template <class Args, class Key>
  static Status prepare(const Args& a, const Key& key, const Target& target, exec::Launch* launch) {
    static KernelTable<typename Op::Gpu> table;
    VV_ASSIGN(launch->kernel, table.get(*target.device, key));
    const Cost c = Op::cost(a);
    launch->op = Op::spec.name, launch->bytes = c.bytes, launch->flops = c.flops;
    return Op::Gpu::complete(a, key, target, launch);
  }
};

/// A part that is gemm or, by the attribute `gated`, gated_gemm. The op has ports w (M rows), out (N columns) and the
/// attribute epilogue.
struct EitherProduct {
  static const OpRow& row(const Call& c) { return c.flag("gated") ? ops::gated_gemm : ops::gemm; }
  static Status read(const Call& c, const Call& part, kernels::GemmArgs* a) {
    return c.flag("gated") ? gated_gemm::bind(part, a) : gemm::bind(part, a);
  }
  /// The rules across ports, then the activation: "epilogue" of gemm, "act" of gated_gemm.
  static Result<std::string_view> activation(const Call& c) {
    constexpr std::string_view kActivations[] = {"none", "silu", "gelu_tanh", "gelu_erf", "relu", "relu2"};
    const bool gated = c.flag("gated");
    const std::string_view epilogue = kActivations[c.integer("epilogue")];
    if (c.dim("M") != c.dim("N") * (gated ? 2 : 1))
      return c.error(Code::kInvalidShape,
                     strf("w has %ld rows, out %ld columns: wanted %s", static_cast<long>(c.dim("M")),
                          static_cast<long>(c.dim("N")), gated ? "twice as many rows, as gated=true says" : "as many"));
    if (gated && epilogue == "none")
      return c.error(Code::kInvalidArgument, "gated=true needs an epilogue; see gated_gemm");
    return epilogue;
  }
};

}  // namespace vivace::ops::defs
