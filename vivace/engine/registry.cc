#include "vivace/engine/registry.h"

#include "vivace/base/check.h"

namespace vivace::engine {
namespace {

std::vector<ModelRow>& rows() {
  static std::vector<ModelRow> all;
  return all;
}

/// config.json beside the checkpoint's first file.
std::string config_path(const Checkpoint& checkpoint) {
  const std::string& file = checkpoint.files().front().path();
  const size_t slash = file.rfind('/');
  return (slash == std::string::npos ? std::string() : file.substr(0, slash + 1)) + "config.json";
}

}  // namespace

Result<Json> hub_config(const Checkpoint& checkpoint) { return Json::parse_file(config_path(checkpoint)); }

Result<std::string> architecture(const Checkpoint& checkpoint) {
  if (checkpoint.format() == Format::gguf) {
    VV_ASSIGN(const std::string_view arch, checkpoint.metadata().get_string("general.architecture"));
    return std::string(arch);
  }
  VV_ASSIGN(const Json json, hub_config(checkpoint));
  VV_ASSIGN(const JsonValue list, json.root().at("architectures"));
  if (!list.is_array() || list.size() == 0)
    return list.error(Code::kCorruptData, "expected a list with the name of a class");
  VV_ASSIGN(const std::string_view arch, (*list.begin()).as_string());
  return std::string(arch);
}

void add_models(std::span<const ModelRow> added) {
  for (const ModelRow& row : added) {
    bool replaced = false;
    for (ModelRow& old : rows())
      if (std::string_view(old.architecture) == row.architecture) old = row, replaced = true;
    if (!replaced) rows().push_back(row);
  }
}

const std::vector<ModelRow>& models() { return rows(); }

Result<std::unique_ptr<Model>> load_model(const std::string& path, const LoadOptions& options) {
  VV_ASSIGN(Checkpoint checkpoint, options.random_weights ? Checkpoint::open_config(path) : Checkpoint::open(path));
  VV_ASSIGN(const std::string arch, architecture(checkpoint));
  for (const ModelRow& row : rows()) {
    if (arch != row.architecture) continue;
    Result<std::unique_ptr<Model>> model = row.load(std::move(checkpoint), options);
    if (!model.ok()) return std::move(model).status().with_context(path);
    return model;
  }
  std::string known;
  for (const ModelRow& row : rows()) known += std::string(known.empty() ? "" : ", ") + row.architecture;
  return Status(Code::kUnsupported, path + ": architecture '" + arch + "' is not served; this version serves " + known);
}

}  // namespace vivace::engine
