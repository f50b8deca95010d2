// Tokenizer: whichever of the two kinds a checkpoint has.
#pragma once
#include <variant>

#include "vivace/engine/text/bpe.h"
#include "vivace/engine/text/pieces.h"

namespace vivace::engine::text {

class Tokenizer {
 public:
  /// `path`: a .gguf file, tokenizer.model or tokenizer.json, or a hub folder or .safetensors file with one of the two
  /// beside it, of which tokenizer.model counts. Errors: NotFound, CorruptData, LimitExceeded; Unsupported says what
  /// it wants that is not done here.
  static Result<Tokenizer> load(const std::string& path);

  // As BytePairs and Pieces have them.
  Status encode(std::string_view text, bool special, std::vector<int32_t>* ids) const {
    return std::visit([&](const auto& t) { return t.encode(text, special, ids); }, kind_);
  }
  Status decode(std::span<const int32_t> ids, std::string* text) const {
    return std::visit([&](const auto& t) { return t.decode(ids, text); }, kind_);
  }
  int32_t find(std::string_view token) const {
    return std::visit([&](const auto& t) { return t.find(token); }, kind_);
  }
  int32_t size() const {
    return std::visit([](const auto& t) { return t.size(); }, kind_);
  }

 private:
  explicit Tokenizer(std::variant<BytePairs, Pieces> kind) : kind_(std::move(kind)) {}
  std::variant<BytePairs, Pieces> kind_;
};

}  // namespace vivace::engine::text
