#include "vivace/engine/text/tokenizer.h"

#include <filesystem>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/checkpoint.h"
#include "vivace/engine/text/control.h"

namespace vivace::engine::text {
namespace fs = std::filesystem;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  const auto read = [](auto made) -> Result<Tokenizer> {
    if (!made.ok()) return std::move(made).status();
    return Tokenizer(std::move(made).value());
  };
  const fs::path given(path);
  if (given.extension() == ".gguf") {
    VV_ASSIGN(const Checkpoint file, Checkpoint::open(path));
    VV_ASSIGN(const std::string_view kind, file.metadata().get_string("tokenizer.ggml.model"));
    return kind == "llama" ? read(Pieces::from_gguf(file.metadata())) : read(BytePairs::from_gguf(file.metadata()));
  }
  if (given.extension() == ".model") return read(Pieces::load(path));
  std::error_code error;
  const fs::path folder = fs::is_directory(given, error) ? given : given.parent_path();
  if (given.extension() != ".json" && fs::exists(folder / "tokenizer.model", error))
    return read(Pieces::load((folder / "tokenizer.model").string()));
  const fs::path file =
      given.extension() == ".json" && given.filename() != "config.json" ? given : folder / "tokenizer.json";
  if (!fs::exists(file, error))
    return Status(Code::kNotFound, "tokenizer: neither tokenizer.model nor tokenizer.json is in '" + folder.string() +
                                       "'; put one there, name one, or give token ids");
  VV_ASSIGN(const Json json, Json::parse_file(file.string()));
  VV_ASSIGN(const JsonValue model, json.root().at("model"));
  VV_ASSIGN(const bool fallback, model.get_bool("byte_fallback", false));
  VV_ASSIGN(const bool fused, model.get_bool("fuse_unk", false));
  const bool pieces = fallback || fused;  // of bytes none is unknown
  VV_ASSIGN(const std::string chat_template, chat_template_of(file.parent_path().string()));
  return pieces ? read(Pieces::from_json(json, chat_template)) : read(BytePairs::from_json(json, chat_template));
}

}  // namespace vivace::engine::text
