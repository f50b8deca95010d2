// Entry of GR00T.
#pragma once
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/policy.h"

namespace vivace::models::groot {

/// Whether config.json is a GR00T N1.7's: model_type "Gr00tN1d7", or lerobot's type "groot".
bool is_groot(const engine::Checkpoint& checkpoint);

/// Builds the policy. Errors: NotFound, CorruptData, Unsupported, InvalidArgument (options, fields of the
/// configuration), InvalidShape, OutOfMemory.
Result<std::unique_ptr<engine::PolicyModel>> load_groot(engine::Checkpoint checkpoint,
                                                        const engine::PolicyOptions& options);

}  // namespace vivace::models::groot
