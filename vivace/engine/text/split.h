// How a tokenizer cuts text into pieces before it merges: the rules of published models, by hand.
#pragma once
#include <string_view>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::engine::text {

enum class Split : uint8_t {
  gpt2,    // GPT-2's words
  digits,  // every digit on its own, then GPT-2's words (SmolLM2)
  llama3,  // words with the character before them, numbers of up to three digits
  qwen2,   // the same with single digits
};

/// The pattern that tokenizer.json has for the last two. Errors: Unsupported shows the pattern.
Result<Split> split_of(std::string_view pattern);

/// Pieces of valid UTF-8, in order; together they are the text. Replaces `pieces`.
void split(std::string_view text, Split how, std::vector<std::string_view>* pieces);

}  // namespace vivace::engine::text
