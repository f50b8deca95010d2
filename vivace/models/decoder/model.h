// ActQuant of the decoder family: what the registry's rows point to.
#pragma once
#include "vivace/engine/registry.h"

namespace vivace::models::decoder {

/// Loads any family of kFamilies from an opened checkpoint; the result is an engine::TextModel.
Result<std::unique_ptr<engine::Model>> load(engine::Checkpoint checkpoint, const engine::LoadOptions& options);

}  // namespace vivace::models::decoder
