// Prompter: a task, and for some families the state, as the token ids of a policy's prompt.
#pragma once
#include <variant>

#include "vivace/engine/text/tokenizer.h"
#include "vivace/models/vla/config.h"

namespace vivace::models::vla {

/// Text that is encoded by itself, or one token.
using PromptPart = std::variant<std::string, int32_t>;

/// A prompt, in its order; `state` is normalised. Errors: InvalidArgument (a state that is not finite, or missing),
/// and of pi0fast, which writes small letters, those of text::lower().
Result<std::vector<PromptPart>> prompt_parts(const Family& family, std::string_view task, std::span<const float> state);
/// The same of a family's name; `state_words`: false where a family that writes the state into its prompt was trained
/// without (openpi's discrete_state_input). Errors: InvalidArgument for no family of policies, too.
Result<std::vector<PromptPart>> prompt_parts(std::string_view family, std::string_view task,
                                             std::span<const float> state, bool state_words = true);

class Prompter {
 public:
  /// `tokenizer`: what Tokenizer::load takes, the checkpoint's own folder say. Errors: Tokenizer::load's;
  /// InvalidArgument for no family of policies; CorruptData where the vocabulary does not have what prompts begin with.
  static Result<Prompter> open(const std::string& tokenizer, std::string_view family, bool state_words = true);
  /// Errors: as prompt_parts(); InvalidArgument where the task is no UTF-8.
  Result<std::vector<int32_t>> tokens(std::string_view task, std::span<const float> state) const;

 private:
  Prompter(Family family, engine::text::Tokenizer tokenizer) : family_(family), tokenizer_(std::move(tokenizer)) {}
  Family family_;  // less what this checkpoint does without
  engine::text::Tokenizer tokenizer_;
};

}  // namespace vivace::models::vla
