// Which kernel a call would run: what tests search tactics with, and what reports show.
#pragma once
#include <string>

#include "vivace/ops/registry.h"

namespace vivace::ops {

/// The kernel expression that `op` picks for a checked call on a chip. Nothing is compiled, no GPU is needed.
/// Errors: those of the op's own rules; Unsupported where it has no CUDA kernel.
Result<std::string> picked_kernel(const OpRow& op, const Call& call, Arch arch);

}  // namespace vivace::ops
