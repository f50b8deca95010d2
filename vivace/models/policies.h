// Entry of robots' policies: the family is found here.
#pragma once
#include "vivace/engine/policy.h"

namespace vivace::models {

/// Loads the checkpoint at `path` as the policy that options.config names, or, empty or "auto", as what it is; with
/// random_weights `path` may be a folder or config.json alone. Errors: NotFound, CorruptData, Unsupported,
/// InvalidArgument (options; another family's checkpoint), InvalidShape, OutOfMemory.
Result<std::unique_ptr<engine::PolicyModel>> load_policy(const std::string& path, const engine::PolicyOptions& options);

/// The family of the checkpoint at `path`, "pi05" say; empty where it is no policy. Errors: those of
/// Checkpoint::open().
Result<std::string> policy_family(const std::string& path);

}  // namespace vivace::models
