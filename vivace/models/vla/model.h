// Entry of the policies.
#pragma once
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/policy.h"
#include "vivace/models/vla/config.h"

namespace vivace::models::vla {

/// Builds the policy that options.config names. Errors: NotFound, CorruptData, InvalidArgument (options; another
/// family's checkpoint), InvalidShape, OutOfMemory.
Result<std::unique_ptr<engine::PolicyModel>> load_policy(engine::Checkpoint checkpoint,
                                                         const engine::PolicyOptions& options);

inline constexpr const char* kNames[] = {kFamilies[0].name, kFamilies[1].name, kFamilies[2].name, kFamilies[3].name};

/// The family of a checkpoint, "pi05" say; null where it is none of these.
const char* policy_family(const engine::Checkpoint& checkpoint);

}  // namespace vivace::models::vla
