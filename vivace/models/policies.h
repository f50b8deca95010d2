// Every family of robots' policies there is, registered: the entry that faces use.
#pragma once
#include "vivace/engine/registry.h"

namespace vivace::models {

/// engine::load_policy with all built-in families known.
Result<std::unique_ptr<engine::PolicyModel>> load_policy(const std::string& path, const engine::PolicyOptions& options);

/// engine::policy_family, likewise.
Result<std::string> policy_family(const std::string& path);

}  // namespace vivace::models
