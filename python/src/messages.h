// openpi's messages <-> Python objects.
#pragma once
#include <nanobind/nanobind.h>

#include <span>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::python {

/// dicts, lists, numbers, texts, bytes and arrays as a message. Errors: InvalidArgument, InvalidDType, InvalidLayout,
/// LimitExceeded.
Status pack(nanobind::handle value, std::vector<std::byte>* out);
/// A message as such objects; raises Message::read()'s errors.
nanobind::object unpack(std::span<const std::byte> message);

void add_messages(nanobind::module_& m);

}  // namespace vivace::python
