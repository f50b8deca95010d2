// Entry of the policies.
#pragma once
#include "vivace/engine/policy.h"

namespace vivace::models::vla {

/// Loads the checkpoint at `path` as the policy that options.config names; with random_weights `path` may be a folder
/// or config.json alone. Errors: NotFound, CorruptData, InvalidArgument (options; another family's checkpoint),
/// InvalidShape, OutOfMemory.
Result<std::unique_ptr<engine::PolicyModel>> load_policy(const std::string& path, const engine::PolicyOptions& options);

}  // namespace vivace::models::vla
