// The model registry: an architecture -> the function that builds the model; and the loaders of robots' policies.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/checkpoint/json.h"
#include "vivace/engine/model.h"
#include "vivace/engine/policy.h"

namespace vivace::engine {

/// One row. `architecture` is GGUF's general.architecture or config.json's architectures[0].
struct ModelRow {
  const char* architecture;
  const char* family;
  Result<std::unique_ptr<Model>> (*load)(Checkpoint checkpoint, const LoadOptions& options);
};

/// Adds rows; an architecture that is there already is replaced (plugins override). Setup phase, one thread.
void add_models(std::span<const ModelRow> rows);
const std::vector<ModelRow>& models();

/// config.json beside a hub checkpoint, parsed.
Result<Json> hub_config(const Checkpoint& checkpoint);
/// The checkpoint's architecture: general.architecture, or architectures[0] of config.json.
Result<std::string> architecture(const Checkpoint& checkpoint);

/// Opens `path` (a .gguf or .safetensors file, or a directory), finds its architecture's row and builds it.
/// Errors: NotFound, CorruptData, Unsupported (names the architecture and lists those there are).
Result<std::unique_ptr<Model>> load_model(const std::string& path, const LoadOptions& options);

/// A loader of policies, of one family or several.
struct PolicyRow {
  std::span<const char* const> families;
  const char* (*family)(const Checkpoint& checkpoint);  // a checkpoint's, of these; null where it is of none
  Result<std::unique_ptr<PolicyModel>> (*load)(Checkpoint checkpoint, const PolicyOptions& options);
};

/// Adds rows; a checkpoint belongs to the first row that knows it. Setup phase, one thread.
void add_policies(std::span<const PolicyRow> rows);

/// Opens `path` and builds the policy that options.config names, or, empty or "auto", what the checkpoint is; with
/// random_weights `path` may be a folder or config.json alone. Errors: NotFound, CorruptData, Unsupported,
/// InvalidArgument (options; another family's checkpoint), InvalidShape, OutOfMemory.
Result<std::unique_ptr<PolicyModel>> load_policy(const std::string& path, const PolicyOptions& options);

/// The family of the checkpoint at `path`, "pi05" say, or of the config.json of a folder without weights; empty where
/// it is no policy. Errors: those of Checkpoint::open().
Result<std::string> policy_family(const std::string& path);

}  // namespace vivace::engine
