#include "vivace/engine/registry.h"

#include <utility>

#include "vivace/base/check.h"

namespace vivace::engine {
namespace {

std::vector<ModelRow>& rows() {
  static std::vector<ModelRow> all;
  return all;
}

std::vector<PolicyRow>& policy_rows() {
  static std::vector<PolicyRow> all;
  return all;
}

/// The first row that knows the checkpoint, with its family; null if there is none.
std::pair<const PolicyRow*, const char*> row_of(const Checkpoint& checkpoint) {
  for (const PolicyRow& row : policy_rows())
    if (const char* const family = row.family(checkpoint)) return {&row, family};
  return {nullptr, nullptr};
}

/// Loads an opened checkpoint by the row that its family or, if nothing tells that, options.config names.
Result<std::unique_ptr<PolicyModel>> build(Checkpoint checkpoint, const PolicyOptions& options) {
  const bool find = options.config.empty() || options.config == "auto";
  const PolicyRow* named = nullptr;
  std::string known;
  for (const PolicyRow& row : policy_rows())
    for (const std::string_view family : row.families) {
      known += (known.empty() ? "" : ", ") + std::string(family);
      if (family == options.config) named = &row;
    }
  if (!find && named == nullptr)
    return Status(Code::kInvalidArgument, "config: wanted one of auto, " + known + ", got '" + options.config + "'");
  const auto [row, family] = row_of(checkpoint);
  if (find && row == nullptr)
    return Status(Code::kInvalidArgument,
                  "config: this checkpoint is of none of " + known + " by its config.json's type and its tensors");
  if (!find && row != nullptr && row != named)
    return Status(Code::kInvalidArgument,
                  "config " + options.config + ": this checkpoint is of " + family + "; load it with that config");
  return (find ? row : named)->load(std::move(checkpoint), options);
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

void add_policies(std::span<const PolicyRow> rows) {
  policy_rows().insert(policy_rows().end(), rows.begin(), rows.end());
}

Result<std::unique_ptr<PolicyModel>> load_policy(const std::string& path, const PolicyOptions& options) {
  auto checkpoint = options.random_weights ? Checkpoint::open_config(path) : Checkpoint::open(path);
  auto built = checkpoint.ok() ? build(std::move(checkpoint).value(), options) : std::move(checkpoint).status();
  if (!built.ok()) return std::move(built).status().with_context(path);
  return built;
}

Result<std::string> policy_family(const std::string& path) {
  auto checkpoint = Checkpoint::open(path);
  if (!checkpoint.ok() && checkpoint.status().code() == Code::kNotFound) checkpoint = Checkpoint::open_config(path);
  VV_TRY(checkpoint.status());
  const char* const family = row_of(*checkpoint).second;
  return std::string(family != nullptr ? family : "");
}

}  // namespace vivace::engine
