// Every model family there is, registered: the entry that faces use.
#pragma once
#include "vivace/engine/registry.h"

namespace vivace::models {

/// engine::load_model with all built-in families known.
Result<std::unique_ptr<engine::Model>> load_model(const std::string& path, const engine::LoadOptions& options);

}  // namespace vivace::models
