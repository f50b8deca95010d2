// Entry of the policies.
#pragma once
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/policy.h"

namespace vivace::models::vla {

/// Builds the policy that options.config names. Errors: NotFound, CorruptData, InvalidArgument (options; another
/// family's checkpoint), InvalidShape, OutOfMemory.
Result<std::unique_ptr<engine::PolicyModel>> load_policy(engine::Checkpoint checkpoint,
                                                         const engine::PolicyOptions& options);

/// The family of a checkpoint, "pi05" say; empty where it is none of these.
std::string policy_family(const engine::Checkpoint& checkpoint);

}  // namespace vivace::models::vla
