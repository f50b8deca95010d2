// Show: who sees values by name while ops run one by one.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/exec/stream.h"

namespace vivace::models {

/// Sees values by name; `step` counts those of a loop, -1 outside.
using Show = std::function<Status(const std::string& name, int step, const Tensor& value)>;

/// Has `probe`, an engine::PolicyModel::Probe, see what `stream` has written, each value in host memory for its call.
inline Show host_show(exec::Stream& stream, std::function<Status(const char*, int, const Tensor&)> probe) {
  return [&stream, probe = std::move(probe), copy = std::vector<std::byte>()](const std::string& name, int step,
                                                                              const Tensor& value) mutable -> Status {
    VV_TRY(stream.synchronize());
    copy.resize(static_cast<size_t>(value.span_bytes()));
    VV_TRY(stream.copy(copy.data(), value.data, copy.size()));
    VV_TRY(stream.synchronize());
    Tensor seen = value;
    seen.data = copy.data();
    seen.place = Place::host;
    return probe(name.c_str(), step, seen);
  };
}

}  // namespace vivace::models
