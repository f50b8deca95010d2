// What may follow what in Whisper's text: tokens that never come, and the rules of timestamps.
#pragma once
#include <span>

#include "vivace/engine/speech.h"

namespace vivace::models::whisper {

/// log(sum(exp(x))). -inf of none; NaN where one is.
double log_sum_exp(std::span<const float> x);

/// Which tokens may follow, beside those that never come: what top_logprobs reads as spans. Text and what ends it are
/// below `split`, timestamps from there on.
struct Spans {
  int32_t first, split, from, until, together;
};
inline Spans every_token(int64_t vocab) {
  const auto all = static_cast<int32_t>(vocab);
  return {0, all, all, all, 0};
}

/// What may follow `text`, which is what was said since the prompt.
Spans spans_after(const engine::SpeechTokens& tokens, const engine::SpeechRequest& request,
                  std::span<const int32_t> text, int64_t vocab);

/// Bits of the tokens that may come where text begins, or later.
void write_mask(const engine::SpeechTokens& tokens, const engine::SpeechRequest& request, bool first,
                std::span<int32_t> words);

/// Makes the logits of everything -inf that must not follow `text`: what top_logprobs does, for texts that are drawn.
void apply_rules(const engine::SpeechTokens& tokens, const engine::SpeechRequest& request,
                 std::span<const int32_t> text, std::span<float> logits);

}  // namespace vivace::models::whisper
