// Prompter: a task, and for some families the state, as the token ids of a policy's prompt.
#pragma once
#include "vivace/engine/text/tokenizer.h"
#include "vivace/models/vla/config.h"

namespace vivace::models::vla {

/// The text that a family's prompt begins with; `state` is normalised. pi0's newline is a part of its own. Errors:
/// InvalidArgument (a state that is not finite, or missing), Unsupported (pi0fast's small letters of what is not
/// ASCII).
Result<std::string> prompt_text(const Family& family, std::string_view task, std::span<const float> state);

class Prompter {
 public:
  /// `tokenizer`: what Tokenizer::load takes, the checkpoint's own folder say. Errors: Tokenizer::load's;
  /// InvalidArgument for no family of policies; CorruptData where the vocabulary does not have what prompts begin with.
  /// `state_words`: false where a family that writes the state into its prompt was trained without (openpi's
  /// discrete_state_input).
  static Result<Prompter> open(const std::string& tokenizer, std::string_view family, bool state_words = true);
  /// Errors: as prompt_text(); InvalidArgument where the task is no UTF-8.
  Result<std::vector<int32_t>> tokens(std::string_view task, std::span<const float> state) const;

 private:
  Prompter(Family family, engine::text::Tokenizer tokenizer) : family_(family), tokenizer_(std::move(tokenizer)) {}
  Family family_;  // less what this checkpoint does without
  engine::text::Tokenizer tokenizer_;
};

}  // namespace vivace::models::vla
