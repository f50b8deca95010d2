// Entry of GR00T.
#pragma once
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/policy.h"

namespace vivace::models::groot {

inline constexpr const char* kFamilies[] = {"groot_n16", "groot_n17"};

/// The family of a checkpoint by its config.json: model_type "Gr00tN1d6" or "Gr00tN1d7", or lerobot's type "groot" and
/// the tensors; null of others.
const char* family_of(const engine::Checkpoint& checkpoint);

/// Builds the policy. Errors: NotFound, CorruptData, Unsupported, InvalidArgument (options, fields of the
/// configuration), InvalidShape, OutOfMemory.
Result<std::unique_ptr<engine::PolicyModel>> load_groot(engine::Checkpoint checkpoint,
                                                        const engine::PolicyOptions& options);

}  // namespace vivace::models::groot
