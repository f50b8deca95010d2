#include "vivace/models/models.h"

#include "vivace/models/decoder/config.h"
#include "vivace/models/decoder/model.h"

namespace vivace::models {
namespace {

bool register_all() {
  for (const decoder::Family& f : decoder::kFamilies) {
    const engine::ModelRow rows[] = {{f.gguf_arch, f.name, &decoder::load}, {f.hf_arch, f.name, &decoder::load}};
    engine::add_models(rows);
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<engine::Model>> load_model(const std::string& path, const engine::LoadOptions& options) {
  static const bool registered = register_all();
  (void)registered;
  return engine::load_model(path, options);
}

}  // namespace vivace::models
