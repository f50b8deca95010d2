// The model registry: (architecture, checkpoint format) -> the function that builds the model.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/checkpoint/json.h"
#include "vivace/engine/model.h"

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

}  // namespace vivace::engine
