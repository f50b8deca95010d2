#include "vivace/ops/registry.h"

#include "vivace/ops/all_ops.h"  // made by CMake from ops.def: includes every ops/<op>.h
#include "vivace/ops/checked.h"
#include "vivace/ops/define.h"

namespace vivace::ops {

#define OP(name) const OpRow name = define<defs::name>();
#define COMPOSITE(name) const OpRow name = define<defs::name>();
#include "vivace/ops/ops.def"
#undef OP
#undef COMPOSITE

std::span<const OpRow* const> table() {
  static constexpr const OpRow* kRows[] = {
#define OP(name) &name,
#define COMPOSITE(name) &name,
#include "vivace/ops/ops.def"
#undef OP
#undef COMPOSITE
  };
  return kRows;
}

std::span<const Alias> aliases() {
  static constexpr Alias kRows[] = {
#define ALIAS(name, op, attrs) {#name, &op, attrs},
#include "vivace/ops/aliases.def"
#undef ALIAS
  };
  return kRows;
}

const OpRow* find(std::string_view name) {
  for (const OpRow* row : table())
    if (name == row->spec->name) return row;
  return nullptr;
}

Status bind(Call& call, std::initializer_list<PortArg> ports, std::initializer_list<AttrArg> attrs) {
  for (const auto& [name, t] : ports)
    if (Status s = call.bind(name, t); !s.ok()) return s;
  for (const auto& [name, value] : attrs) {
    const double* number = std::get_if<double>(&value);
    if (Status s = number ? call.set(name, *number) : call.set(name, std::get<std::string_view>(value)); !s.ok())
      return s;
  }
  return {};
}

Status Recorder::operator()(const OpRow& op, std::initializer_list<PortArg> ports,
                            std::initializer_list<AttrArg> attrs) {
  Call call(*op.spec);
  if (Status s = bind(call, ports, attrs); !s.ok()) return s;
  return issue(op, call);
}

Status Recorder::issue(const OpRow& op, Call& call) {
  if (Status s = call.check(); !s.ok()) return s;
  if (op.decompose) return op.decompose(call, *this);
  return issue(call, op.prepare);
}

Status Recorder::issue(const Call& call,
                       const std::function<Status(const Call&, const Target&, exec::Launch*)>& prepare) {
  const Target target{stream_->device(), stream_->partition()};
  if ((call.place() == Place::device) != (target.device != nullptr))
    return call.error(Code::kInvalidDevice,
                      strf("the tensors are in %s memory, the stream runs on the %s",
                           call.place() == Place::host ? "host" : "device", target.device ? "device" : "host"));
  exec::Launch launch;
  if (Status s = prepare(call, target, &launch); !s.ok()) return s;
  if (checked()) {
    if (Status s = check_contents(call, *stream_); !s.ok()) return s;
  }
  if (target.device != nullptr && launch.grid[0] == 0) return {};  // no rows: no work, and no legal launch
  if (weights_ == Weights::ordered && call.reads_ahead()) launch.pdl = false;
  if (Status s = stream_->launch(launch); !s.ok() || !observer_) return s;
  return observer_(call);
}

}  // namespace vivace::ops
