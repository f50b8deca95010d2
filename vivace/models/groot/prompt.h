// Prompter: a task as the token ids of GR00T's prompt.
#pragma once
#include <string>
#include <vector>

#include "vivace/engine/text/tokenizer.h"

namespace vivace::models::groot {

/// Small letters, digits, spaces and '_' of a task, as the checkpoints were trained (formalize_language). Errors:
/// Unsupported of what is not ASCII.
Result<std::string> formal(std::string_view task);

class Prompter {
 public:
  /// `tokenizer`: what Tokenizer::load takes, of Qwen3-VL, or, of N1.6 (`family`), of Eagle. Errors: Tokenizer::load's;
  /// CorruptData where its vocabulary has not what prompts are made of.
  static Result<Prompter> open(const std::string& tokenizer, std::string_view family);
  /// A user's message of `images` images, each by one token, and the task; of N1.6 behind a system's, and the task
  /// first. Errors: as formal(); InvalidArgument where the task is no UTF-8.
  Result<std::vector<int32_t>> tokens(std::string_view task, int images) const;

 private:
  Prompter(engine::text::Tokenizer tokenizer, bool n16) : tokenizer_(std::move(tokenizer)), n16_(n16) {}
  engine::text::Tokenizer tokenizer_;
  bool n16_;
  int32_t begin_ = 0, end_ = 0, image_begin_ = 0, image_ = 0, image_end_ = 0;
};

}  // namespace vivace::models::groot
