// What may follow what in Whisper's text: tokens that never come, and the rules of timestamps.
#pragma once
#include <span>

#include "vivace/engine/speech.h"

namespace vivace::models::whisper {

/// log(sum(exp(x))). -inf of none; NaN where one is.
double log_sum_exp(std::span<const float> x);

/// Makes the logits of everything -inf that must not follow `text`, which is what was said since the prompt.
void apply_rules(const engine::SpeechTokens& tokens, const engine::SpeechRequest& request,
                 std::span<const int32_t> text, std::span<float> logits);

}  // namespace vivace::models::whisper
