// A user's own kernel: the source to compile, and the types of the kernel's parameters.
#pragma once
#include <string>
#include <vector>

#include "vivace/jit/binary.h"

namespace vivace::jit {

/// A Source for `text`, with `kernel` (an extern "C" name or an expression such as "ns::k<float>")
/// as its entry. The text is trusted as the local program is; never pass text that came over a
/// network. `label` names it in errors.
Source user_source(const std::string& label, const std::string& text, const std::string& kernel, Arch arch);

/// The kernel's parameter types as C++ spells them, e.g. {"float const*", "int"}, read from a binary
/// compiled from user_source(). Errors: NotFound, CorruptData.
Result<std::vector<std::string>> parameter_types(const Binary& binary, const std::string& kernel);

}  // namespace vivace::jit
