// Words and when they were said: tokens split into words, times from the alignment, and what such times get wrong put
// right. Sentences of text without timestamps, by the same.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::models::whisper {

/// Seconds, to hundredths.
double hundredths(double seconds);

struct TextWord {
  std::string text;  // as it stands in the segment, with the space before it
  double start = 0, end = 0, probability = 0;
};

/// A stretch of a window's text that will be a segment.
struct Part {
  double start = 0, end = 0;
  std::vector<int32_t> tokens, text;  // `text`: those that are no timestamps
  std::vector<float> logprobs;        // of `tokens`
  std::vector<TextWord> words;
};

using Decode = std::function<Result<std::string>(std::span<const int32_t>)>;

/// Tokens that are one word, with the space before it.
struct Run {
  std::string text;
  std::vector<int32_t> tokens;
};
Result<std::vector<Run>> split_words(std::span<const int32_t> tokens, const std::string& language,
                                     const Decode& decode);

/// Sentences of `tokens` by starts[i], the step at which token i begins: their tokens, and first and last step.
struct Sentence {
  std::vector<int32_t> tokens;
  int32_t first = 0, last = 0;
  bool ends = false;  // with a mark
};
Result<std::vector<Sentence>> sentences(std::span<const int32_t> tokens, std::span<const int32_t> starts,
                                        const std::string& language, const Decode& decode);

/// Gives each of `parts` its words, and both the same ends. `starts` (one more than tokens) and `probabilities`: of all
/// parts' text, from `offset` seconds on. `spoken`: where the last word before ended; then, where the last one ends.
Status place_words(std::vector<Part>* parts, std::span<const int32_t> starts, std::span<const float> probabilities,
                   double offset, const std::string& language, const Decode& decode, double* spoken);

/// Text without the spaces around it.
std::string_view stripped(std::string_view text);

}  // namespace vivace::models::whisper
