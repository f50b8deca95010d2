#include "vivace/engine/text/control.h"

#include <filesystem>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/json.h"
#include "vivace/engine/checkpoint/mapped_file.h"

namespace vivace::engine::text {
namespace {

constexpr size_t kMostTemplate = 1 << 20;

/// ASCII punctuation, whatever the locale.
bool punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

}  // namespace

bool is_control(std::string_view name, bool special, std::string_view chat_template) {
  if (special) return true;
  constexpr std::string_view kBegins[] = {"<|", "<\xef\xbd\x9c"},
                             kEnds[] = {"|>", "\xef\xbd\x9c>"};  // the second with a wide bar, U+FF5C
  for (const std::string_view begin : kBegins)
    for (const std::string_view end : kEnds)
      if (name.size() > begin.size() + end.size() && name.substr(0, begin.size()) == begin &&
          name.substr(name.size() - end.size()) == end)
        return true;
  return name.size() > 2 && punctuation(name.front()) && punctuation(name.back()) &&
         chat_template.find(name) != std::string_view::npos;
}

Result<std::string> chat_template_of(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path alone = fs::path(folder) / "chat_template.jinja", config = fs::path(folder) / "tokenizer_config.json";
  if (fs::exists(alone, error)) {
    VV_ASSIGN(const MappedFile file, MappedFile::open(alone.string()));
    const Bytes bytes = file.bytes();
    if (bytes.size() > kMostTemplate)
      return Status(Code::kLimitExceeded,
                    strf("%s: %zu bytes, at most %zu are accepted", alone.c_str(), bytes.size(), kMostTemplate));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  if (!fs::exists(config, error)) return std::string();
  VV_ASSIGN(const Json json, Json::parse_file(config.string()));
  const auto given = json.root().find("chat_template");
  if (!given || given->is_null()) return std::string();
  if (!given->is_array()) {
    VV_ASSIGN(const std::string_view text, given->as_string());
    return std::string(text);
  }
  for (const JsonValue& entry : *given) {  // named ones: the default
    VV_ASSIGN(const std::string_view name, entry.get_string("name", ""));
    if (name != "default") continue;
    VV_ASSIGN(const std::string_view text, entry.get_string("template", ""));
    return std::string(text);
  }
  return std::string();
}

}  // namespace vivace::engine::text
